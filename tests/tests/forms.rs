//! Every form in which jobs ask for GPUs, and everything that can happen to a job afterwards: each
//! gets what it asked for, no GPU is given twice, and at the end nothing is left in use.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_lab::{NodeGroup, Suite, field};
use gpuos_placement::record::{By, Outcome};
use gpuos_tests::show::Gpus;
use gpuos_tests::{Cluster, Setup, per_suite, skip};

per_suite!(requests, events, flat);

/// Number of GPUs on each node, the largest first.
fn counts(gpus: &Gpus) -> Vec<usize> {
    let mut all: Vec<usize> = gpus.values().map(Vec::len).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}

/// No GPU may be held by two of these jobs.
fn disjoint(cluster: &Cluster, jobs: &[u32]) {
    let mut seen: BTreeMap<(String, usize), u32> = BTreeMap::new();
    for job in jobs {
        for (node, set) in cluster.gpus(*job) {
            for gpu in set {
                if let Some(other) = seen.insert((node.clone(), gpu), *job) {
                    panic!("{node} GPU {gpu} is given to jobs {other} and {job}");
                }
            }
        }
    }
    // What the nodes show is what the jobs hold together.
    for (node, used) in cluster.used() {
        let held: Vec<usize> = seen
            .keys()
            .filter(|(n, _)| *n == node)
            .map(|(_, g)| *g)
            .collect();
        assert_eq!(used.gpus as usize, held.len(), "{node}");
        // Slurm 22.05 lists no GPUs of nodes whose gres.conf has only File=.
        if !used.index.is_empty() {
            assert_eq!(used.index, held, "{node}");
        }
    }
}

fn requests(suite: &Suite) {
    let mut setup = Setup::new("forms", suite);
    setup.spec.nodes = (&["n1", "n2", "n3"][..]).into();
    setup.spec.more_nodes = vec![NodeGroup {
        names: vec!["plain".into()],
        node_type: "cpu".into(),
    }];
    setup.spec.node_extra = "Feature=all".into();
    setup.spec.topology_conf = Some(
        "SwitchName=leaf1 Nodes=n1,n2\nSwitchName=leaf2 Nodes=n3,plain\n\
         SwitchName=spine Switches=leaf1,leaf2\n"
            .into(),
    );
    let Some(cluster) = setup.steered() else {
        return;
    };
    sizes(&cluster);
    whole_nodes(&cluster);
    cores(&cluster);
    where_it_may_go(&cluster);
    arrays(&cluster);
    het_jobs(&cluster);
    reservations(&cluster);
    no_gpus(&cluster);
    impossible(&cluster);
}

/// What each form of request must give: GPUs per node, largest first.
fn sizes(cluster: &Cluster) {
    let beside = cluster.start(&["--gres=gpu:1", "-w", "n1"]);
    let forms: &[(&[&str], &[usize])] = &[
        (&["--gres=gpu:2"], &[2]),
        (&["--gres=gpu:a40:3"], &[3]),
        (&["--gres=gpu"], &[1]),
        (&["-N2", "--gres=gpu:2"], &[2, 2]),
        (&["-N1", "--gpus=3"], &[3]),
        (&["-N2", "--gpus=3"], &[2, 1]),
        (&["-N1", "--gpus=a40:2"], &[2]),
        (&["--gpus-per-node=4"], &[4]),
        (&["-N3", "--gpus-per-node=a40:2"], &[2, 2, 2]),
        (&["-N1", "-n2", "--gpus-per-task=2"], &[4]),
        (&["-N2", "-n2", "--gpus-per-task=3"], &[3, 3]),
        (
            &["-N1", "-n2", "--sockets-per-node=2", "--gpus-per-socket=2"],
            &[4],
        ),
        (&["-N1", "--gres=gpu:2", "--cpus-per-gpu=4"], &[2]),
        (
            &["-N1", "-c8", "--gres=gpu:2", "--gres-flags=enforce-binding"],
            &[2],
        ),
        (&["-N1", "--gres=gpu:2", "--mem-per-gpu=100"], &[2]),
        (
            &["-n4", "-N2", "--ntasks-per-node=2", "--gres=gpu:4"],
            &[4, 4],
        ),
    ];
    for (options, wanted) in forms {
        let job = cluster.start(options);
        let gpus = cluster.planned(job);
        assert_eq!(counts(&gpus), *wanted, "{options:?}: {gpus:?}");
        disjoint(cluster, &[beside, job]);
        cluster.cancel(&[job]);
    }
    // However many nodes it needs: what counts is the sum.
    let job = cluster.start(&["--gpus=12"]);
    assert_eq!(counts(&cluster.gpus(job)).iter().sum::<usize>(), 12);
    disjoint(cluster, &[beside, job]);
    cluster.drained();
}

/// `--exclusive` gets the node with all its GPUs, and no node of others.
fn whole_nodes(cluster: &Cluster) {
    let beside = cluster.start(&["--gres=gpu:1", "-w", "n1"]);
    for options in [
        &["--exclusive", "--gres=gpu:2"][..],
        &["--exclusive", "-N1", "--gpus=8"],
        &["--exclusive", "-N2", "--gpus-per-node=8"],
    ] {
        let job = cluster.start(options);
        let gpus = cluster.gpus(job);
        assert!(!gpus.contains_key("n1"), "{options:?}: {gpus:?}");
        disjoint(cluster, &[beside, job]);
        cluster.cancel(&[job]);
    }
    cluster.drained();
}

/// The cores of a job are those that stock gives it, whatever decides how many they are.
fn cores(cluster: &Cluster) {
    let beside = cluster.start(&["-n5", "-w", "n1"]);
    let forms: &[&[&str]] = &[
        &["-N1"],
        &["-N1", "-n1"],
        &["-N1", "-n3"],
        &["-N1", "-c5"],
        &["-N2", "-n2"],
        &["-N2", "-n2", "-c7"],
        &["-N3", "-n3", "-c30"],
        &["-N2", "-n5"],
        &["-N2", "--ntasks-per-node=3", "-c2"],
        &["-N2", "--ntasks-per-socket=2", "-n8"],
        &["-N2", "-n2", "--mincpus=9"],
        &["-N2", "-n2", "--cores-per-socket=20"],
        &["-N2", "-n2", "--overcommit"],
        &["-N2", "-n2", "--mem-per-cpu=10"],
        &["-N2", "-n2", "--cpus-per-gpu=2"],
        &["-N2", "-n4", "--distribution=cyclic:cyclic"],
        &["-N2", "-n2", "--gres-flags=enforce-binding"],
        &["-N2", "-n2", "--exclusive"],
    ];
    for options in forms {
        // All GPUs of the nodes, so that there is no choice but that of the cores.
        let nodes = match options[0] {
            "-N1" => "n1",
            "-N2" if !options.contains(&"--exclusive") => "n1,n2",
            "-N2" => "n2,n3",
            _ => "n1,n2,n3",
        };
        let given = |off: &[&str]| {
            let all = [*options, &["--gres=gpu:8", "-w", nodes], off].concat();
            let job = cluster.start(&all);
            let text = cluster.show(job);
            cluster.cancel(&[job]);
            let lines = text.lines().filter(|line| line.contains("CPU_IDs="));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let stock = given(&["--gpuos=off"]);
        assert!(!stock.is_empty(), "{options:?}");
        assert_eq!(given(&[]), stock, "{options:?}");
    }
    cluster.cancel(&[beside]);
    cluster.drained();
}

/// Features, node lists, ranges of nodes and switches.
fn where_it_may_go(cluster: &Cluster) {
    cluster.run(
        "scontrol",
        &[
            "update",
            "NodeName=n3",
            "ActiveFeatures=all",
            "AvailableFeatures=all,new",
        ],
    );
    cluster.run(
        "scontrol",
        &["update", "NodeName=n3", "ActiveFeatures=all,new"],
    );
    let nodes = |job: u32| -> Vec<String> { cluster.gpus(job).into_keys().collect() };
    let job = cluster.start(&["--constraint=new", "--gres=gpu:2"]);
    assert_eq!(nodes(job), ["n3"]);
    cluster.cancel(&[job]);
    let job = cluster.start(&["--nodelist=n2", "--gres=gpu:5"]);
    assert_eq!(nodes(job), ["n2"]);
    cluster.cancel(&[job]);
    let job = cluster.start(&["--nodelist=n2,n3", "-N2", "--gres=gpu:1"]);
    assert_eq!(nodes(job), ["n2", "n3"]);
    cluster.cancel(&[job]);
    let job = cluster.start(&["--exclude=n1,n3", "--gres=gpu:1"]);
    assert_eq!(nodes(job), ["n2"]);
    cluster.cancel(&[job]);
    // As many nodes as there are, up to the range's end.
    let busy = cluster.start(&["-w", "n1", "--gres=gpu:8"]);
    let job = cluster.start(&["-N1-3", "--gpus-per-node=8"]);
    assert_eq!(nodes(job), ["n2", "n3"]);
    cluster.cancel(&[job, busy]);
    let job = cluster.start(&["-N2", "--gpus-per-node=8", "--switches=1"]);
    assert_eq!(nodes(job), ["n1", "n2"]);
    cluster.drained();
}

fn arrays(cluster: &Cluster) {
    let array = cluster.sbatch(&["--array=1-6", "--gres=gpu:2"], "sleep 600");
    let job = array.to_string();
    let running = cluster.until("six tasks run", || {
        let text = cluster.run("squeue", &["-h", "-r", "-j", &job, "-t", "R", "-o", "%A"]);
        let ids: Vec<u32> = text
            .lines()
            .filter_map(|line| line.trim().parse().ok())
            .collect();
        (ids.len() == 6).then_some(ids)
    });
    for id in &running {
        let gpus = cluster.planned(*id);
        assert_eq!(counts(&gpus), [2]);
        let set = gpus.values().next().expect("a node");
        assert_eq!(set[0] / 2, set[1] / 2, "not a pair: {gpus:?}");
    }
    disjoint(cluster, &running);
    cluster.drained();
}

fn het_jobs(cluster: &Cluster) {
    let job = cluster.sbatch(
        &["--gres=gpu:4", "-N1", ":", "--gres=gpu:2", "-N2"],
        "sleep 600",
    );
    cluster.wait(job, &["RUNNING"]);
    cluster.wait(job + 1, &["RUNNING"]);
    assert_eq!(counts(&cluster.planned(job)), [4]);
    assert_eq!(counts(&cluster.planned(job + 1)), [2, 2]);
    disjoint(cluster, &[job, job + 1]);
    cluster.drained();
}

fn reservations(cluster: &Cluster) {
    cluster.run(
        "scontrol",
        &[
            "create",
            "reservation",
            "ReservationName=r1",
            "StartTime=now",
            "Duration=60",
            "Users=root",
            "Nodes=n1",
        ],
    );
    let inside = cluster.start(&["--reservation=r1", "--gres=gpu:2"]);
    assert!(cluster.planned(inside).contains_key("n1"));
    let outside = cluster.start(&["--gres=gpu:2"]);
    assert!(!cluster.planned(outside).contains_key("n1"));
    disjoint(cluster, &[inside, outside]);
    cluster.cancel(&[inside, outside]);
    cluster.run("scontrol", &["delete", "ReservationName=r1"]);
    cluster.drained();
}

/// Jobs without GPUs are Slurm's alone.
fn no_gpus(cluster: &Cluster) {
    for options in [
        &["-N1"][..],
        &["-N2", "-n4"],
        &["-w", "plain"],
        &["--exclusive"],
    ] {
        let job = cluster.start(options);
        assert_eq!(cluster.note(job), None, "{options:?}");
        cluster.cancel(&[job]);
    }
    cluster.drained();
}

/// What no node can ever give is refused or waits, as under stock Slurm, and harms nothing.
fn impossible(cluster: &Cluster) {
    for options in [
        &["--gres=gpu:9"][..],
        &["--gres=gpu:h100:1"],
        &["-N4", "--gpus-per-node=1"],
    ] {
        let refused = cluster.try_sbatch(options, "true");
        assert!(refused.is_err(), "{options:?} was accepted: {refused:?}");
    }
    cluster.drained();
}

fn events(suite: &Suite) {
    let mut setup = Setup::new("events", suite);
    setup.spec.slurm_conf_extra.extend([
        "PreemptType=preempt/partition_prio".into(),
        "PreemptMode=REQUEUE".into(),
        // A node that was set down stays so, even if a late answer of its slurmd comes in.
        "ReturnToService=1".into(),
        "PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP".into(),
        "PartitionName=cancel Nodes=ALL PriorityTier=1 PreemptMode=CANCEL MaxTime=INFINITE State=UP".into(),
        "PartitionName=requeue Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE MaxTime=INFINITE State=UP".into(),
    ]);
    let Some(cluster) = setup.steered() else {
        return;
    };
    preemption(&cluster);
    required_preemption(&cluster);
    suspension(&cluster);
    shrinking(&cluster);
    restarts(&cluster);
    node_failure(&cluster);
}

/// Only jobs whose GPUs are needed are preempted, and the new job gets these.
fn preemption(cluster: &Cluster) {
    for (partition, ends) in [("cancel", "PREEMPTED"), ("requeue", "PENDING")] {
        let part = format!("--partition={partition}");
        let low: Vec<u32> = (0..4)
            .map(|_| cluster.start(&[&part, "--gres=gpu:4", "--requeue"]))
            .collect();
        let other = cluster.try_sbatch(&["--partition=high", "--gres=gpu:4"], "sleep 600");
        let high = other.expect("submits");
        cluster.wait(high, &["RUNNING"]);
        let gpus = cluster.planned(high);
        assert_eq!(counts(&gpus), [4], "{gpus:?}");
        // One that goes may be ending yet.
        let states: Vec<String> = cluster.until("nobody is on the way out", || {
            let states = low.iter().map(|job| cluster.lab.job_state(*job).ok());
            let states: Option<Vec<String>> = states.collect();
            states.filter(|all| all.iter().all(|state| state != "COMPLETING"))
        });
        let lost = states.iter().filter(|state| *state != "RUNNING").count();
        assert_eq!(lost, 1, "{partition}: {states:?}");
        assert!(
            states.iter().any(|state| state == ends),
            "{partition}: {states:?}"
        );
        let mut holders: Vec<u32> = low
            .iter()
            .zip(&states)
            .filter(|(_, state)| *state == "RUNNING")
            .map(|(job, _)| *job)
            .collect();
        holders.push(high);
        disjoint(cluster, &holders);
        cluster.drained();
    }
}

/// A required level is kept by preemption too: of sixteen jobs with one GPU each, those two have to
/// go that hold a linked pair.
fn required_preemption(cluster: &Cluster) {
    let low = cluster.sbatch(
        &["--partition=cancel", "--array=1-16", "--gres=gpu:1"],
        "sleep 600",
    );
    let id = low.to_string();
    let running = || {
        let args = ["-h", "-r", "-j", &id, "-t", "R", "-o", "%A"];
        cluster.run("squeue", &args).lines().count()
    };
    cluster.until("sixteen jobs run", || (running() == 16).then_some(()));
    let options = [
        "--partition=high",
        "--gres=gpu:2",
        "--gpuos-topology=nvlink:required",
    ];
    let high = cluster.start(&options);
    let gpus = cluster.planned(high);
    let set = gpus.values().next().expect("a node");
    assert_eq!((set.len(), set[0] / 2), (2, set[1] / 2), "{gpus:?}");
    assert_eq!(running(), 14);
    // Where Slurm preempted is recorded like any other choice.
    let mut preempted = Vec::new();
    cluster.recording().replay(&mut |step| {
        assert!(step.same, "{:?} now {:?}", step.asked, step.again);
        if step.asked.by == By::Future && step.outcome == Some(Outcome::Taken) {
            preempted.push(step.asked.job);
        }
    });
    // Slurm asks again until they are gone.
    preempted.dedup();
    assert_eq!(preempted, [high]);
    cluster.drained();
}

fn suspension(cluster: &Cluster) {
    let job = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
    let before = cluster.planned(job);
    let id = job.to_string();
    cluster.run("scontrol", &["suspend", &id]);
    cluster.wait(job, &["SUSPENDED"]);
    // As under stock Slurm a suspended job keeps its GPUs.
    let beside = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
    assert_eq!(cluster.gpus(job), before);
    disjoint(cluster, &[job, beside]);
    cluster.run("scontrol", &["resume", &id]);
    cluster.wait(job, &["RUNNING"]);
    assert_eq!(cluster.gpus(job), before);
    disjoint(cluster, &[job, beside]);
    cluster.drained();
}

/// A job gives a node back; its GPUs there are free for the next job.
fn shrinking(cluster: &Cluster) {
    let job = cluster.start(&["-N2", "--gpus-per-node=8"]);
    let id = format!("JobId={job}");
    match cluster.try_run("scontrol", &["update", &id, "NumNodes=1"]) {
        Ok(_) => {
            let left = cluster.until("one node is left", || {
                let gpus = cluster.gpus(job);
                (gpus.len() == 1).then_some(gpus)
            });
            let next = cluster.start(&["--gpus-per-node=8", "-N1"]);
            let given = cluster.planned(next);
            let nodes: BTreeSet<&String> = left.keys().chain(given.keys()).collect();
            assert_eq!(nodes.len(), 2, "{left:?} {given:?}");
            assert_eq!((counts(&left), counts(&given)), (vec![8], vec![8]));
            disjoint(cluster, &[job, next]);
        }
        Err(why) => skip("shrinking a job", &why),
    }
    cluster.drained();
}

/// Reconfigure, restart and kill -9 with running jobs: all counts stay, and the next job gets only
/// free GPUs.
fn restarts(cluster: &Cluster) {
    let mut jobs = vec![
        cluster.start(&["--gres=gpu:3", "-w", "n1"]),
        cluster.start(&["--gres=gpu:2", "-N2"]),
        cluster.start(&["--gpus=3", "-N2"]),
        cluster.start(&["--gpus-per-task=1", "-n2", "-N1"]),
    ];
    let state = |jobs: &[u32]| {
        let gpus: Vec<Gpus> = jobs.iter().map(|job| cluster.gpus(*job)).collect();
        (cluster.used(), gpus)
    };
    for what in ["reconfigure", "restart", "kill -9"] {
        let before = state(&jobs);
        match what {
            "reconfigure" => cluster.lab.reconfigure().expect("reconfigures"),
            "restart" => cluster.restart_slurmctld(),
            _ => cluster.crash(jobs[0]),
        }
        cluster.ready();
        let after = cluster.until(what, || {
            let after = state(&jobs);
            (after == before).then_some(after)
        });
        assert_eq!(before, after, "{what}");
        let next = cluster.start(&["--gres=gpu:1"]);
        cluster.planned(next);
        jobs.push(next);
        disjoint(cluster, &jobs);
        assert_eq!(cluster.passes_through(), None, "after {what}");
    }
    cluster.drained();
}

/// A node fails under a job: the job is requeued, and the node comes back with all GPUs free.
fn node_failure(cluster: &Cluster) {
    let job = cluster.start(&["--gres=gpu:4", "-w", "n1", "--requeue"]);
    assert!(cluster.lab.stop_slurmd("n1").expect("ends"));
    cluster.set_node("n1", "DOWN");
    cluster.until("the job has left the node", || {
        let text = cluster.show(job);
        (field(&text, "JobState") != Some("RUNNING")).then_some(())
    });
    let other = cluster.start(&["--gres=gpu:8"]);
    assert!(cluster.planned(other).contains_key("n2"));
    assert_eq!(cluster.used()["n1"].gpus, 0);
    cluster.cancel(&[job]);
    cluster.lab.start_slurmd("n1").expect("starts");
    cluster.update(&["NodeName=n1", "State=RESUME"]);
    cluster.ready();
    let again = cluster.start(&["--gres=gpu:8", "-w", "n1"]);
    disjoint(cluster, &[other, again]);
    cluster.drained();
}

/// gres.conf with `Name=gpu File=…` only: cons_tres counts such GPUs and chooses none; gpuos chooses.
fn flat(suite: &Suite) {
    let mut setup = Setup::new("flat", suite);
    setup.spec.gpuos_toml = Some("[[nodes]]\nmatch = \"n[1-2]\"\ntype = \"pairs-8\"\n".into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    let lab = &cluster.lab;
    let device = lab.device_dir().join("nvidia[0-7]");
    let line = format!("NodeName=n[1-2] Name=gpu File={}\n", device.display());
    lab.write_conf("gres.conf", &format!("AutoDetect=off\n{line}"))
        .expect("writes");
    lab.edit_slurm_conf(|text| text.replace("gpu:a40:8", "gpu:8"))
        .expect("writes");
    lab.restart().expect("restarts");
    let first = cluster.start(&["--gres=gpu:1", "-w", "n1"]);
    let mut jobs = vec![first];
    for options in [
        &["--gres=gpu:2", "-w", "n1"][..],
        &["-N1", "--gpus=2", "-w", "n1"],
        &["-N2", "--gpus-per-node=2"],
    ] {
        let job = cluster.start(options);
        for set in cluster.planned(job).values() {
            assert_eq!(
                (set.len(), set[0] / 2),
                (2, set[1] / 2),
                "{options:?}: {set:?}"
            );
        }
        jobs.push(job);
        disjoint(&cluster, &jobs);
    }
    // Stock 23.11.0 and 23.11.1 kill jobs at a restart whose GPUs have no type; SchedMD's commit a7090fcc69 mends it.
    if cluster.is_before([23, 11, 2]) && !cluster.is_before([23, 11, 0]) {
        return cluster.drained();
    }
    let held: Vec<Gpus> = jobs.iter().map(|job| cluster.gpus(*job)).collect();
    cluster.restart_slurmctld();
    let now: Vec<Gpus> = jobs.iter().map(|job| cluster.gpus(*job)).collect();
    assert_eq!(held, now, "after a restart");
    jobs.push(cluster.start(&["--gres=gpu:1", "-w", "n1"]));
    disjoint(&cluster, &jobs);
    cluster.drained();
}
