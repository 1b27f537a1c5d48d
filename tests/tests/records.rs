//! The recording of decisions in a real slurmctld: it replays bit by bit, outlives slurmctld however
//! that ends, belongs to SlurmUser alone, and can be switched off.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use gpuos_core::record::Outcome;
use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(recording);

/// The jobs that started by a recorded choice, all of which come out again.
fn started(cluster: &Cluster) -> Vec<u32> {
    let mut jobs = Vec::new();
    let counts = cluster.recording().replay(&mut |step| {
        assert!(step.same, "{:?} now {:?}", step.asked, step.again);
        if step.outcome == Some(Outcome::Taken) {
            jobs.push(step.asked.job);
        }
    });
    assert!(counts.replayed >= jobs.len() as u64);
    jobs
}

fn recording(suite: &Suite) {
    let mut setup = Setup::new("records", suite);
    setup.spec.gpuos_toml = Some(String::new());
    let Some(cluster) = setup.steered() else {
        return;
    };
    let mut jobs = vec![
        cluster.start(&["--gres=gpu:1"]),
        cluster.start(&["--gres=gpu:2"]),
        cluster.start(&["--gpus=3", "-N2"]),
    ];
    let meta = std::fs::metadata(cluster.ring()).expect("the ring");
    assert_eq!((meta.uid(), meta.permissions().mode() & 0o777), (0, 0o600));
    let size = meta.len();
    for what in ["reconfigure", "restart", "kill -9"] {
        match what {
            "reconfigure" => cluster.lab.reconfigure().expect("reconfigures"),
            "restart" => cluster.restart_slurmctld(),
            _ => cluster.crash(jobs[0]),
        }
        cluster.ready();
        jobs.push(cluster.start(&["--gres=gpu:1"]));
        let told = started(&cluster);
        for job in &jobs {
            assert!(told.contains(job), "{what}: {job} is not among {told:?}");
        }
    }
    // More room asked for: a new file, and the old decisions are gone with the old one.
    cluster
        .lab
        .write_conf("gpuos.toml", "[slurm]\nrecords = 20000\n")
        .expect("writes");
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
    let last = cluster.start(&["--gres=gpu:2"]);
    assert_eq!(started(&cluster), [last]);
    assert!(std::fs::metadata(cluster.ring()).expect("the ring").len() > size);
    // None asked for.
    cluster
        .lab
        .write_conf("gpuos.toml", "[slurm]\nrecords = 0\n")
        .expect("writes");
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
    let last = cluster.start(&["--gres=gpu:2"]);
    cluster.planned(last);
    assert!(!cluster.ring().exists());
    // The lab leaves none behind either.
    cluster.lab.write_conf("gpuos.toml", "").expect("writes");
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
    cluster.until("a new ring", || cluster.ring().exists().then_some(()));
    cluster.drained();
    let file = cluster.ring();
    drop(cluster);
    assert!(!file.exists(), "{}", file.display());
}
