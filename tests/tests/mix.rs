//! The mix of jobs is learned in a real slurmctld, as jobs arrive and again after a restart, and
//! what is decided by it replays bit by bit. With it come the prices of scarce GPU models.

use gpuos_lab::{NodeGroup, Suite};
use gpuos_placement::record::Event;
use gpuos_tests::suites::left_to_soak;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(learning, scarce);

/// How often the planner began to go by another mix, in what is recorded of it.
fn learned(cluster: &Cluster) -> usize {
    let recording = cluster.recording();
    let events = recording.segments.iter().flat_map(|s| &s.events);
    events.filter(|e| matches!(e, Event::Learned(_))).count()
}

fn learning(suite: &Suite) {
    if left_to_soak("learning the mix of jobs", suite) {
        return;
    }
    let mut setup = Setup::new("mix", suite);
    setup.spec.gpuos_toml = Some(String::new());
    let Some(cluster) = setup.steered() else {
        return;
    };
    let jobs = |count: usize| {
        let script = "sleep 0.1";
        let submit = |nth| cluster.sbatch(&[["--gres=gpu:1", "--gres=gpu:2"][nth % 2]], script);
        (0..count).map(submit).collect::<Vec<_>>()
    };
    let first = jobs(24);
    first
        .iter()
        .for_each(|job| _ = cluster.wait(*job, &["COMPLETED"]));
    cluster.until("a mix of jobs", || {
        jobs(2);
        (learned(&cluster) > 0).then_some(())
    });
    for what in ["reconfigure", "restart"] {
        let running = cluster.start(&["--gres=gpu:1"]);
        match what {
            "reconfigure" => cluster.lab.reconfigure().expect("reconfigures"),
            _ => cluster.restart_slurmctld(),
        }
        cluster.ready();
        let next = cluster.start(&["--gres=gpu:2"]);
        cluster.planned(next);
        cluster.cancel(&[running, next]);
    }
    let mut decided = 0;
    let counts = cluster.recording().replay(&mut |step| {
        assert!(step.same, "{:?} now {:?}", step.asked, step.again);
        decided += u32::from(step.planner.learned().is_some());
    });
    assert!(counts.replayed > 20 && decided > 0, "{counts:?}, {decided}");
    cluster.drained();
    cluster.no_complaints();
}

/// Jobs that can run on any GPU model stay off the one that others name, once the mix is learned; they take
/// it where nothing else is free, and never wait for the other.
fn scarce(suite: &Suite) {
    if left_to_soak("prices of scarce GPUs", suite) {
        return;
    }
    let mut setup = Setup::new("scarce", suite);
    setup.spec.node_type = "a100-pairs-4".into();
    setup.spec.more_nodes = vec![NodeGroup {
        names: vec!["n3".into(), "n4".into()],
        node_type: "pairs-8".into(),
    }];
    setup.spec.gpuos_toml = Some(String::new());
    let Some(cluster) = setup.steered() else {
        return;
    };
    const ANY: &[&str] = &["--gres=gpu:1"];
    const NAMED: &[&str] = &["--gres=gpu:a100:1"];
    let node = |job: u32| cluster.planned(job).into_keys().next().expect("a node");
    let rare = |node: &String| ["n1", "n2"].contains(&node.as_str());
    // Nothing is known yet: the smaller node fits best.
    let before = cluster.start(ANY);
    assert_eq!(node(before), "n1");
    cluster.cancel(&[before]);
    // Both kinds among the first jobs, of which the first mix is made.
    let some = |count: usize| {
        for nth in 0..count {
            cluster.sbatch([ANY, NAMED][nth % 2], "true");
        }
    };
    some(24);
    cluster.until("a mix of jobs", || {
        some(2);
        (learned(&cluster) > 0).then_some(())
    });
    cluster.drained();
    // With a choice: not on the model that half of the jobs name. (Jobs of several GPUs go by bandwidth first.)
    for _ in 0..3 {
        let node = node(cluster.start(ANY));
        assert!(!rare(&node), "{node}");
    }
    assert!(rare(&node(cluster.start(NAMED))));
    let others = cluster.sbatch(&["--array=1-13", "--gres=gpu:a40:1"], "sleep 600");
    let id = others.to_string();
    cluster.until("thirteen jobs run", || {
        let args = ["-h", "-r", "-j", &id, "-t", "R", "-o", "%A"];
        (cluster.run("squeue", &args).lines().count() == 13).then_some(())
    });
    // All sixteen of the common model are in use: a job with a choice takes the scarce one at once.
    for _ in 0..2 {
        assert!(rare(&node(cluster.start(ANY))));
    }
    let counts = cluster.recording().replay(&mut |step| {
        assert!(step.same, "{:?} now {:?}", step.asked, step.again);
    });
    assert!(counts.replayed > 20, "{counts:?}");
    cluster.drained();
    cluster.no_complaints();
}
