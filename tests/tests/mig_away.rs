//! NVIDIA's driver is away on a node whose jobs want MIG instances, in real Slurm clusters: the jobs are held and say why,
//! none is cancelled, and all run when the driver is back.

use std::fmt::Display;
use std::fs;

use gpuos_lab::Suite;
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::plugins::programs;
use gpuos_tests::slices::pool;
use gpuos_tests::{Cluster, per_suite};

per_suite!(jobs_wait_for_the_driver);

/// What squeue says of a job: its state, priority and comment.
fn shown(cluster: &Cluster, id: impl Display) -> [String; 3] {
    let id = id.to_string();
    let field = |name: &str| {
        let format = format!("{name}:400");
        let text = cluster.run("squeue", &["-h", "-t", "all", "-j", &id, "-O", &format]);
        text.trim().to_owned()
    };
    [
        field("State"),
        field("PriorityLong"),
        field("admin_comment"),
    ]
}

fn jobs_wait_for_the_driver(suite: &Suite) {
    let Some(cluster) = pool("mig-away", suite, 1, 1 << 7).steered() else {
        return;
    };
    // The library cannot be opened, as after the driver was unloaded or broken by an update.
    let library = cluster.lab.gpus_dir("n1").join("libnvidia-ml.so.1");
    let away = library.with_extension("away");
    cluster.lab.kill_gpuosd("n1", 15).expect("gpuosd ends");
    fs::rename(&library, &away).expect("the library goes");
    cluster.lab.start_gpuosd("n1").expect("gpuosd starts");

    let script = "echo device=$CUDA_VISIBLE_DEVICES; echo end=1";
    let pinned = cluster.sbatch(&["-w", "n1", "--gpuos-mig=1g.10gb"], script);
    let kept = cluster.sbatch(&["-w", "n1", "--gpuos-mig=1g.10gb"], script);
    let array = cluster.sbatch(&["-w", "n1", "--gpuos-mig=1g.10gb", "--array=0-1"], script);
    let tasks = [0, 1].map(|task| format!("{array}_{task}"));
    for job in [pinned, kept] {
        cluster.until("the job is held and says why", || {
            let [state, priority, comment] = shown(&cluster, job);
            let ended = ["CANCELLED", "FAILED", "COMPLETED"].contains(&&state[..]);
            assert!(!ended, "{state}\n{}", cluster.show(job));
            let says = comment.contains("gpuos: held by node n1: ");
            (state == "PENDING" && priority == "0" && says).then_some(())
        });
    }
    // Neither is a task of an array, whose others wait or are held, too.
    cluster.until("the tasks are held", || {
        let held = |task: &String| shown(&cluster, task)[1] == "0";
        tasks.iter().all(held).then_some(())
    });
    let gpuos = programs().join("gpuos");
    let why = cluster.run(&gpuos.display().to_string(), &["why", &pinned.to_string()]);
    assert!(
        why.contains("held by node n1") && why.contains("it starts when NVIDIA's driver answers"),
        "{why}"
    );
    let log = cluster.lab.gpuosd_state_dir("n1").join("audit.jsonl");
    cluster.until("the audit log", || {
        let log = fs::read_to_string(&log).unwrap_or_default();
        log.contains("is requeued and held").then_some(())
    });
    // Whom an administrator holds stays held.
    let taken = format!("JobId={kept}");
    cluster.update(&[&taken, "AdminComment=ask ann"]);

    fs::rename(&away, &library).expect("the library comes back");
    let text = cluster.lab.wait_output(pinned, "end=", LIMIT);
    let text = text.unwrap_or_else(|error| panic!("{error}{}", cluster.report("gpuos")));
    assert!(text.contains("device=MIG-"), "{text}");
    for task in tasks {
        cluster.until("the tasks have run", || {
            let text = cluster.run("scontrol", &["show", "job", &task]);
            text.contains("JobState=COMPLETED").then_some(())
        });
    }
    let [state, priority, comment] = shown(&cluster, kept);
    assert_eq!(
        [&state[..], &priority, &comment],
        ["PENDING", "0", "ask ann"]
    );
    cluster.run("scontrol", &["release", &kept.to_string()]);
    let text = cluster.lab.wait_output(kept, "end=", LIMIT);
    assert!(text.is_ok_and(|text| text.contains("device=MIG-")));
    cluster.no_complaints();
}
