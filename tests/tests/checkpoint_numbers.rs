//! Jobs that go on with other numbers of nodes and of ranks, on a real Slurm.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use gpuos_lab::Suite;
use gpuos_tests::suites::left_to_soak;
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

use crate::checkpoint::{
    counter, drained, had_saved, have_told, logs, lose, movers, output, said, starts_soon, until,
};
use crate::checkpoint_outside::{go_on, newest, publish};

per_suite!(
    a_job_goes_on_with_other_numbers_of_nodes_and_ranks,
    a_job_goes_on_with_fewer_nodes_from_what_was_drained,
);

/// A job of three ranks, on as many nodes as it has.
const JOB: [&str; 4] = [
    "--requeue",
    "--overcommit",
    "--open-mode=append",
    "--gpuos-checkpoint=1s,l2=partner",
];

/// Says what it is given, of whichever ranks, and ends.
const READER: &str = r#"
. "$GPUOS_HELPERS/gpuos-checkpoint.sh"
[ "$1" != any ] || gpuos_checkpoint_any_ranks
gpuos_checkpoint_start || exit 1
echo "given $gpuos_checkpoint_restored of $gpuos_checkpoint_ranks"
for file in "$gpuos_checkpoint_from"/*/*; do
    echo "file $(basename "$(dirname "$file")") $(cat "$file")"
done
"#;

/// Requeues a job, which gets so many nodes then.
fn change(cluster: &Cluster, job: u32, nodes: usize) {
    let id = job.to_string();
    cluster.run("scontrol", &["requeuehold", &id]);
    until(cluster, "the job is held", || {
        let state = cluster.lab.job_state(job).ok();
        state.filter(|state| state == "PENDING")
    });
    cluster.update(&[&format!("JobId={id}"), &format!("NumNodes={nodes}-{nodes}")]);
    cluster.run("scontrol", &["release", &id]);
    starts_soon(cluster, job);
    cluster.wait(job, &["RUNNING"]);
}

fn a_job_goes_on_with_other_numbers_of_nodes_and_ranks(suite: &Suite) {
    if left_to_soak("other numbers of nodes", suite) {
        return;
    }
    let Some(cluster) = movers("ckpt-numbers", suite, 4) else {
        return;
    };
    cluster.set_node("n4", "DRAIN");
    let script = format!("srun -l -n3 --overcommit {} 100000 0.02", counter());
    let job = cluster.sbatch(&[&["-N3", "-n3"], &JOB[..]].concat(), &script);
    cluster.wait(job, &["RUNNING"]);
    let before = newest(&cluster, &["n1", "n2", "n3"], job, 2);
    // The part of the third node is made again of what the two others have.
    cluster.set_node("n3", "DRAIN");
    change(&cluster, job, 2);
    let first = go_on(&cluster, job, 1, before);
    assert!(
        logs(&cluster).contains("of 3 nodes is whole, and the job goes on from it with 2"),
        "{}",
        logs(&cluster)
    );
    let before = newest(&cluster, &["n1", "n2"], job, first + 2);
    if std::env::var_os("GPUOS_LONG").is_some() {
        cluster.set_node("n3", "RESUME");
        cluster.set_node("n4", "RESUME");
        change(&cluster, job, 4);
        let second = go_on(&cluster, job, 2, before);
        let all = ["n1", "n2", "n3", "n4"];
        newest(&cluster, &all, job, second + 3);
        let hosted = all.iter().any(|node| {
            let store = cluster.lab.checkpoints_dir(node).join(job.to_string());
            let names = fs::read_dir(store).expect("its store").flatten();
            let mut names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.any(|name| name.starts_with("guest-"))
        });
        assert!(
            !hosted,
            "what is hosted goes when it has checkpoints of its own"
        );
    }
    // Parts that the next job's nodes do not have come from those that do.
    publish(&cluster, &["n1", "n2", "n3", "n4"], job);
    cluster.cancel(&[job]);
    other_ranks(&cluster, job);
}

/// Two ranks on two nodes begin from what three have saved: if they say that they can.
fn other_ranks(cluster: &Cluster, job: u32) {
    let reader = cluster.lab.dir().join("work/reader.sh");
    fs::write(&reader, READER).expect("it is writable");
    let counter = counter();
    let helpers = counter.split(' ').nth(1).expect("GPUOS_HELPERS=");
    let submit = |how: &str| {
        let script = format!(
            "srun -l -n2 --overcommit env {helpers} sh {} {how}",
            reader.display()
        );
        let from = format!("--gpuos-restart={job}");
        cluster.sbatch(&[&["-N2", "-n2", &from], &JOB[..]].concat(), &script)
    };
    let able = submit("any");
    cluster.wait(able, &["COMPLETED"]);
    let text = output(cluster, able);
    let given = |rank: u32| {
        let start = format!("{rank}: given ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        let number = line.and_then(|line| line.strip_suffix(" of 3"));
        number.and_then(|number| number.parse::<u32>().ok())
    };
    let number = given(0).unwrap_or_else(|| panic!("{text}\n{}", logs(cluster)));
    assert_eq!(given(1), Some(number), "{text}");
    for (reads, rank) in (0..2).flat_map(|reads| (0..3).map(move |rank| (reads, rank))) {
        let saved = said(cluster, job, rank, "saved");
        let saved = saved.iter().rfind(|(of, _)| *of == number);
        // The last ones may have been committed when their ranks were ended before they could say so.
        let count = saved.map_or(String::new(), |(_, count)| count.to_string());
        let line = format!("{reads}: file rank-{rank}-of-3 {count}");
        assert!(text.contains(&line), "{line}\n{text}");
    }
    let unable = submit("own");
    cluster.wait(unable, &["FAILED"]);
    let text = output(cluster, unable);
    let why = "was made by 3 ranks, and the program has 2; start it with 3";
    assert!(text.contains(why), "{text}");
    let store = cluster.lab.checkpoints_dir("n1").join(job.to_string());
    assert!(store.join("CURRENT").exists(), "nothing is removed");
}

/// All three nodes are lost with their disks, and the job gets one other.
fn a_job_goes_on_with_fewer_nodes_from_what_was_drained(suite: &Suite) {
    if left_to_soak("what was drained on fewer nodes", suite) {
        return;
    }
    let shared = tempfile::tempdir().expect("a folder");
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(shared.path(), private).expect("it is ours");
    let mut setup = Setup::new("ckpt-numbers-l3", suite);
    setup.spec.nodes = 4.into();
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    setup.spec.gpuos_toml = Some(format!(
        "[checkpoint]\nenabled = true\nport = 0\nleast-seconds = 1\nshared = {:?}\nshared-every = 1\n",
        shared.path()
    ));
    let Some(cluster) = setup.steered() else {
        return;
    };
    cluster.set_node("n4", "DRAIN");
    let script = format!("srun -l -n3 --overcommit {} 100000 0.02", counter());
    let options = [
        "--requeue",
        "--overcommit",
        "--open-mode=append",
        "--gpuos-checkpoint=1s",
        "-N3",
        "-n3",
    ];
    let job = cluster.sbatch(&options, &script);
    cluster.wait(job, &["RUNNING"]);
    let folder = shared.path().join(job.to_string());
    until(&cluster, "two are drained", || {
        drained(&folder, 3).filter(|number| *number >= 2)
    });
    have_told(&cluster, job, 3, 2);
    for node in ["n1", "n2", "n3"] {
        lose(&cluster, node, || {});
    }
    let newest = drained(&folder, 3).expect("it had one");
    until(&cluster, "the job is requeued", || {
        let state = cluster.lab.job_state(job).ok();
        state.filter(|state| state == "PENDING")
    });
    cluster.update(&[&format!("JobId={job}"), "NumNodes=1-1"]);
    starts_soon(&cluster, job);
    cluster.set_node("n4", "RESUME");
    cluster.wait(job, &["RUNNING"]);
    let from = [0, 1, 2].map(|rank| {
        until(&cluster, "it goes on", || {
            said(&cluster, job, rank, "restored checkpoint").pop()
        })
    });
    for (rank, (number, count)) in (0..).zip(&from) {
        assert!(*number >= newest, "{newest} was drained: {from:?}");
        let saved = said(&cluster, job, rank, "saved");
        assert!(had_saved(&saved, (*number, *count)), "{saved:?}, {from:?}");
    }
    crate::checkpoint_outside::newest(&cluster, &["n4"], job, newest + 2);
    cluster.cancel(&[job]);
}
