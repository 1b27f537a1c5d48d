//! Checkpoints that are written into memory of the job first, on a real Slurm.

use std::fs;
use std::path::{Path, PathBuf};

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

use crate::checkpoint::{committed, output, requeue, until};

per_suite!(files_go_through_memory_and_nothing_stays_mounted);

/// Saves bytes that it draws at its first start, and compares what it is given with them.
const PROGRAM: &str = r#"
. "$HELPERS/gpuos-checkpoint.sh"
gpuos_checkpoint_start || exit 1
if [ -n "$gpuos_checkpoint_from" ]; then
    echo "restored $gpuos_checkpoint_restored"
    cmp "$gpuos_checkpoint_from/state" "state.$SLURM_JOB_ID" && echo equal
else
    head -c 9000001 /dev/urandom >"state.$SLURM_JOB_ID"
fi
while :; do
    sleep 0.05
    gpuos_checkpoint_wanted || continue
    number=$gpuos_checkpoint_number
    if gpuos_checkpoint_folder "$number" && cp "state.$SLURM_JOB_ID" "$gpuos_checkpoint_into/state"; then
        echo "into $(stat -f -c %T "$gpuos_checkpoint_into")"
        gpuos_checkpoint_ready "$number"
    fi
done
"#;

/// Where a node's jobs have their folders.
fn jobs(cluster: &Cluster) -> PathBuf {
    cluster.lab.checkpoints_dir("n1").with_file_name("jobs")
}

/// What is mounted below a folder: where, and how.
fn mounts(below: &Path) -> Vec<(String, String)> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("a table");
    let lines = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let below = format!("{}/", below.display());
    let own = lines.filter(|words| words.get(4).is_some_and(|at| at.starts_with(&below)));
    own.map(|words| (words[4].to_owned(), words[5..].join(" ")))
        .collect()
}

/// The newest checkpoint, once there are so many more.
fn more(cluster: &Cluster, job: u32, by: u32) -> u32 {
    let before = committed(cluster, "n1", job).unwrap_or(0);
    until(cluster, "more checkpoints", || {
        committed(cluster, "n1", job).filter(|number| *number >= before + by)
    })
}

fn files_go_through_memory_and_nothing_stays_mounted(suite: &Suite) {
    if suite.to_string() != "native" {
        eprintln!("left out for {suite}: in a chroot slurmd has mounts of its own");
        return;
    }
    let mut setup = Setup::new("ckpt-memory", suite);
    setup.spec.nodes = 1.into();
    setup.spec.job_submit = true;
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    let Some(cluster) = setup.steered() else {
        return;
    };
    let share = Path::new(env!("CARGO_MANIFEST_DIR")).join("../share");
    let share = share.canonicalize().expect("the project");
    let program = cluster.lab.dir().join("work/program.sh");
    let text = PROGRAM.replace("$HELPERS", share.to_str().expect("UTF-8"));
    fs::write(&program, text).expect("a program");
    let script = format!("srun sh {}", program.display());
    let too_large = ["--mem=64", "--gpuos-checkpoint=1s,l0=1G"];
    let refused = cluster
        .try_sbatch(&too_large, &script)
        .expect_err("refused");
    assert!(refused.contains("l0= is part of the memory"), "{refused}");
    let options = [
        "--requeue",
        "-N1",
        "--open-mode=append",
        "--gpuos-checkpoint=1s,l0=64M,l2=single",
    ];
    let job = cluster.sbatch(&options, &script);
    cluster.wait(job, &["RUNNING"]);
    more(&cluster, job, 2);
    let into = |text: &str| text.matches("into tmpfs").count();
    let said = until(&cluster, "it says where its files go", || {
        let said = output(&cluster, job);
        (into(&said) >= 2).then_some(said)
    });
    assert!(!said.contains("into ext"), "{said}");
    // One for the batch script and its step together.
    let place = jobs(&cluster).join(job.to_string()).join("memory");
    let is_mounted = || {
        let all = mounts(&jobs(&cluster));
        let (at, how) = all.first().expect("it is mounted");
        assert_eq!(Path::new(at), place);
        for word in ["nosuid", "nodev", "noexec", "size=65536k", "tmpfs gpuos"] {
            assert!(how.contains(word), "{how}");
        }
        all.len()
    };
    assert_eq!(is_mounted(), 1);
    // A mover that is started anew goes on there.
    cluster.lab.kill_mover("n1", libc::SIGKILL).expect("it ran");
    let before = into(&output(&cluster, job));
    cluster.lab.start_mover("n1").expect("it starts");
    let newest = more(&cluster, job, 1);
    until(&cluster, "its files go there again", || {
        (into(&output(&cluster, job)) > before).then_some(())
    });
    requeue(&cluster, job);
    cluster.wait(job, &["RUNNING"]);
    until(&cluster, "it goes on with the same bytes", || {
        let text = output(&cluster, job);
        text.contains("\nequal").then_some(())
    });
    let text = output(&cluster, job);
    let restored = text.lines().find_map(|line| line.strip_prefix("restored "));
    let restored: u32 = restored.and_then(|n| n.parse().ok()).expect("a number");
    assert!(restored >= newest, "{restored} after {newest}");
    assert!(!text.contains("differ"), "{text}");
    more(&cluster, job, 1);
    until(&cluster, "that of the run before is unmounted", || {
        (is_mounted() == 1).then_some(())
    });
    cluster.cancel(&[job]);
    until(&cluster, "nothing is mounted", || {
        mounts(&jobs(&cluster)).is_empty().then_some(())
    });
}
