//! Objectives and profiles choose the node type, by partition, in a cluster with two kinds of nodes.

use gpuos_lab::{NodeGroup, Suite};
use gpuos_placement::explain::Note;
use gpuos_tests::sites::TWO_PRICES;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(objectives);

/// With the site of two prices: n3 and n4 are DGX H100.
const TOML: &str = r#"
[[nodes]]
match = "n3"
type = "fast"

[[nodes]]
match = "n4"
type = "fast"
gpu-cap-watts = 350

[[policy.rule]]
partition = "price"
objectives = { cost = 100 }

[[policy.rule]]
partition = "speed"
objectives = { throughput = 100 }
placement = "spread"

[[policy.rule]]
partition = "fair"
objectives = { fairness = 100 }

[[policy.rule]]
qos = "none"
objectives = { energy = 100 }
"#;

fn objectives(suite: &Suite) {
    let mut setup = Setup::new("objectives", suite);
    setup.spec.node_type = "l40s-8".into();
    setup.spec.more_nodes = vec![NodeGroup {
        names: vec!["n3".into(), "n4".into()],
        node_type: "dgx-h100".into(),
    }];
    setup.spec.gpuos_toml = Some([TWO_PRICES, TOML].concat());
    setup
        .spec
        .slurm_conf_extra
        .push("SlurmctldDebug=debug".into());
    let partition =
        |name: &str| format!("PartitionName={name} Nodes=ALL MaxTime=INFINITE State=UP");
    setup.spec.slurm_conf_extra.extend([
        "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP".into(),
        partition("price"),
        partition("speed"),
        partition("fair"),
    ]);
    let Some(mut cluster) = setup.steered() else {
        return;
    };
    // It says that names of QOS cannot be had.
    cluster.expects_errors = true;
    by_partition(&cluster);
    by_profile(&cluster);
    by_share(&cluster);
    never_waits(&cluster);
    remembered(&cluster);
    let log = cluster.lab.slurmctld_log();
    assert_eq!(
        log.matches("with qos = in gpuos.toml holds for no job")
            .count(),
        1,
        "{}",
        cluster.report("gpuos")
    );
}

/// Where a job runs, and its note.
fn place(cluster: &Cluster, options: &[&str]) -> (String, Note) {
    let job = cluster.start(options);
    let node = cluster.planned(job).into_keys().next().expect("a node");
    let note = cluster.note(job).expect("a note");
    cluster.cancel(&[job]);
    cluster.drained();
    (node, note)
}

/// The partition decides, also between places of unlike bandwidth.
fn by_partition(cluster: &Cluster) {
    for gpus in ["--gres=gpu:1", "--gres=gpu:4"] {
        let (node, note) = place(cluster, &["-p", "price", "--gpuos-profile=compute", gpus]);
        assert!(["n1", "n2"].contains(&node.as_str()), "{gpus}: {node}");
        let worth = note.worth.expect("what decided");
        assert_eq!(worth.objectives.to_string(), "cost=100");
        assert!(
            worth.percent > 20 && ["n3", "n4"].contains(&worth.than.as_str()),
            "{worth:?}"
        );
        // The node with capped GPUs is slower.
        let (node, note) = place(cluster, &["-p", "speed", "--gpuos-profile=compute", gpus]);
        assert_eq!(node, "n3", "{gpus}");
        assert_eq!(
            note.worth.expect("what decided").objectives.to_string(),
            "throughput=100"
        );
    }
    // Of several partitions the one at hand counts, and `placement` of its rule too.
    let first = cluster.start(&["-p", "speed", "--gres=gpu:1"]);
    let (node, _) = place(cluster, &["-p", "price,all", "--gres=gpu:1"]);
    assert!(["n1", "n2"].contains(&node.as_str()), "{node}");
    cluster.cancel(&[first]);
    cluster.drained();
}

/// A profile is enough; without it, and without objectives, nothing is weighed.
fn by_profile(cluster: &Cluster) {
    let (node, note) = place(
        cluster,
        &["-p", "all", "--gres=gpu:1", "--gpuos-profile=compute"],
    );
    assert_eq!(node, "n3");
    assert!(note.worth.is_some());
    let (_, note) = place(cluster, &["-p", "all", "--gres=gpu:1"]);
    assert_eq!(note.worth, None);
}

/// The end of a job is remembered with the time that it ran, if it ended by itself.
fn remembered(cluster: &Cluster) {
    let ended = cluster.sbatch(&["--gres=gpu:1", "-J", "short"], "sleep 2");
    let failed = cluster.sbatch(&["--gres=gpu:1", "-J", "fails"], "exit 3");
    cluster.wait(ended, &["COMPLETED"]);
    cluster.wait(failed, &["FAILED"]);
    let line = format!("job {ended}: ");
    let seconds = cluster.until("the end of the job in the log", || {
        let log = cluster.lab.slurmctld_log();
        let end = log
            .lines()
            .find(|one| one.contains(&line) && one.ends_with("a run of short"))?;
        let (_, rest) = end.split_once(&line)?;
        rest.split_once(" s,")?.0.parse::<u32>().ok()
    });
    assert!((2..600).contains(&seconds), "{seconds}");
    assert!(!cluster.lab.slurmctld_log().contains("a run of fails"));
    let from_before = "what earlier runs taught is remembered: 1 job name";
    assert!(!cluster.lab.slurmctld_log().contains(from_before));
    cluster.restart_slurmctld();
    cluster.until("what an earlier slurmctld recorded of runs", || {
        let log = cluster.lab.slurmctld_log();
        log.contains(from_before).then_some(())
    });
}

/// Who is far below the highest priority leaves the fast nodes to others.
fn by_share(cluster: &Cluster) {
    let job = ["-p", "fair", "--gres=gpu:1"];
    let (_, note) = place(cluster, &[&job[..], &["--priority=1000000"]].concat());
    assert_eq!(note.worth, None, "nobody has had more");
    let (node, note) = place(cluster, &[&job[..], &["--priority=1"]].concat());
    assert!(["n1", "n2"].contains(&node.as_str()), "{node}");
    assert_eq!(
        note.worth.expect("what decided").objectives.to_string(),
        "fairness=100"
    );
}

/// Jobs start on what is left, whatever it is worth to them.
fn never_waits(cluster: &Cluster) {
    let jobs: Vec<u32> = (0..4)
        .map(|_| cluster.start(&["-p", "price", "--gres=gpu:8"]))
        .collect();
    cluster.cancel(&jobs);
    cluster.drained();
    let counts = cluster.recording().replay(&mut |step| {
        assert!(step.same, "job {}: {:?}", step.asked.job, step.again);
    });
    assert!(counts.replayed >= jobs.len() as u64, "{counts:?}");
}
