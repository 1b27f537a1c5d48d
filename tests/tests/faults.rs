//! Faults of simulated GPUs under running jobs of a real Slurm: the right jobs, and only those, are requeued
//! or left; the right GPU gets no more jobs; the audit log tells the story; after repair or reboot all is
//! back, also where gpuosd was killed in between. `scripts/recovery.sh` measures how soon a requeued job runs again.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use gpuos_core::health::ExtraPart;
use gpuos_lab::{LabError, Suite};
use gpuos_tests::{Cluster, Setup, measured_runs, per_suite};

per_suite!(each_fault_does_what_its_rule_says);

/// What becomes of the job on the GPU.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Job {
    Left,
    Requeued,
}

/// What becomes of the GPU.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Gpu {
    /// It goes on.
    Serves,
    /// It gets no job before it was reset.
    Reset,
}

/// Fault, rule, what becomes of the job, and of the GPU.
const CASES: &[(&str, &str, Job, Gpu)] = &[
    ("xid 48", "xid-48", Job::Requeued, Gpu::Reset),
    // The driver asks for a reset at once, and knows best.
    ("xid 64", "recovery-gpu-reset", Job::Requeued, Gpu::Reset),
    (
        "recovery-action drain-and-reset",
        "recovery-drain-and-reset",
        Job::Left,
        Gpu::Reset,
    ),
    ("xid 43", "xid-43", Job::Left, Gpu::Serves),
    ("xid 119", "xid-119", Job::Requeued, Gpu::Reset),
    ("xid 95", "xid-95", Job::Requeued, Gpu::Reset),
];

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// Four nodes with eight simulated GPUs each.
fn four(name: &str, suite: &Suite) -> Option<Cluster> {
    Setup::simulated(name, suite, 4).steered()
}

/// A job that notes each of its starts, and where.
fn start(cluster: &Cluster, options: &[&str]) -> u32 {
    let script = "echo $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} $(date +%s%N) >> starts; sleep 3600";
    let job = cluster.sbatch(&[&["--requeue"], options].concat(), script);
    cluster.wait(job, &["RUNNING"]);
    job
}

/// When a job has been started for the `restarts`-th time, in nanoseconds since 1970, by its own first line.
fn started(cluster: &Cluster, job: u32, restarts: u32) -> Option<u128> {
    let text = fs::read_to_string(cluster.lab.dir().join("work/starts")).unwrap_or_default();
    let own = format!("{job} {restarts} ");
    text.lines()
        .find_map(|line| line.strip_prefix(&own)?.parse().ok())
}

/// The node of a job, and one of its GPUs there.
fn place(cluster: &Cluster, job: u32, nth: usize) -> (String, usize) {
    let gpus = cluster.gpus(job);
    let (node, set) = gpus.first_key_value().expect("a node");
    (node.clone(), set[nth])
}

fn part(cluster: &Cluster, node: &str) -> ExtraPart {
    let text = cluster.run("scontrol", &["show", "node", node]);
    let extra = text.lines().find_map(|l| l.trim().strip_prefix("Extra="));
    let (part, wrong) = ExtraPart::read(extra.unwrap_or_default());
    assert_eq!(wrong, None);
    part
}

fn is_drained(cluster: &Cluster, node: &str) -> bool {
    let text = cluster.run("sinfo", &["-h", "-n", node, "-o", "%T"]);
    text.contains("drain")
}

fn audit(cluster: &Cluster, node: &str) -> String {
    let file = cluster.lab.gpuosd_state_dir(node).join("audit.jsonl");
    fs::read_to_string(file).unwrap_or_default()
}

fn told(cluster: &Cluster, node: &str, rule: &str) {
    cluster.until(&format!("the audit log of {node} names {rule}"), || {
        audit(cluster, node).contains(rule).then_some(())
    });
}

fn untouched(cluster: &Cluster, job: u32) {
    let show = cluster.show(job);
    assert!(
        show.contains("JobState=RUNNING") && show.contains("Restarts=0"),
        "{show}{}",
        cluster.report("")
    );
}

fn is_back(cluster: &Cluster, node: &str) {
    cluster.until(&format!("all of {node} is back"), || {
        let back = part(cluster, node).is_empty() && !is_drained(cluster, node);
        back.then_some(())
    });
}

fn fault(cluster: &Cluster, node: &str, gpu: usize, words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    let gpu = format!("gpu{gpu}");
    cluster
        .lab
        .fault(node, &gpu, &words)
        .expect("gpuos-nvml knows it");
}

fn each_fault_does_what_its_rule_says(suite: &Suite) {
    let Some(cluster) = four("faults", suite) else {
        return;
    };
    let wrong = cluster.lab.fault("n9", "gpu0", &["lost"]);
    assert!(matches!(wrong, Err(LabError::Spec(why)) if why.contains("n1, n2, n3, n4")));
    // Each node its own cases, at the same time: what waits there is how often a node may tell Slurm something.
    std::thread::scope(|threads| {
        for (nth, node) in NODES.iter().enumerate() {
            let (cluster, own) = (&cluster, CASES.iter().skip(nth).step_by(NODES.len()));
            threads.spawn(move || own.for_each(|case| one_fault(cluster, node, *case)));
        }
    });
    many_at_once(&cluster);
    cluster.drained();
}

fn is_out(cluster: &Cluster, node: &str, gpu: usize) -> bool {
    part(cluster, node).out.iter().any(|out| out.index() == gpu)
}

/// Runs again somewhere, for the first time.
fn again(cluster: &Cluster, job: u32) {
    cluster.until(&format!("job {job} runs again"), || {
        started(cluster, job, 1)
    });
}

/// On one node a GPU fails under one task of an array, on another one falls off the bus, and on a third gpuosd is killed
/// in the middle of a recovery; all at the same time.
fn many_at_once(cluster: &Cluster) {
    let script = "echo $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} $(date +%s%N) >> starts; sleep 3600";
    let options = ["--requeue", "--array=0-2", "--gres=gpu:1", "-w", "n1"];
    // The array's number is that of its last task, too, and of all of them in Slurm's eyes.
    let last = cluster.sbatch(&options, script);
    cluster.until("the tasks run", || {
        let list = cluster.run(
            "squeue",
            &["-h", "-t", "R", "-j", &last.to_string(), "-o", "%A"],
        );
        (list.lines().count() == 3).then_some(())
    });
    let list = cluster.run("squeue", &["-h", "-j", &last.to_string(), "-o", "%A"]);
    let tasks: Vec<u32> = list
        .lines()
        .filter_map(|id| id.trim().parse().ok())
        .collect();
    assert!(tasks.contains(&last), "{tasks:?}");
    let lost = start(cluster, &["--gres=gpu:8"]);
    let (off, off_gpu) = place(cluster, lost, 5);
    let hit = start(cluster, &["--gres=gpu:7"]);
    let (mid, mid_gpu) = place(cluster, hit, 3);
    assert!(off != mid && off != "n1" && mid != "n1");
    ended_meanwhile(cluster);

    let (_, gpu) = place(cluster, last, 0);
    fault(cluster, "n1", gpu, "xid 48");
    fault(cluster, &off, off_gpu, "xid 79");
    fault(cluster, &mid, mid_gpu, "xid 48");
    // Slurm knows that the GPU is out; what follows from it is about to be done, or was done meanwhile.
    cluster.until("Slurm knows", || {
        let knows = is_out(cluster, &mid, mid_gpu) || started(cluster, hit, 1).is_some();
        knows.then_some(())
    });
    let lab = &cluster.lab;
    assert!(lab.kill_gpuosd(&mid, 9).expect("ends"));
    lab.start_gpuosd(&mid).expect("starts");

    for job in [last, lost, hit] {
        again(cluster, job);
    }
    for task in tasks.iter().filter(|task| **task != last) {
        untouched(cluster, *task);
    }
    told(cluster, &mid, "the GPU is reset");
    assert!(lab.kill_gpuosd(&mid, 9).expect("ends"));
    lab.start_gpuosd(&mid).expect("starts");

    cluster.until("the node with the lost GPU is drained", || {
        is_drained(cluster, &off).then_some(())
    });
    let reason = cluster.run("sinfo", &["-h", "-n", &off, "-o", "%E"]);
    assert!(
        reason.contains(&format!("gpuos: GPU {off_gpu}")),
        "{reason}"
    );
    assert!(!cluster.gpus(lost).contains_key(&off));
    for node in NODES.iter().filter(|node| **node != off) {
        assert!(!is_drained(cluster, node), "{node}");
    }
    // Nothing but a boot brings it back, and that does by itself.
    lab.reboot(&off).expect("boots");
    told(cluster, &off, "the node was booted");
    NODES.iter().for_each(|node| is_back(cluster, node));
    cluster.cancel(&[last, lost, hit]);
}

/// A job that its user cancelled stays cancelled, though gpuosd saw it run and has it requeued a moment later.
fn ended_meanwhile(cluster: &Cluster) {
    let job = cluster.sbatch(&["--requeue"], "trap '' TERM; echo up > up; sleep 600");
    let up = cluster.lab.dir().join("work/up");
    cluster.until("the job ignores the signal", || up.exists().then_some(()));
    let id = job.to_string();
    cluster.run("scancel", &[&id]);
    let _ = cluster.try_run("scontrol", &["requeue", "incomplete", &id]);
    let show = cluster.show(job);
    assert!(
        show.contains("Restarts=0") && !show.contains("JobState=PENDING"),
        "{show}"
    );
    cluster.until("the job is cancelled", || {
        cluster
            .show(job)
            .contains("JobState=CANCELLED")
            .then_some(())
    });
}

fn one_fault(cluster: &Cluster, node: &str, (words, rule, job, gpu): (&str, &str, Job, Gpu)) {
    eprintln!("{node}: {words}: the job is {job:?}, the GPU {gpu:?}");
    let hit = start(cluster, &["--gres=gpu:2", "-w", node]);
    let (_, index) = place(cluster, hit, 0);
    let beside = start(cluster, &["--gres=gpu:1", "-w", node]);
    let far = start(cluster, &["--gres=gpu:1", "-x", node]);
    fault(cluster, node, index, words);
    told(cluster, node, rule);
    match job {
        Job::Left => untouched(cluster, hit),
        Job::Requeued => {
            cluster.until("the requeued job runs again", || started(cluster, hit, 1));
            let now = cluster.gpus(hit);
            let same = now.get(node).is_some_and(|set| set.contains(&index));
            assert!(!same, "{now:?}");
        }
    }
    untouched(cluster, beside);
    untouched(cluster, far);
    // No new job is given it while it is out.
    if job == Job::Left && gpu == Gpu::Reset {
        let new = start(cluster, &["--gres=gpu:1", "-w", node]);
        assert!(!cluster.gpus(new)[node].contains(&index));
        cluster.cancel(&[new]);
    }
    if job == Job::Left {
        untouched(cluster, hit);
    }
    untouched(cluster, beside);
    cluster.cancel(&[hit, beside, far]);
    is_back(cluster, node);
}

/// How long it takes from the fault to the requeued job's first line; by `scripts/recovery.sh`.
#[test]
fn recovery() {
    let Some(runs) = measured_runs("GPUOS_RECOVERY_RUNS", "scripts/recovery.sh") else {
        return;
    };
    let Some(cluster) = four("recovery", &Suite::Native) else {
        return;
    };
    let mut times = Vec::new();
    for _ in 0..runs {
        let job = start(&cluster, &["--gres=gpu:2"]);
        let (node, index) = place(&cluster, job, 0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("after 1970").as_nanos();
        fault(&cluster, &node, index, "xid 48");
        let again = cluster.until("it runs again", || started(&cluster, job, 1));
        times.push((again - now) as f64 / 1e9);
        eprintln!("{:.1} s", (again - now) as f64 / 1e9);
        // The GPU comes back while the next ones break: there are thirty others.
        cluster.cancel(&[job]);
    }
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() as f64 * part).ceil() as usize).max(1) - 1];
    println!(
        "recovery, Slurm {}, {runs} runs, from the fault to the first line of the requeued job: median {:.1} s, \
         p95 {:.1} s, longest {:.1} s",
        cluster.lab.version(),
        at(0.5),
        at(0.95),
        at(1.0)
    );
    cluster.drained();
}
