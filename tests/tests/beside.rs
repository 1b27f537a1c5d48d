//! Where gpuos would have a job on nodes that have the GPUs and lack something else, and others have both: nobody is preempted there, no start is
//! put off, and a job's tasks find their GPUs. What stock Slurm does is the measure.

use gpuos_lab::{Suite, field};
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(
    an_offer_preempts_nobody_while_others_have_room,
    a_forecast_is_no_later_than_that_of_stock,
    tasks_find_their_gpus_on_nodes_that_are_half_full
);

/// Two nodes, `requeue` below `high`.
fn lab(name: &str, suite: &Suite) -> Option<Cluster> {
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = 2.into();
    setup.spec.slurm_conf_extra.extend([
        "PreemptType=preempt/partition_prio".into(),
        "PreemptMode=REQUEUE".into(),
        "PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP".into(),
        "PartitionName=requeue Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE MaxTime=INFINITE State=UP".into(),
    ]);
    setup.steered()
}

fn cpus(cluster: &Cluster, node: &str) -> u32 {
    let shown = cluster.run("scontrol", &["show", "node", node]);
    let all = field(&shown, "CPUTot").and_then(|text| text.parse().ok());
    all.expect("a number of CPUs")
}

/// All CPUs of a node but two are taken, and four GPUs of both.
fn crowd(cluster: &Cluster, node: &str, partition: &str) -> Vec<u32> {
    let most = format!("-c{}", cpus(cluster, node) - 2);
    let part = format!("--partition={partition}");
    let other = match node {
        "n1" => "-wn2",
        _ => "-wn1",
    };
    let node = format!("-w{node}");
    let half = "--gres=gpu:4";
    vec![
        cluster.start(&[&part, &node, "-N1", "-n1", &most, half, "--gpuos=off"]),
        cluster.start(&["--partition=high", other, "-N1", "-c2", half]),
    ]
}

/// Of two nodes with as many GPUs free the one that has CPUs, too.
const ROOMY: [(&str, &str); 2] = [("n1", "n2"), ("n2", "n1")];

fn an_offer_preempts_nobody_while_others_have_room(suite: &Suite) {
    let Some(cluster) = lab("beside-preempts", suite) else {
        return;
    };
    for request in [
        &["--gpus=4", "-n16"][..],
        &["-n4", "-c4", "--gpus-per-task=1"],
    ] {
        for (crowded, roomy) in ROOMY {
            let mut jobs = crowd(&cluster, crowded, "requeue");
            let high = cluster.start(&[&["--partition=high"], request].concat());
            let shown = cluster.show(high);
            assert_eq!(field(&shown, "NodeList"), Some(roomy), "{request:?}");
            let state = cluster.lab.job_state(jobs[0]).expect("it is known");
            assert_eq!(state, "RUNNING", "{request:?}");
            jobs.push(high);
            cluster.cancel(&jobs);
            cluster.drained();
        }
    }
}

fn a_forecast_is_no_later_than_that_of_stock(suite: &Suite) {
    let Some(cluster) = lab("beside-forecast", suite) else {
        return;
    };
    let script = cluster.script("when", "true");
    for (crowded, roomy) in ROOMY {
        let jobs = crowd(&cluster, crowded, "high");
        for request in [
            &["--gpus=4", "-n16"][..],
            &["-n4", "-c4", "--gpus-per-task=1"],
        ] {
            let args = [
                &["--test-only", "--partition=high"],
                request,
                &[&script[..]],
            ]
            .concat();
            let out = cluster.output("sbatch", &args).expect("sbatch runs");
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            let wanted = format!(" on nodes {roomy}");
            assert!(said.contains(&wanted), "{request:?}: {said}");
        }
        cluster.cancel(&jobs);
        cluster.drained();
    }
}

fn tasks_find_their_gpus_on_nodes_that_are_half_full(suite: &Suite) {
    let Some(cluster) = lab("beside-tasks", suite) else {
        return;
    };
    for node in ["-wn1", "-wn2"] {
        cluster.start(&[node, "-N1", "-c1", "--gres=gpu:4"]);
    }
    for request in [
        &["-N2", "-n6", "--gpus-per-task=1", "--cpus-per-gpu=4"][..],
        &["-N2", "-n6", "--gpus-per-task=1"],
        &["-N2", "-n4", "--gpus-per-task=1", "--cpus-per-gpu=2"],
    ] {
        let job = cluster.sbatch(request, "srun sh -c 'test -n \"$CUDA_VISIBLE_DEVICES\"'");
        let state = cluster.wait(job, &["COMPLETED", "FAILED"]);
        assert_eq!(state, "COMPLETED", "{request:?}: {}", cluster.show(job));
    }
}
