//! The recording of decisions in a real slurmctld: it replays bit by bit, outlives slurmctld however
//! that ends, belongs to SlurmUser alone, and can be switched off.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use gpuos_lab::Suite;
use gpuos_placement::record::{By, Event, Outcome, Purpose};
use gpuos_tests::sites::TWO_HALVES;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(recording, contended, two_types, cut_short);

/// The jobs that started by a recorded choice, all of which come out again.
fn started(cluster: &Cluster) -> Vec<u32> {
    let mut jobs = Vec::new();
    let counts = cluster.recording().replay(&mut |step| {
        assert!(step.same, "{:?} now {:?}", step.asked, step.again);
        if step.outcome == Some(Outcome::Taken) && step.asked.purpose == Purpose::Start {
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

/// Which of several equally close places a gang took beside the gangs that ran comes out again, however
/// slurmctld began: the running gangs are recorded.
fn contended(suite: &Suite) {
    let mut setup = Setup::new("contended", suite);
    setup.spec.nodes = 8.into();
    setup.spec.gpuos_toml = Some(TWO_HALVES.into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    // Two leaves of the first half are joined by its uplinks only.
    let other = cluster.start(&["-N2", "-w", "n1,n3", "--gpus-per-node=4"]);
    for what in ["start", "reconfigure", "restart", "kill -9"] {
        match what {
            "start" => {}
            "reconfigure" => cluster.lab.reconfigure().expect("reconfigures"),
            "restart" => cluster.restart_slurmctld(),
            _ => cluster.crash(other),
        }
        cluster.ready();
        let job = cluster.start(&["-N4", "--gpus-per-node=4"]);
        let nodes: Vec<String> = cluster.planned(job).into_keys().collect();
        assert_eq!(nodes, ["n5", "n6", "n7", "n8"], "{what}");
        cluster.cancel(&[job]);
        let mut pick = None;
        let counts = cluster.recording().replay(&mut |step| {
            assert!(step.same, "{what}: {:?} now {:?}", step.asked, step.pick);
            if step.asked.job == job && matches!(step.asked.by, By::Network(_)) {
                pick = step.pick;
            }
        });
        let pick = pick.unwrap_or_else(|| panic!("{what}: no comparison for {job}"));
        assert!(pick.skip > 0 && pick.beside.is_some(), "{what}: {pick:?}");
        assert!(
            counts.compared > 0 && counts.not_compared == 0,
            "{what}: {counts:?}"
        );
    }
    cluster.drained();
}

/// A gang with GPUs of two types, which Slurm alone places, uses the network like any other: it is recorded with
/// all its GPUs, and others keep out of its way.
fn two_types(suite: &Suite) {
    let mut setup = Setup::new("twotypes", suite);
    setup.spec.nodes = 8.into();
    setup.spec.gpuos_toml = Some(TWO_HALVES.into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    let lab = &cluster.lab;
    let line = |kind: &str, gpus: &str| {
        let device = lab.device_dir().join(format!("nvidia{gpus}"));
        let device = device.display();
        format!("NodeName=n[1-8] Name=gpu Type={kind} File={device}\n")
    };
    let both = line("old", "[0-3]") + &line("new", "[4-7]");
    lab.write_conf("gres.conf", &format!("AutoDetect=off\n{both}"))
        .expect("writes");
    lab.edit_slurm_conf(|text| text.replace("gpu:a40:8", "gpu:old:4,gpu:new:4"))
        .expect("writes");
    lab.restart().expect("restarts");
    cluster.ready();
    // The network is laid out for the first job that gpuos places.
    let single = cluster.start(&["--gres=gpu:old:1", "-w", "n8"]);
    cluster.cancel(&[single]);
    // Two leaves of the first half are joined by its uplinks only.
    let gang = cluster.start(&["-N2", "-w", "n1,n3", "--gres=gpu:old:2,gpu:new:2"]);
    let recorded = cluster.until("the gang is recorded", || {
        let recording = cluster.recording();
        let events = recording.segments.iter().flat_map(|s| &s.events);
        let gangs = events.flat_map(|event| match event {
            Event::Gang(gang) => std::slice::from_ref(gang),
            Event::Gangs(gangs) => gangs,
            _ => &[],
        });
        let mut mine = gangs.filter(|one| one.job == gang);
        mine.next_back().map(|gang| gang.nodes.to_vec())
    });
    let nodes: Vec<u32> = recorded.iter().map(|(node, _)| *node).collect();
    let gpus: Vec<Vec<usize>> = recorded.iter().map(|(_, g)| g.iter().collect()).collect();
    assert_eq!(nodes, [0, 2]);
    let show = cluster.show(gang);
    assert!(
        show.contains("GRES=gpu:old:2(IDX:0-1),gpu:new:2(IDX:4-5)"),
        "{show}"
    );
    assert_eq!(gpus, [[0, 1, 4, 5], [0, 1, 4, 5]]);
    let job = cluster.start(&["-N4", "--gpus-per-node=old:2"]);
    let nodes: Vec<String> = cluster.planned(job).into_keys().collect();
    assert_eq!(nodes, ["n5", "n6", "n7", "n8"]);
    cluster.cancel(&[job, gang]);
    cluster.drained();
}

/// Whoever owns the ring cuts it short while slurmctld stores into it: slurmctld lives, places jobs and says
/// what happened, and records again from the next reconfigure on.
fn cut_short(suite: &Suite) {
    let mut setup = Setup::new("cut", suite);
    setup.spec.gpuos_toml = Some(String::new());
    let Some(mut cluster) = setup.steered() else {
        return;
    };
    // Its own word on the recording.
    cluster.expects_errors = true;
    cluster.start(&["--gres=gpu:1"]);
    for (left, times) in [(5000, 1), (0, 2)] {
        let pid = cluster.lab.slurmctld_pid();
        let ring = std::fs::File::options().write(true).open(cluster.ring());
        ring.and_then(|ring| ring.set_len(left)).expect("is cut");
        for _ in 0..3 {
            let job = cluster.start(&["--gres=gpu:1"]);
            cluster.planned(job);
            cluster.cancel(&[job]);
        }
        assert_eq!(cluster.lab.slurmctld_pid(), pid, "{left} bytes left");
        let log = cluster.lab.slurmctld_log();
        let told = log.matches("was cut short by somebody else").count();
        assert_eq!(told, times, "{left} bytes left");
        cluster.lab.reconfigure().expect("reconfigures");
        cluster.ready();
        let job = cluster.start(&["--gres=gpu:2"]);
        let mut told = started(&cluster);
        told.dedup();
        assert_eq!(told, [job], "{left} bytes left");
        cluster.cancel(&[job]);
    }
    cluster.drained();
}
