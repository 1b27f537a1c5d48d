//! The mix of jobs is learned in a real slurmctld, as jobs arrive and again after a restart, and
//! what is decided by it replays bit by bit.

use gpuos_core::record::Event;
use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(learning);

/// How often the planner began to go by another mix, in what is recorded of it.
fn learned(cluster: &Cluster) -> usize {
    let recording = cluster.recording();
    let events = recording.segments.iter().flat_map(|s| &s.events);
    events.filter(|e| matches!(e, Event::Learned(_))).count()
}

fn learning(suite: &Suite) {
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
