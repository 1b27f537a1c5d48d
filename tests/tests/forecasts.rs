//! What is kept for a job that waits: the nodes that have least to give meanwhile, from the moment that
//! stock Slurm names. On every release, with the same plugins.

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(kept);

fn kept(suite: &Suite) {
    let mut setup = Setup::new("kept", suite);
    setup.spec.nodes = 8.into();
    let Some(cluster) = setup.steered() else {
        return;
    };
    // Until the one time each node is taken in part, until the other four are taken whole.
    let (soon, late) = (in_minutes(&cluster, 20), in_minutes(&cluster, 40));
    for (node, gpus, end) in [
        ("n1", 1, &soon),
        ("n2", 1, &soon),
        ("n3", 6, &soon),
        ("n4", 5, &soon),
        ("n5", 8, &late),
        ("n6", 8, &late),
        ("n7", 8, &late),
        ("n8", 8, &late),
    ] {
        let gres = format!("--gres=gpu:{gpus}");
        let job = cluster.start(&["-w", node, &gres, "--time=60"]);
        let (id, end) = (format!("JobId={job}"), format!("EndTime={end}"));
        cluster.run("scontrol", &["update", &id, &end]);
    }
    for (options, nodes) in [
        (vec!["--gres=gpu:8"], "n3"),
        (vec!["-N2", "--gpus-per-node=8"], "n[3-4]"),
    ] {
        let stock = forecast(&cluster, &[&options[..], &["--gpuos=off"]].concat());
        let ours = forecast(&cluster, &options);
        assert_eq!((&*ours.0, &*ours.1), (nodes, &*soon), "{options:?}");
        assert_eq!(stock.1, soon, "{options:?}: the forecast of stock Slurm");
    }
    // A gang that is a large part of the cluster is left to stock Slurm.
    for (nodes, start) in [("-N3", &soon), ("-N5", &late)] {
        let gang = [nodes, "--gpus-per-node=8"];
        let stock = forecast(&cluster, &[&gang[..], &["--gpuos=off"]].concat());
        let ours = forecast(&cluster, &gang);
        assert_eq!((&ours, &ours.1), (&stock, start), "{nodes}");
    }
    // Of a job that is beside nobody for good backfill asks once only, and it is planned all the same.
    let alone = cluster.sbatch(&["--gres=gpu:8", "--time=30"], "sleep 600");
    let id = format!("JobId={alone}");
    cluster.run("scontrol", &["update", &id, "OverSubscribe=no"]);
    planned(&cluster, alone);
    cluster.cancel(&[alone]);
    // Beside what is kept, a job starts that will last longer.
    let waits = cluster.sbatch(&["-N2", "--gpus-per-node=8", "--time=30"], "sleep 600");
    planned(&cluster, waits);
    let beside = cluster.start(&["--gres=gpu:7", "--time=30"]);
    assert!(
        cluster
            .planned(beside)
            .keys()
            .all(|node| node.as_str() < "n3")
    );
    assert_eq!(cluster.lab.job_state(waits).expect("known"), "PENDING");
    cluster.cancel(&[waits]);
    cluster.drained();
}

/// Nodes and start that backfill plans for a job, which is cancelled then.
fn forecast(cluster: &Cluster, options: &[&str]) -> (String, String) {
    let job = cluster.sbatch(&[options, &["--time=30"]].concat(), "sleep 600");
    let plan = planned(cluster, job);
    cluster.cancel(&[job]);
    plan
}

fn planned(cluster: &Cluster, job: u32) -> (String, String) {
    cluster.until("backfill plans the job", || {
        let text = cluster.show(job);
        let [nodes, start] = ["SchedNodeList", "StartTime"]
            .map(|key| gpuos_lab::field(&text, key).unwrap_or_default().to_string());
        (nodes.contains('n') && start != "Unknown").then_some((nodes, start))
    })
}

/// A time as Slurm writes it.
fn in_minutes(cluster: &Cluster, minutes: u32) -> String {
    let time = format!("{minutes} minutes");
    let time = cluster.run("date", &["-d", &time, "+%Y-%m-%dT%H:%M:%S"]);
    time.trim().to_string()
}
