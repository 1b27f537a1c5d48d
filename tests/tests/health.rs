//! GPUs that a node's `Extra` has out of service: no job of any form is given one, the rest of the node
//! works on, and all is back when the part is gone.

use std::collections::BTreeSet;

use gpuos_lab::{Suite, field};
use gpuos_placement::record::Event;
use gpuos_tests::plugins::programs;
use gpuos_tests::{Cluster, Setup, ledger, per_suite};

per_suite!(
    nobody_is_given_a_gpu_that_is_out,
    whole_nodes_and_flat_ones,
    forecasts_and_preemption,
    degraded_ones_are_given_last,
    words_of_another_release_stay,
);

const OUT: [usize; 2] = [2, 5];
const PART: &str = "Extra=rack 7 [gpuos:1 out=2,5]";
const REASON: &str = "2 of 16 GPUs are out of service: n1 gpu2 gpu5";

fn set(cluster: &Cluster, node: &str, extra: &str) {
    cluster.update(&[&format!("NodeName={node}"), extra]);
}

/// The job has none of the GPUs of n1 that are out.
fn sound(cluster: &Cluster, job: u32, what: &dyn std::fmt::Debug) {
    let gpus = cluster.gpus(job);
    let of_n1 = gpus.get("n1").cloned().unwrap_or_default();
    assert!(
        !of_n1.iter().any(|gpu| OUT.contains(gpu)),
        "{what:?} was given {gpus:?}"
    );
}

/// Waits until squeue shows a sentence for a job that waits.
fn waits(cluster: &Cluster, job: u32, says: &str) {
    let id = job.to_string();
    cluster.until(&format!("job {job} waits because {says}"), || {
        let reason = cluster.run("squeue", &["-h", "-j", &id, "-o", "%T %r"]);
        assert!(!reason.starts_with("RUNNING"), "{}", cluster.show(job));
        reason.contains(says).then_some(())
    });
}

/// Slurm has looked at each of these jobs twice from now on, and they wait.
fn stays_pending(cluster: &Cluster, jobs: &[u32]) {
    for job in jobs {
        let mut looks = BTreeSet::new();
        cluster.until(&format!("Slurm looks at job {job}"), || {
            let show = cluster.show(*job);
            assert!(show.contains("JobState=PENDING"), "{show}");
            looks.extend(field(&show, "LastSchedEval").map(str::to_string));
            (looks.len() > 2).then_some(())
        });
    }
}

fn nobody_is_given_a_gpu_that_is_out(suite: &Suite) {
    let Some(mut cluster) = Setup::new("out", suite).steered() else {
        return;
    };
    ledger::write_scripts(&cluster);
    cluster.ready();
    // Before any job: nothing is trusted yet.
    set(&cluster, "n1", PART);
    let whole = cluster.start(&["--exclusive", "-N1"]);
    assert!(cluster.show(whole).contains("NodeList=n2"));
    cluster.cancel(&[whole]);
    let forms: &[&[&str]] = &[
        &["--gres=gpu:6", "-w", "n1"],
        &["--gres=gpu:a40:6", "-w", "n1"],
        &["--gpus=6", "-N1", "-w", "n1"],
        &["--gpus-per-task=3", "-n2", "-N1", "-w", "n1"],
        &["--gpus-per-socket=3", "--sockets-per-node=2", "-w", "n1"],
        &["--gres=gpu:6", "-w", "n1", "--gpuos=off"],
        &["--gpus=6", "-N1", "-w", "n1", "--gpuos=off"],
        &["--gres=gpu:1", "-w", "n1", "--gpuos-placement=spread"],
        &["--gres=gpu:2", "-w", "n1", "--gpuos-topology=node:required"],
        &["-N2", "--gpus-per-node=6"],
        &["-N2", "--gpus=14"],
    ];
    for round in 0..3 {
        match round {
            1 => cluster.restart_slurmctld(),
            2 => cluster.lab.reconfigure().expect("reconfigures"),
            _ => {}
        }
        for form in forms {
            let job = cluster.start(form);
            sound(&cluster, job, form);
            cluster.cancel(&[job]);
        }
        // The others are worked on to the last, one by one and by Slurm alone too.
        let mut jobs: Vec<u32> = (0..14)
            .map(|n| match n % 2 {
                0 => cluster.start(&["--gres=gpu:1"]),
                _ => cluster.start(&["--gres=gpu:1", "--gpuos=off"]),
            })
            .collect();
        let waiting = cluster.sbatch(&["--gres=gpu:1"], "sleep 600");
        let stock = cluster.sbatch(&["--gres=gpu:1", "--gpuos=off"], "sleep 600");
        // A job without GPUs is not touched.
        let cpu = cluster.start(&["-w", "n1"]);
        waits(&cluster, waiting, REASON);
        stays_pending(&cluster, &[waiting, stock]);
        jobs.extend([waiting, stock, cpu]);
        if round == 2 {
            // Removed: what the administrator wrote stays, and the GPUs are given again.
            set(&cluster, "n1", "Extra=rack 7");
            for job in [waiting, stock] {
                cluster.wait(job, &["RUNNING"]);
                let gpus = cluster.gpus(job);
                assert!(OUT.contains(&gpus["n1"][0]), "{gpus:?}");
            }
        }
        cluster.cancel(&jobs);
    }
    // The account on the nodes says the same: only the last two had one of them.
    let events = ledger::read(&cluster);
    ledger::check(&events).expect("no GPU twice");
    let had = |event: &&ledger::Event| {
        let out = event.gpus.iter().any(|gpu| OUT.contains(gpu));
        event.node == "n1" && out && event.kind == ledger::Kind::Start
    };
    assert_eq!(events.iter().filter(had).count(), 2);

    // Eight on each, which never fits while two are out: accepted, it waits, and runs when they are back.
    set(&cluster, "n1", PART);
    let all = cluster.sbatch(&["-N2", "--gres=gpu:8"], "sleep 600");
    let stock = cluster.sbatch(&["-N2", "--gres=gpu:8", "--gpuos=off"], "sleep 600");
    waits(&cluster, all, REASON);
    waits(&cluster, stock, REASON);
    cluster.crash(all);
    stays_pending(&cluster, &[all, stock]);
    // A damaged part may have named any GPU: none is given, and the log says so. The other node is not touched.
    set(&cluster, "n1", "Extra=[gpuos:1 out=2,x]");
    let other = cluster.start(&["--gres=gpu:1"]);
    assert!(cluster.gpus(other).contains_key("n2"));
    let beside = cluster.sbatch(&["--gres=gpu:1", "-w", "n1"], "sleep 600");
    stays_pending(&cluster, &[all, beside]);
    let log = cluster.lab.slurmctld_log();
    assert!(log.contains("count as out of service until gpuosd"));
    cluster.cancel(&[other, beside]);
    set(&cluster, "n1", "Extra=rack 7");
    cluster.wait(all, &["RUNNING"]);
    // A job that runs on a GPU keeps it.
    set(&cluster, "n1", PART);
    let beside = cluster.sbatch(&["--gres=gpu:1", "-w", "n1"], "sleep 600");
    stays_pending(&cluster, &[beside]);
    assert_eq!(cluster.lab.job_state(all).expect("known"), "RUNNING");
    cluster.cancel(&[all, stock, beside]);
    // Decisions with GPUs out replay as all others.
    replays(&cluster);
    // Of the damaged part.
    cluster.expects_errors = true;
    cluster.drained();
}

/// What the ring has of the decisions comes out of the planner again, and some of it was about a node with
/// GPUs out of service.
fn replays(cluster: &Cluster) {
    let recording = cluster.recording();
    let counts = recording.replay(&mut |_| ());
    assert_eq!(counts.same, counts.replayed, "{counts:?}");
    assert!(counts.replayed > 0, "{counts:?}");
    let out = recording
        .segments
        .iter()
        .flat_map(|s| &s.events)
        .any(|event| matches!(event, Event::Nodes { state, .. } if state.present.len() == 6));
    assert!(out, "no decision saw them");
}

/// Whole nodes: those with a GPU out are not given to anybody who takes all of it. And nodes whose GPUs
/// Slurm only counts.
fn whole_nodes_and_flat_ones(suite: &Suite) {
    let mut setup = Setup::new("outwhole", suite);
    setup.spec.gpuos_toml = Some("[[nodes]]\nmatch = \"n[1-2]\"\ntype = \"pairs-8\"\n".into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    set(&cluster, "n1", PART);
    for form in [
        &["--exclusive", "-N1"][..],
        &["--exclusive", "-N1", "--gres=gpu:1"],
        &["--exclusive", "-N1", "--gpus=2", "--gpuos=off"],
    ] {
        let job = cluster.start(form);
        assert!(cluster.show(job).contains("NodeList=n2"), "{form:?}");
        let more = cluster.sbatch(form, "sleep 600");
        let named = cluster.sbatch(&[form, &["-w", "n1"]].concat(), "sleep 600");
        stays_pending(&cluster, &[more, named]);
        // What does not take the whole node goes there.
        let part = cluster.start(&["--gres=gpu:1"]);
        sound(&cluster, part, &form);
        cluster.cancel(&[part]);
        set(&cluster, "n1", "Extra=");
        cluster.until("one of them runs on n1", || {
            let running =
                |job: &&u32| cluster.lab.job_state(**job).ok().as_deref() == Some("RUNNING");
            [more, named].iter().find(running).map(|_| ())
        });
        set(&cluster, "n1", PART);
        cluster.cancel(&[job, more, named]);
    }

    let lab = &cluster.lab;
    let device = lab.device_dir().join("nvidia[0-7]");
    let line = format!("NodeName=n[1-2] Name=gpu File={}\n", device.display());
    lab.write_conf("gres.conf", &format!("AutoDetect=off\n{line}"))
        .expect("writes");
    lab.edit_slurm_conf(|text| text.replace("gpu:a40:8", "gpu:8"))
        .expect("writes");
    lab.restart().expect("restarts");
    cluster.ready();
    for form in [
        &["--gres=gpu:3", "-w", "n1"][..],
        &["--gres=gpu:3", "-w", "n1", "--gpuos=off"],
        &["--gpus=6", "-N1", "-w", "n1", "--gpuos=off"],
        &["--gpus=3", "-N1", "-w", "n1"],
    ] {
        let job = cluster.start(form);
        sound(&cluster, job, &form);
        let more = cluster.start(&["--gres=gpu:3", "-N1", "--gpuos=off"]);
        sound(&cluster, more, &form);
        cluster.cancel(&[job, more]);
    }
    cluster.drained();
}

/// A GPU that is out while a job still holds it is nothing to wait for, nor to preempt the job for.
fn forecasts_and_preemption(suite: &Suite) {
    let mut setup = Setup::new("outheld", suite);
    setup.spec.slurm_conf_extra.extend([
        "PreemptType=preempt/partition_prio".into(),
        "PreemptMode=REQUEUE".into(),
        "PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP".into(),
        "PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=CANCEL MaxTime=INFINITE State=UP"
            .into(),
    ]);
    let Some(cluster) = setup.steered() else {
        return;
    };
    // n1 full of jobs of an hour, n2 of one of three hours.
    let hour = ["--partition=low", "--gres=gpu:1", "-w", "n1", "-t", "60"];
    let held: Vec<u32> = (0..8).map(|_| cluster.start(&hour)).collect();
    let long = ["--partition=high", "--gres=gpu:8", "-w", "n2", "-t", "180"];
    let long = cluster.start(&long);
    set(&cluster, "n1", "Extra=[gpuos:1 out=0,1,2,3,4,5,6,7]");
    // Preempting all of n1 would give nobody a GPU.
    let high = ["--partition=high", "--gres=gpu:1", "-t", "10"];
    let wants = cluster.sbatch(&high, "sleep 600");
    let stock = cluster.sbatch(&[&high[..], &["--gpuos=off"]].concat(), "sleep 600");
    stays_pending(&cluster, &[wants, stock]);
    for job in &held {
        assert_eq!(cluster.lab.job_state(*job).expect("known"), "RUNNING");
    }
    // They start when n2 is free, not when n1 is: backfill plans whole nodes, so one at a time.
    let forecast = |job: u32| {
        let id = job.to_string();
        let text = cluster.run("squeue", &["-h", "-j", &id, "--start", "-o", "%Y"]);
        assert_ne!(
            text.trim(),
            "n1",
            "{}{}",
            cluster.show(job),
            cluster.lab.slurmctld_log()
        );
        text.trim() == "n2"
    };
    cluster.until("backfill has a forecast", || {
        (forecast(wants) | forecast(stock)).then_some(())
    });
    // One is sound, and the job on it ends: that one is given, and nobody had to go for it.
    cluster.cancel(&[wants, stock]);
    set(&cluster, "n1", "Extra=[gpuos:1 out=0,1,2,3,4,6,7]");
    let wants = cluster.sbatch(&high, "sleep 600");
    let (of_gpu_5, others): (Vec<u32>, Vec<u32>) = held
        .iter()
        .partition(|job| cluster.gpus(**job)["n1"] == [5]);
    cluster.cancel(&of_gpu_5);
    cluster.wait(wants, &["RUNNING"]);
    assert_eq!(cluster.gpus(wants)["n1"], [5]);
    for job in others {
        assert_eq!(cluster.lab.job_state(job).expect("known"), "RUNNING");
    }
    cluster.cancel(&[wants, long]);
    cluster.drained();
}

/// Degraded GPUs are given where nothing else is left, and nobody waits for them.
fn degraded_ones_are_given_last(suite: &Suite) {
    let Some(cluster) = Setup::new("degraded", suite).steered() else {
        return;
    };
    set(&cluster, "n1", "Extra=[gpuos:1 degraded=0,1,2,3]");
    set(&cluster, "n2", "Extra=[gpuos:1 degraded=4]");
    let degraded = |job: u32| {
        let gpus = cluster.gpus(job);
        let of = |node: &str| gpus.get(node).cloned().unwrap_or_default();
        of("n1").iter().any(|gpu| *gpu < 4) || of("n2").contains(&4)
    };
    let jobs: Vec<u32> = (0..11).map(|_| cluster.start(&["--gres=gpu:1"])).collect();
    for job in &jobs {
        assert!(!degraded(*job), "{:?}", cluster.gpus(*job));
    }
    let last: Vec<u32> = (0..5).map(|_| cluster.start(&["--gres=gpu:1"])).collect();
    for job in &last {
        assert!(degraded(*job), "{:?}", cluster.gpus(*job));
    }
    let counts = cluster.recording().replay(&mut |_| ());
    assert_eq!(counts.same, counts.replayed, "{counts:?}");
    cluster.cancel(&jobs);
    cluster.cancel(&last);
    let all = cluster.start(&["-N2", "--gres=gpu:8"]);
    cluster.cancel(&[all]);
    cluster.drained();
}

/// Another release of gpuos knows words that this one does not: what stands beside them counts, and gpuosd keeps them.
fn words_of_another_release_stay(suite: &Suite) {
    let Some(mut cluster) = Setup::simulated("words", suite, 1).steered() else {
        return;
    };
    let gpuos = programs().join("gpuos");
    let dir = cluster.lab.gpuosd_runtime_dir("n1");
    let tell = |words: [&str; 2]| {
        let args = ["--runtime-dir", dir.to_str().expect("UTF-8")];
        let args = [&words[..], &args].concat();
        cluster.run(gpuos.to_str().expect("UTF-8"), &args);
    };
    let until_extra = |extra: &str| {
        cluster.until(extra, || {
            let node = cluster.run("scontrol", &["show", "node", "n1"]);
            let mut lines = node.lines().map(str::trim);
            let shown = lines.find_map(|line| line.strip_prefix("Extra="));
            (shown.unwrap_or_default() == extra).then_some(())
        });
    };
    tell(["drain", "n1:2"]);
    until_extra("[gpuos:1 out=2]");
    set(&cluster, "n1", "Extra=rack 7 [gpuos:1 later=4 out=2 quiet]");
    let all = cluster.sbatch(&["--gres=gpu:8"], "sleep 600");
    stays_pending(&cluster, &[all]);
    let seven = cluster.start(&["--gres=gpu:7"]);
    assert_eq!(cluster.gpus(seven)["n1"], [0, 1, 3, 4, 5, 6, 7]);
    cluster.cancel(&[seven]);
    // gpuosd writes its words anew, and only those.
    tell(["drain", "n1:5"]);
    until_extra("rack 7 [gpuos:1 later=4 out=2,5 quiet]");
    let six = cluster.start(&["--gres=gpu:6"]);
    assert_eq!(cluster.gpus(six)["n1"], [0, 1, 3, 4, 6, 7]);
    cluster.cancel(&[six]);
    // What is damaged keeps jobs away until gpuosd has mended it.
    set(
        &cluster,
        "n1",
        "Extra=rack 7 [gpuos:1 later=4 out=2,5,x quiet]",
    );
    until_extra("rack 7 [gpuos:1 later=4 out=2,5 quiet]");
    tell(["online", "n1:2"]);
    tell(["online", "n1:5"]);
    until_extra("rack 7 [gpuos:1 later=4 quiet]");
    cluster.wait(all, &["RUNNING"]);
    cluster.cancel(&[all]);
    // Of the damaged part.
    cluster.expects_errors = true;
    cluster.drained();
}
