//! Sentences on jobs under a real Slurm, on every release: what squeue and `gpuos why` say of jobs with slices that wait
//! and run, of tasks of an array, of ordinary jobs that wait, and of one that gpuosd requeued.

use gpuos_lab::Suite;
use gpuos_tests::plugins::programs;
use gpuos_tests::slices::{self, start};
use gpuos_tests::{Cluster, per_suite};

per_suite!(what_is_said_is_so);

/// GPUs 6 and 7 of each node are divided.
const POOL: u64 = 0b1100_0000;

/// What `gpuos why` says.
fn why(cluster: &Cluster, job: &str) -> String {
    let gpuos = programs().join("gpuos");
    let out = cluster
        .lab
        .output(gpuos.to_str().expect("UTF-8"), &["why", job])
        .expect("runs");
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

fn says(cluster: &Cluster, job: &str, words: &[&str]) {
    let mut text = String::new();
    let what = format!("gpuos why {job} says {words:?}");
    cluster.until(&what, || {
        text = why(cluster, job);
        let all = words.iter().all(|words| text.contains(words));
        if !all {
            eprintln!("{text}");
        }
        all.then_some(())
    });
    for never in ["can never start", "asks for no GPU", "alone makes no room"] {
        assert!(!text.contains(never), "{text}");
    }
}

fn reason(cluster: &Cluster, job: &str) -> String {
    let text = cluster.run("squeue", &["-h", "-j", job, "-t", "PD", "-o", "%r"]);
    text.lines().next().unwrap_or_default().trim().to_string()
}

/// Waits until squeue shows gpuos's reason with these words.
fn shows(cluster: &Cluster, job: u32, words: &str) {
    cluster.until(&format!("squeue shows '{words}' of job {job}"), || {
        let reason = reason(cluster, &job.to_string());
        (reason.starts_with("gpuos: ") && reason.contains(words)).then_some(())
    });
}

fn what_is_said_is_so(suite: &Suite) {
    let mut setup = slices::pool("words", suite, 2, POOL);
    // No job has a time limit, as in Slurm's own defaults.
    setup.spec.slurm_conf_extra.push("MinJobAge=300".into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    // Both divided GPUs of n1, of which two jobs have one each.
    let first = start(&cluster, "first", "--gpuos-mig=7g.80gb -w n1");
    let second = start(&cluster, "second", "--gpuos-mig=7g.80gb -w n1");
    let text = why(&cluster, &first.to_string());
    let other = why(&cluster, &second.to_string());
    let gpus = [&text, &other].map(|text| {
        let named = ["GPU 6", "GPU 7"]
            .map(|gpu| format!("runs: 7g.80gb on {gpu} of n1 (memory slices 0-7)"));
        named
            .iter()
            .position(|words| text.contains(words))
            .unwrap_or_else(|| panic!("{text}"))
    });
    assert_ne!(gpus[0], gpus[1], "{text}{other}");
    // A third one that names n1 waits, though n2 has room.
    let third = slices::ask(&cluster, "third", "--gpuos-mig=7g.80gb -w n1");
    shows(
        &cluster,
        third,
        "of the 1 node that the job names, 0 have room for 7g.80gb now",
    );
    let room = format!("There is room when job {} has ended", second.min(first));
    let or = format!("There is room when jobs {first} and {second} have ended");
    says(
        &cluster,
        &third.to_string(),
        &[
            "waits: of the 1 node that the job names",
            "There is room when",
        ],
    );
    let said = why(&cluster, &third.to_string());
    assert!(
        said.contains(&room) || said.contains(&or) || said.contains("no end of"),
        "{said}"
    );
    cluster.cancel(&[third, second, first]);

    // An ordinary job, and an array: six GPUs of each node are not divided.
    let blocker = cluster.start(&["-N2", "--gres=gpu:4"]);
    let ordinary = cluster.sbatch(&["--gres=gpu:4"], "sleep 600");
    shows(
        &cluster,
        ordinary,
        "The job needs 1 node with 4 free GPUs each",
    );
    let ends = format!("There is room when job {blocker} has ended, and no end of it is known");
    says(
        &cluster,
        &ordinary.to_string(),
        &[
            "Not enough room now: 1 node needed",
            "4 GPUs needed, 4 free for it",
            &ends,
        ],
    );
    let total = cluster.sbatch(&["--gpus=9", "-N2"], "sleep 600");
    cluster.cancel(&[ordinary]);
    shows(&cluster, total, "The job needs 9 free GPUs on 2 nodes");
    cluster.cancel(&[total]);
    let array = cluster.sbatch(&["--array=1-4", "--gres=gpu:3"], "sleep 600");
    for name in [
        format!("{array}_3"),
        format!("{array}_[2-4]"),
        array.to_string(),
    ] {
        says(
            &cluster,
            &name,
            &[
                " waits. Not enough room now: 1 node needed",
                "3 GPUs needed",
            ],
        );
    }
    assert!(why(&cluster, &format!("{array}_3")).starts_with(&format!("Job {array}_3 waits")));
    assert!(why(&cluster, &format!("{array}_9")).contains("is not known"));
    shows(
        &cluster,
        array,
        "The job needs 1 node with 3 free GPUs each",
    );
    cluster.cancel(&[array, blocker]);
    requeued(&cluster);
    cluster.drained();
}

/// `gpuos` about gpuosd of n1.
fn tell(cluster: &Cluster, words: &[&str]) {
    let dir = cluster.lab.gpuosd_runtime_dir("n1");
    let gpuos = programs().join("gpuos");
    let dir = dir.to_str().expect("UTF-8");
    let args = [words, &["--runtime-dir", dir]].concat();
    cluster.run(gpuos.to_str().expect("UTF-8"), &args);
}

/// A GPU fails under a job that must not go elsewhere: it is requeued, and waits for the GPU, which an administrator has
/// taken out of service besides, so that no reset brings it back.
fn requeued(cluster: &Cluster) {
    let options = ["--requeue", "--gres=gpu:6", "-w", "n1"];
    let job = cluster.sbatch(&options, "sleep 600");
    cluster.wait(job, &["RUNNING"]);
    let gpu = *cluster.gpus(job)["n1"].first().expect("a GPU");
    let name = format!("n1:{gpu}");
    tell(cluster, &["drain", &name, "--reason", "loud fan"]);
    let id = job.to_string();
    let place = format!("gpu{gpu}");
    let words = ["xid", "48"];
    cluster.lab.fault("n1", &place, &words).expect("breaks");
    let fault = format!(
        "It was requeued once; it ran on GPU {name}, which is out of service now: gpuosd requeues"
    );
    let while_out =
        format!("cannot start while GPU {name} is out of service, not even when all running jobs");
    cluster.until("gpuos why tells of the requeue", || {
        let text = why(cluster, &id);
        for never in ["(--begin)", "can never start", "without GPUs"] {
            assert!(!text.contains(never), "{text}");
        }
        (text.contains(&fault) && text.contains(&while_out)).then_some(())
    });
    tell(cluster, &["online", &name]);
    cluster.wait(job, &["RUNNING"]);
    cluster.cancel(&[job]);
}
