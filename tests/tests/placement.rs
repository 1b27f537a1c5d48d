//! Where jobs go: GPUs with all links, pairs kept whole, gangs in one leaf, waiting or not, and
//! predictions that come true. On every release, with the same plugins.

use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpuos_lab::{Cgroup, LabSpec, Suite};
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::sites::TWO_HALVES;
use gpuos_tests::{Cluster, Setup, per_suite, show, skip};

per_suite!(pairs, gangs, uplinks, devices);

/// Linked pairs of a `pairs-8` node that a set of GPUs holds whole.
fn whole_pairs(gpus: &[usize]) -> usize {
    let first = gpus.iter().filter(|gpu| *gpu % 2 == 0);
    first.filter(|gpu| gpus.contains(&(**gpu + 1))).count()
}

fn pairs(suite: &Suite) {
    let Some(cluster) = Setup::new("pairs", suite).steered() else {
        return;
    };
    linked(&cluster);
    unbroken(&cluster);
    switched_off(&cluster);
    no_stale_note(&cluster);
}

/// GPUs with all links between them, on an empty node and beside other jobs.
fn linked(cluster: &Cluster) {
    for (options, count) in [
        (vec!["--gres=gpu:2"], 2),
        (vec!["--gres=gpu:a40:2"], 2),
        (vec!["-N1", "--gpus-per-node=4"], 4),
        (vec!["-N1", "--gpus=2"], 2),
        (vec!["-N1", "--gpus=6"], 6),
    ] {
        let job = cluster.start(&options);
        let gpus = cluster.planned(job);
        assert_eq!(gpus.len(), 1, "{options:?}: {gpus:?}");
        for set in gpus.values() {
            assert_eq!(set.len(), count, "{options:?}");
            assert_eq!(whole_pairs(set), count / 2, "{options:?} got {set:?}");
        }
        if count <= 4 {
            // One socket, and cores of that socket.
            let set = gpus.values().next().expect("a node");
            assert!(set.iter().all(|gpu| gpu / 4 == set[0] / 4), "{set:?}");
            let sockets = show::job_sockets(&cluster.show(job), 32);
            assert!(sockets.values().all(|s| *s == [set[0] / 4]), "{sockets:?}");
        }
        cluster.cancel(&[job]);
    }
    cluster.drained();
}

/// One GPU at a time breaks no pair that a waiting job of two needs.
fn unbroken(cluster: &Cluster) {
    let wide = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
    let one = cluster.start(&["--gres=gpu:1", "-w", "n1"]);
    let other = cluster.start(&["--gres=gpu:1", "-w", "n1"]);
    let (first, second) = (
        cluster.planned(one)["n1"][0],
        cluster.planned(other)["n1"][0],
    );
    assert_eq!(first / 2, second / 2, "two single GPUs broke two pairs");
    // Two pairs are left whole: two jobs of two find them.
    for _ in 0..2 {
        let pair = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
        assert_eq!(whole_pairs(&cluster.planned(pair)["n1"]), 1);
    }
    // A pair given back whole stays whole beside a single GPU that left a hole.
    cluster.cancel(&[one, wide]);
    let again = cluster.start(&["--gres=gpu:1", "-w", "n1"]);
    assert_eq!(cluster.planned(again)["n1"], [first]);
    cluster.drained();
}

/// `--gpuos=off`: no plan, no note; the next job gets one again.
fn switched_off(cluster: &Cluster) {
    let job = cluster.start(&["--gres=gpu:2", "--gpuos=off"]);
    assert_eq!(cluster.note(job), None);
    let next = cluster.start(&["--gres=gpu:2"]);
    let gpus = cluster.planned(next);
    assert!(gpus.values().all(|set| whole_pairs(set) == 1), "{gpus:?}");
    cluster.drained();
}

/// A job that Slurm alone starts anew has no note of its earlier start left, whose nodes it no longer has.
fn no_stale_note(cluster: &Cluster) {
    let job = cluster.start(&["--gres=gpu:2", "--requeue", "--comment=mine"]);
    assert!(cluster.note(job).is_some());
    let lab = &cluster.lab;
    let again = |text| {
        lab.write_conf("gpuos.toml", text).expect("writes");
        lab.reconfigure().expect("reconfigures");
        cluster.ready();
        let id = job.to_string();
        cluster.run("scontrol", &["requeuehold", &id]);
        cluster.wait(job, &["PENDING"]);
        // A slurmd refuses a start in the second in which it ended the one before ("Job credential revoked").
        cluster.update(&[&format!("JobId={id}"), "StartTime=now+2"]);
        cluster.run("scontrol", &["release", &id]);
        cluster.wait(job, &["RUNNING"]);
    };
    again("[slurm]\nsteer = false\n");
    assert_eq!(cluster.note(job), None, "{}", cluster.show(job));
    again("");
    assert!(cluster.note(job).is_some());
    cluster.drained();
}

fn gangs(suite: &Suite) {
    let mut setup = Setup::new("gangs", suite);
    setup.spec.nodes = 16.into();
    let names = setup.spec.node_names();
    setup.spec.topology_conf = Some(LabSpec::tree_topology(&names, 8));
    let Some(cluster) = setup.steered() else {
        return;
    };
    one_leaf(&cluster);
    required_waits(&cluster);
    whole_cluster(&cluster);
    predictions(&cluster);
}

fn leaf(node: &str) -> usize {
    let number: usize = node[1..].parse().expect("n1, n2, …");
    (number - 1) / 8
}

/// Eight nodes in the second leaf, though lower-numbered nodes of the first are free.
fn one_leaf(cluster: &Cluster) {
    let blocker = cluster.start(&["--gres=gpu:1", "-w", "n3"]);
    let gang = cluster.start(&["-N8", "--gpus-per-node=8"]);
    let gpus = cluster.planned(gang);
    assert_eq!(gpus.len(), 8);
    assert!(gpus.keys().all(|node| leaf(node) == 1), "{gpus:?}");
    let note = cluster.note(gang).expect("a note");
    assert_eq!(
        (note.level.as_str(), note.domain.as_str()),
        ("leaf", "leaf2")
    );
    cluster.cancel(&[blocker, gang]);
    cluster.drained();
}

/// Twelve nodes are free, six in each leaf: `preferred` takes eight of them, `required` waits.
fn required_waits(cluster: &Cluster) {
    let ends = ["-w", "n1,n2", "-N2", "--gpus-per-node=8"];
    let first = cluster.start(&ends);
    let second = cluster.start(&["-w", "n9,n10", "-N2", "--gpus-per-node=8"]);
    let gang = ["-N8", "--gpus-per-node=8"];
    let with = |wish: &'static str| [&gang[..], &[wish]].concat();
    let waits = cluster.sbatch(&with("--gpuos-topology=leaf:required"), "sleep 600");
    let id = waits.to_string();
    let reason = cluster.until("squeue shows why the job waits", || {
        let reason = cluster.run("squeue", &["-h", "-j", &id, "-o", "%r"]);
        reason.contains("gpuos").then_some(reason)
    });
    assert!(reason.contains("leaf"), "{reason}");
    let runs = cluster.start(&with("--gpuos-topology=leaf"));
    let gpus = cluster.planned(runs);
    assert_eq!(gpus.len(), 8);
    assert!(gpus.keys().any(|node| leaf(node) == 0) && gpus.keys().any(|node| leaf(node) == 1));
    assert_eq!(cluster.lab.job_state(waits).expect("known"), "PENDING");
    cluster.cancel(&[runs, first]);
    // The first leaf has room now.
    cluster.wait(waits, &["RUNNING"]);
    let gpus = cluster.planned(waits);
    assert!(
        gpus.len() == 8 && gpus.keys().all(|node| leaf(node) == 0),
        "{gpus:?}"
    );
    cluster.cancel(&[waits, second]);
    cluster.drained();
}

/// A gang of all GPUs: nothing is to be chosen, the note names everything all the same. While one GPU is in
/// use it waits, and takes none.
fn whole_cluster(cluster: &Cluster) {
    let gang = ["-N16", "--gpus-per-node=8"];
    let one = cluster.start(&["--gres=gpu:1"]);
    let waits = cluster.sbatch(&gang, "sleep 600");
    let tested = [&gang[..], &["--test-only", "--wrap=true"]].concat();
    let tested = cluster.lab.output("sbatch", &tested).expect("sbatch");
    let tested = String::from_utf8_lossy(&tested.stderr).into_owned();
    assert!(tested.contains("n[1-16]"), "{tested}");
    assert_eq!(cluster.lab.job_state(waits).expect("known"), "PENDING");
    cluster.cancel(&[one]);
    cluster.wait(waits, &["RUNNING"]);
    let gpus = cluster.planned(waits);
    assert_eq!(gpus.values().map(Vec::len).sum::<usize>(), 16 * 8);
    let note = cluster.note(waits).expect("a note");
    assert_eq!((note.feasible_nodes, note.feasible_domains), (16, 1));
    cluster.drained();
}

/// What backfill and `--test-only` announce is what happens: the nodes, and the time.
fn predictions(cluster: &Cluster) {
    // The first leaf is busy for long. The second until a known time, which is far enough off for a
    // busy machine: a job there ends when its time is over, which is made to be soon, and the file appears.
    let long = cluster.start(&["-w", "n2", "--gres=gpu:1", "--time=60"]);
    let file = cluster.lab.dir().join("work/end");
    let script = format!("while [ ! -e {} ]; do sleep 0.1; done", file.display());
    let short = cluster.sbatch(&["-w", "n9", "--gres=gpu:1", "--time=15"], &script);
    cluster.wait(short, &["RUNNING"]);
    let ends = |end: i64| {
        let time = cluster.run("date", &["-d", &format!("@{end}"), "+%Y-%m-%dT%H:%M:%S"]);
        let end = format!("EndTime={}", time.trim());
        cluster.update(&[&format!("JobId={short}"), &end]);
    };
    let end = now() + 600;
    ends(end);

    let gang = [
        "-N8",
        "--gpus-per-node=8",
        "--gpuos-topology=leaf:required",
        "--time=30",
    ];
    let args = [&gang[..], &["--test-only", "--wrap=true"]].concat();
    let tested = cluster.lab.output("sbatch", &args).expect("sbatch");
    let tested = String::from_utf8_lossy(&tested.stderr).into_owned();
    assert!(tested.contains("n[9-16]"), "{tested}");
    let announced = tested.split("to start at ").nth(1).unwrap_or_default();
    let announced = announced.split(' ').next().unwrap_or_default();
    near(seconds(cluster, announced), end, 3, "--test-only");

    let waits = cluster.sbatch(&gang, "sleep 600");
    let planned = cluster.until("backfill plans the waiting gang", || {
        let text = cluster.show(waits);
        let nodes = gpuos_lab::field(&text, "SchedNodeList").unwrap_or_default();
        nodes.contains('n').then(|| nodes.to_string())
    });
    assert_eq!(planned, "n[9-16]");
    near(time_of(cluster, waits, "StartTime"), end, 3, "backfill");
    // A job that would end too late may not go before it, though its node is free.
    let late = cluster.sbatch(&["-w", "n10", "--gres=gpu:8", "--time=20"], "sleep 600");
    let end = now() + 10;
    ends(end);
    loop {
        let state = cluster.lab.job_state(waits).expect("known");
        if now() >= end {
            break;
        }
        assert_eq!(state, "PENDING");
        sleep(Duration::from_millis(200));
    }
    std::fs::write(&file, "").expect("writes");
    cluster.wait(waits, &["RUNNING"]);
    // Not before, and as soon as a busy machine comes to it.
    let off = time_of(cluster, waits, "StartTime") - end;
    assert!((-3..240).contains(&off), "the start: {off} s");
    let gpus = cluster.planned(waits);
    assert!(
        gpus.len() == 8 && gpus.keys().all(|node| leaf(node) == 1),
        "{gpus:?}"
    );
    assert_eq!(cluster.lab.job_state(late).expect("known"), "PENDING");
    cluster.cancel(&[long, waits, late]);
    cluster.drained();
}

fn near(time: i64, wanted: i64, most: i64, what: &str) {
    let off = time - wanted;
    assert!(
        off.abs() <= most,
        "{what}: {off} s from the time when the leaf is free"
    );
}

fn now() -> i64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    time.map_or(0, |time| time.as_secs() as i64)
}

/// A time as Slurm writes it, in seconds since 1970.
fn seconds(cluster: &Cluster, time: &str) -> i64 {
    let text = cluster.run("date", &["-d", time, "+%s"]);
    text.trim().parse().expect("seconds")
}

/// A time of a job in seconds since 1970.
fn time_of(cluster: &Cluster, job: u32, key: &str) -> i64 {
    let text = cluster.show(job);
    seconds(cluster, gpuos_lab::field(&text, key).unwrap_or_default())
}

/// A gang goes where no other uses the uplinks, also after a reconfigure and until the other ends.
fn uplinks(suite: &Suite) {
    let mut setup = Setup::new("uplinks", suite);
    setup.spec.nodes = 8.into();
    setup.spec.gpuos_toml = Some(TWO_HALVES.into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    let place = |options: &[&str]| {
        let job = cluster.start(&[&["-N4", "--gpus-per-node=4"], options].concat());
        let nodes: Vec<String> = cluster.planned(job).into_keys().collect();
        cluster.cancel(&[job]);
        nodes
    };
    // Two leaves of the first half are joined by its uplinks only.
    let other = cluster.start(&["-N2", "-w", "n1,n3", "--gpus-per-node=4"]);
    assert_eq!(place(&[]), ["n5", "n6", "n7", "n8"]);
    assert_eq!(place(&["--gpuos-placement=pack"]), ["n1", "n2", "n3", "n4"]);
    cluster.lab.reconfigure().expect("reconfigures");
    assert_eq!(place(&[]), ["n5", "n6", "n7", "n8"]);
    // On the same nodes, and no longer a gang's: two jobs of one node each.
    cluster.cancel(&[other]);
    cluster.drained();
    for node in ["n1", "n3"] {
        cluster.start(&["-w", node, "--gres=gpu:4"]);
    }
    assert_eq!(place(&[]), ["n1", "n2", "n3", "n4"]);
    cluster.drained();
}

/// What the job sees and may open is what Slurm says and what was planned.
fn devices(suite: &Suite) {
    let mut setup = Setup::new("devices", suite);
    setup.spec.cgroup = Cgroup::Auto;
    let Some(cluster) = setup.steered() else {
        return;
    };
    // Pushes the job under test off the lowest GPUs.
    let beside = cluster.start(&["--gres=gpu:3", "-w", "n1"]);
    let script = format!(
        "echo cuda=$CUDA_VISIBLE_DEVICES; echo gpus=$SLURM_JOB_GPUS; for i in 0 1 2 3 4 5 6 7; do \
         LC_ALL=C cat {}/nvidia$i 2>&1; done; echo done; sleep 600",
        cluster.lab.device_dir().display()
    );
    let job = cluster.sbatch(&["--gres=gpu:2", "-w", "n1"], &script);
    cluster.wait(job, &["RUNNING"]);
    let gpus = cluster.planned(job)["n1"].clone();
    assert_eq!(whole_pairs(&gpus), 1, "{gpus:?}");
    let used = &cluster.used()["n1"];
    assert_eq!(
        (used.gpus, gpus.iter().all(|gpu| used.index.contains(gpu))),
        (5, true)
    );
    let text = cluster.lab.wait_output(job, "done", LIMIT).expect("writes");
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        show::indices(line.unwrap_or_default())
    };
    assert_eq!(value("gpus="), gpus, "{text}");
    if cluster.lab.has_cgroup() {
        // Inside a device cgroup Slurm counts the visible devices from 0.
        let seen = value("cuda=");
        assert!(seen == gpus || seen == [0, 1], "{text}");
        for gpu in 0..8 {
            // Allowed: no such device behind the file. Forbidden: not even opened.
            let line = text
                .lines()
                .find(|line| line.contains(&format!("nvidia{gpu}")));
            let open = line.is_some_and(|line| line.contains("No such device"));
            assert_eq!(open, gpus.contains(&gpu), "GPU {gpu}: {text}");
        }
    } else {
        assert_eq!(value("cuda="), gpus, "{text}");
        skip("device cgroup", "this machine or release has none in a lab");
    }
    cluster.cancel(&[beside, job]);
    cluster.drained();
}
