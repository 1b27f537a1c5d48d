//! A job that starts again comes back to the nodes on which its checkpoints lie, as their `Extra` says; whatever stands there, the same
//! jobs start.

use std::collections::BTreeSet;

use gpuos_lab::{Suite, field};
use gpuos_model::hostlist::expand;
use gpuos_tests::plugins::programs;
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

use crate::checkpoint::{committed, counter, until};

per_suite!(
    jobs_come_back_to_their_checkpoints,
    a_requeued_job_that_is_let_go_starts_at_once,
    the_daemons_tell_where_checkpoints_are,
);

/// The forms of a job on three nodes: with GPUs, which are planned, and without, which Slurm places.
const FORMS: [&[&str]; 3] = [
    &["--gpus-per-node=8"],
    &["--ntasks-per-node=1"],
    &["--ntasks-per-node=1", "--exclusive"],
];

/// The nodes of a job.
pub fn nodes(cluster: &Cluster, job: u32) -> Vec<String> {
    let show = cluster.show(job);
    expand(field(&show, "NodeList").unwrap_or_default()).expect("Slurm's own")
}

/// What stands in the `Extra` of nodes; of all others nothing does.
pub fn publish(cluster: &Cluster, on: &[&str], extra: &str) {
    for node in cluster.lab.spec().node_names() {
        let text = if on.contains(&&node[..]) { extra } else { "" };
        cluster.update(&[&format!("NodeName={node}"), &format!("Extra={text}")]);
    }
}

/// Starts a job anew, and gives its nodes.
fn again(cluster: &Cluster, job: u32) -> Vec<String> {
    again_without(cluster, job, "")
}

/// The same, where it may not have some nodes.
fn again_without(cluster: &Cluster, job: u32, nodes_out: &str) -> Vec<String> {
    let id = job.to_string();
    cluster.run("scontrol", &["requeuehold", &id]);
    cluster.wait(job, &["PENDING"]);
    // A slurmd refuses a start in the second in which it ended the one before ("Job credential revoked").
    let excluded = format!("ExcNodeList={nodes_out}");
    cluster.update(&[&format!("JobId={id}"), "StartTime=now+2", &excluded]);
    cluster.run("scontrol", &["release", &id]);
    cluster.wait(job, &["RUNNING"]);
    nodes(cluster, job)
}

fn why(cluster: &Cluster, job: u32) -> String {
    let gpuos = programs().join("gpuos");
    cluster.run(gpuos.to_str().expect("UTF-8"), &["why", &job.to_string()])
}

fn jobs_come_back_to_their_checkpoints(suite: &Suite) {
    let mut setup = Setup::new("held", suite);
    setup.spec.nodes = 6.into();
    setup.spec.gpuos_toml = Some("[checkpoint]\nenabled = true\n".into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    for form in FORMS {
        let blocker = cluster.start(&["-N3", "--exclusive", "-w", "n[1-3]"]);
        let job = cluster.start(&[form, &["-N3", "--requeue", "--gpuos-checkpoint=10m"]].concat());
        assert_eq!(nodes(&cluster, job), ["n4", "n5", "n6"], "{form:?}");
        cluster.cancel(&[blocker]);
        comes_back(&cluster, job, form);
        cluster.cancel(&[job]);
        cluster.drained();
    }
    no_job_waits_for_it(&cluster);
    cluster.no_complaints();
}

/// By a slurmctld that looks for work by itself every hour.
fn a_requeued_job_that_is_let_go_starts_at_once(suite: &Suite) {
    let mut setup = Setup::new("let-go", suite);
    setup.spec.job_submit = true;
    setup.spec.gpuos_toml = Some("[checkpoint]\nenabled = true\n".into());
    setup.spec.slurm_conf_extra = vec![
        "SchedulerParameters=batch_sched_delay=3600,sched_interval=3600,bf_interval=3600".into(),
        "KillWait=1".into(),
    ];
    let Some(cluster) = setup.steered() else {
        return;
    };
    let job = cluster.start(&["-N2", "--requeue", "--gpuos-checkpoint=10m"]);
    let id = job.to_string();
    for _ in 0..2 {
        cluster.run("scontrol", &["requeue", &id]);
        cluster.wait(job, &["PENDING"]);
        // The second in which credentials were revoked is over.
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert_eq!(cluster.wait(job, &["PENDING", "RUNNING"]), "PENDING");
        cluster.update(&[&format!("JobId={id}"), "StartTime=now"]);
        cluster.wait(job, &["RUNNING"]);
    }
    cluster.cancel(&[job]);
    cluster.no_complaints();
}

fn comes_back(cluster: &Cluster, job: u32, form: &[&str]) {
    // Nobody says anything, or says it of others: as ever.
    assert_eq!(again(cluster, job), ["n1", "n2", "n3"], "{form:?}");
    assert!(
        !why(cluster, job).contains("checkpoints"),
        "{}",
        why(cluster, job)
    );
    let garbage = format!("[gpuos:1 ckpt={job},x:{job},{job}:,0:9,{job}1:5,:{job}:] ckpt={job}:5");
    publish(cluster, &["n4", "n5", "n6"], &garbage);
    assert_eq!(again(cluster, job), ["n1", "n2", "n3"], "{form:?}");
    // They hold it.
    let held = format!("rack 7 [gpuos:1 zone=b ckpt=7000:1,{job}:3]");
    publish(cluster, &["n4", "n5", "n6"], &held);
    assert_eq!(again(cluster, job), ["n4", "n5", "n6"], "{form:?}");
    let said = why(cluster, job);
    assert!(
        said.contains("All 3 nodes held checkpoints of it"),
        "{said}"
    );
    // One of them is gone, and then one is full.
    cluster.update(&["NodeName=n5", "State=DRAIN", "Reason=test"]);
    assert_eq!(again(cluster, job), ["n1", "n4", "n6"], "{form:?}");
    let said = why(cluster, job);
    assert!(
        said.contains("2 of its 3 nodes held checkpoints of it"),
        "{said}"
    );
    cluster.update(&["NodeName=n5", "State=RESUME"]);
    let full = cluster.start(&["--exclusive", "-w", "n5"]);
    assert_eq!(again(cluster, job), ["n1", "n4", "n6"], "{form:?}");
    cluster.cancel(&[full]);
    // What is left of it is gone: so is the note.
    publish(cluster, &[], "");
    assert_eq!(again(cluster, job), ["n1", "n2", "n3"], "{form:?}");
    assert!(
        !why(cluster, job).contains("checkpoints"),
        "{}",
        why(cluster, job)
    );
}

/// A job that fits only elsewhere, and one whose checkpoints lie on nodes that it may not have, start all the same.
fn no_job_waits_for_it(cluster: &Cluster) {
    let options = ["--requeue", "--gpuos-checkpoint=10m"];
    for form in [
        &["-N2", "-c32"][..],
        &["-N2", "--gpus-per-node=8"],
        &["-n40"],
    ] {
        let job = cluster.start(&[form, &options].concat());
        let before = nodes(cluster, job).len();
        let busy = cluster.start(&["-N2", "-c8", "-w", "n5,n6"]);
        let held = format!("[gpuos:1 ckpt={job}:900]");
        publish(cluster, &["n5", "n6"], &held);
        let now = again(cluster, job);
        assert_eq!(now.len(), before, "{form:?}: {now:?}");
        cluster.cancel(&[busy]);
        let now: BTreeSet<String> = again_without(cluster, job, "n5,n6").into_iter().collect();
        assert!(
            !now.contains("n5") && !now.contains("n6"),
            "{form:?}: {now:?}"
        );
        cluster.cancel(&[job]);
        cluster.drained();
    }
    publish(cluster, &[], "");
}

fn the_daemons_tell_where_checkpoints_are(suite: &Suite) {
    let mut setup = Setup::simulated("telling", suite, 2);
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    let Some(cluster) = setup.steered() else {
        return;
    };
    let script = format!("srun -l {} 100000 0.02", counter());
    let options = ["-N1", "-wn2", "--gpuos-checkpoint=1s", "--gpus-per-node=1"];
    let job = cluster.sbatch(&options, &script);
    until(&cluster, "a checkpoint", || committed(&cluster, "n2", job));
    let extra = |node: &str| cluster.run("scontrol", &["show", "node", node]);
    let word = format!("[gpuos:1 ckpt={job}:1]");
    until(&cluster, "the node names the job", || {
        extra("n2").contains(&word).then_some(())
    });
    assert!(!extra("n1").contains("ckpt="), "{}", extra("n1"));
}
