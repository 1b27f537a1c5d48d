//! A randomised run: submits in all forms, cancels, requeues, node failures, reconfigures, restarts
//! and crashes of slurmctld. A ledger that knows nothing of Slurm's counts, made from what prolog and
//! epilog write on the nodes, says whether a GPU was ever held by two jobs; at the end nothing may be
//! in use.
//!
//! 300 operations on each release; `GPUOS_SOAK=5000` does more, `GPUOS_SOAK_SEED` repeats a run, and
//! `GPUOS_SOAK_STOCK=1` does the same to Slurm without gpuos, to tell whose a fault is.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

use gpuos_lab::{LabSpec, Suite};
use gpuos_tests::{Cluster, Setup, per_suite, show};

per_suite!(soak, late_start);

const NODES: usize = 4;

fn soak(suite: &Suite) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let operations = number("GPUOS_SOAK").unwrap_or(300);
    // The short run of every day is always the same one; longer ones look for news.
    let fresh = || match number("GPUOS_SOAK") {
        None => 2205,
        Some(_) => nanoseconds() as u64,
    };
    let seed = number("GPUOS_SOAK_SEED").unwrap_or_else(fresh);
    let mut setup = Setup::new("soak", suite);
    setup.spec.nodes = NODES.into();
    setup.spec.topology_conf = Some(LabSpec::tree_topology(&setup.spec.node_names(), 2));
    setup.spec.node_extra = "Feature=odd".into();
    setup.spec.slurm_conf_extra.extend([
        "PreemptType=preempt/partition_prio".into(),
        "PreemptMode=REQUEUE".into(),
        "PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP".into(),
        "MinJobAge=60".into(),
    ]);
    let stock = std::env::var_os("GPUOS_SOAK_STOCK").is_some();
    let cluster = match stock {
        true => setup.stock().up(),
        false => setup.steered(),
    };
    let Some(cluster) = cluster else {
        return;
    };
    write_ledger_scripts(&cluster);
    ledger_is_right(&cluster);
    eprintln!(
        "soak on Slurm {}: {operations} operations, GPUOS_SOAK_SEED={seed}",
        cluster.lab.version()
    );
    let mut run = Run {
        cluster: &cluster,
        random: Random(seed | 1),
        jobs: Vec::new(),
        done: BTreeMap::new(),
        forms: FORMS.to_vec(),
    };
    if stock {
        run.forms.retain(|form| !form.contains("gpuos"));
    }
    for operation in 0..operations {
        run.step();
        if operation % 25 == 24 {
            run.check_records(seed);
        }
    }
    eprintln!("{:?}", run.done);
    // First: what follows may fail for less.
    let ledger = read_ledger(&cluster);
    if let Err(why) = check_ledger(&ledger) {
        // The lab goes with this test.
        let kept = std::env::temp_dir().join(cluster.lab.name());
        let _ = fs::write(
            kept.with_extension("slurmctld.log"),
            cluster.lab.slurmctld_log(),
        );
        let _ = fs::copy(
            cluster.lab.dir().join("work/ledger"),
            kept.with_extension("ledger"),
        );
        let kept = kept.display();
        panic!("{why}; GPUOS_SOAK_SEED={seed}; kept: {kept}.ledger, {kept}.slurmctld.log");
    }
    cluster.drained();
    let starts = ledger
        .iter()
        .filter(|event| event.kind == Kind::Start)
        .count();
    assert!(
        starts as u64 > operations / 10,
        "only {starts} starts of jobs on nodes"
    );
    assert_eq!(cluster.passes_through(), None);
    if !stock {
        let counts = cluster.recording().replay(&mut |step| {
            assert!(step.same, "{:?} now {:?}", step.asked, step.again);
        });
        eprintln!("decisions asked again: {counts:?}");
    }
    eprintln!("{starts} starts of jobs on nodes");
}

fn nanoseconds() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |time| time.as_nanos())
}

/// Numbers that look random and can be repeated (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }

    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// The forms of request that are submitted.
const FORMS: &[&str] = &[
    "--gres=gpu:1",
    "--gres=gpu:2",
    "--gres=gpu:a40:4",
    "--gpus=1",
    "--gpus=3 -N2",
    "--gpus=5",
    "--gpus-per-node=2 -N2",
    "--gpus-per-node=8",
    "--gpus-per-node=4 -N1-3",
    "--gpus-per-task=1 -n3",
    "--gpus-per-task=2 -n2 -N2",
    "--gpus-per-socket=1 --sockets-per-node=2 -N1 -n2",
    "--exclusive --gres=gpu:1",
    "--array=1-4 --gres=gpu:1",
    "--gres=gpu:1 : --gres=gpu:2",
    "--constraint=odd --gres=gpu:1",
    "--nodelist=n2 --gres=gpu:2",
    "--gres=gpu:2 --switches=1 -N2",
    "--gres=gpu:4 --gpuos-topology=leaf:required -N2",
    "--gres=gpu:2 --gpuos-topology=nvlink",
    "--gres=gpu:1 --gpuos-placement=spread",
    "--gres=gpu:2 --gpuos=off",
    "--partition=high --gres=gpu:6",
    "--cpus-per-gpu=4 --gres=gpu:2",
    "-N1",
];

struct Run<'a> {
    cluster: &'a Cluster,
    random: Random,
    /// Jobs that were submitted and may still be there.
    jobs: Vec<u32>,
    /// How often each operation was done.
    done: BTreeMap<&'static str, u32>,
    /// The forms of request to choose from.
    forms: Vec<&'static str>,
}

impl Run<'_> {
    fn step(&mut self) {
        let name = match self.random.below(1000) {
            0..650 => self.submit(),
            650..800 => self.each_job("scancel", &["scancel"]),
            800..850 => self.each_job("requeue", &["scontrol", "requeue"]),
            850..870 => self.each_job("suspend", &["scontrol", "suspend"]),
            870..900 => self.each_job("resume", &["scontrol", "resume"]),
            900..920 => self.each_job("signal", &["scancel", "--signal=TERM"]),
            920..940 => self.node_drains(),
            940..955 => self.node_dies(),
            955..975 => {
                self.cluster.lab.reconfigure().expect("reconfigures");
                "reconfigure"
            }
            975..985 => {
                self.cluster.restart_slurmctld();
                "restart"
            }
            985..990 => self.crash(),
            _ => self.cancel_all(),
        };
        *self.done.entry(name).or_default() += 1;
    }

    fn submit(&mut self) -> &'static str {
        let form = self.random.one(&self.forms);
        let seconds = 1 + self.random.below(6);
        let options: Vec<&str> =
            [&["--requeue"], &form.split(' ').collect::<Vec<_>>()[..]].concat();
        match self
            .cluster
            .try_sbatch(&options, &format!("sleep {seconds}"))
        {
            Ok(job) => {
                self.jobs.push(job);
                if self.jobs.len() > 40 {
                    self.jobs.remove(0);
                }
                "submit"
            }
            Err(why) => panic!("{form}: {why}{}", self.cluster.report("")),
        }
    }

    /// A command on one of the latest jobs, which may be over.
    fn each_job(&mut self, name: &'static str, command: &[&str]) -> &'static str {
        if self.jobs.is_empty() {
            return "nothing";
        }
        let job = self.jobs[self.random.below(self.jobs.len() as u64) as usize].to_string();
        let args = [&command[1..], &[job.as_str()]].concat();
        let _ = self.cluster.try_run(command[0], &args);
        name
    }

    fn node(&mut self) -> String {
        format!("n{}", 1 + self.random.below(NODES as u64))
    }

    /// An administrator takes a node out of service and puts it back.
    fn node_drains(&mut self) -> &'static str {
        let node = format!("NodeName={}", self.node());
        let update = |state| {
            let args = ["update", &node, state, "Reason=soak"];
            let _ = self.cluster.try_run("scontrol", &args);
        };
        update("State=DRAIN");
        self.submit();
        update("State=RESUME");
        "node drains"
    }

    /// The slurmd of a node dies, the node goes down, and both come back.
    fn node_dies(&mut self) -> &'static str {
        let node = self.node();
        let lab = &self.cluster.lab;
        // Without mercy: in order it would wait for steps that it is just starting or ending.
        if let Some(pid) = lab.slurmd_pid(&node) {
            self.cluster.run("sh", &["-c", &format!("kill -9 {pid}")]);
            self.cluster.until("the slurmd is gone", || {
                lab.slurmd_pid(&node).is_none().then_some(())
            });
        }
        let name = format!("NodeName={node}");
        let args = ["update", &name, "State=DOWN", "Reason=soak"];
        self.cluster.run("scontrol", &args);
        record_failure(self.cluster, &node);
        // A child that the dead slurmd had just forked may still hold its port.
        self.cluster
            .until("the slurmd starts", || lab.start_slurmd(&node).ok());
        self.cluster.ready();
        "node dies"
    }

    /// slurmctld is killed. No job may start between its last save and its death: what it had not
    /// saved it does not know, and then no select plugin can keep the counts right.
    fn crash(&mut self) -> &'static str {
        let partitions = |state: &str| {
            for name in ["PartitionName=all", "PartitionName=high"] {
                self.cluster.run("scontrol", &["update", name, state]);
            }
        };
        partitions("State=DOWN");
        let held = self.cluster.sbatch(&["--hold", "-N1"], "true");
        self.cluster.crash(held);
        self.cluster.cancel(&[held]);
        partitions("State=UP");
        "kill -9"
    }

    fn cancel_all(&mut self) -> &'static str {
        let _ = self.cluster.try_run("scancel", &["-u", "root"]);
        self.jobs.clear();
        "cancel all"
    }

    /// By Slurm's own records too no GPU is given twice.
    fn check_records(&mut self, seed: u64) {
        let text = self.cluster.run("scontrol", &["-d", "show", "job"]);
        let mut holders: BTreeMap<(String, usize), String> = BTreeMap::new();
        for block in text.split("\n\n") {
            let state = gpuos_lab::field(block, "JobState").unwrap_or_default();
            if !["RUNNING", "SUSPENDED"].contains(&state) {
                continue;
            }
            let job = gpuos_lab::field(block, "JobId").unwrap_or_default();
            for (node, set) in show::job_gpus(block) {
                for gpu in set {
                    let before = holders.insert((node.clone(), gpu), job.to_string());
                    assert!(
                        before.is_none(),
                        "{node} GPU {gpu}: {before:?} and {job}; seed {seed}"
                    );
                }
            }
        }
    }
}

/// Prolog and epilog write who holds which GPU of which node, and since when.
fn write_ledger_scripts(cluster: &Cluster) {
    let lab = &cluster.lab;
    let dir = lab.dir().join("work");
    for (name, kind) in [("Prolog", "S"), ("Epilog", "E")] {
        let file = dir.join(name);
        let script = format!(
            "#!/bin/sh\necho {kind} $(date +%s%N) ${{SLURMD_NODENAME:-$SLURM_NODENAME}} $SLURM_JOB_ID \
             ${{SLURM_JOB_GPUS:-none}} ${{SLURM_JOB_RESTART_COUNT:--}} >> {}\n",
            dir.join("ledger").display()
        );
        fs::write(&file, script).expect("writes");
        fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("may run");
        lab.set_slurm_conf(name, Some(&file.to_string_lossy()))
            .expect("edits");
    }
    // On all nodes of the job, before it starts.
    lab.set_slurm_conf("PrologFlags", Some("Alloc"))
        .expect("edits");
    lab.restart().expect("restarts");
}

/// The ledger shows of each node of a job what Slurm gave it there.
fn ledger_is_right(cluster: &Cluster) {
    let beside = cluster.start(&["--gres=gpu:3", "-w", "n1"]);
    // All that is free: equal shares would be the same GPUs on both nodes.
    let job = cluster.start(&["--gpus=13", "-w", "n1,n2", "-N2"]);
    let gpus = cluster.gpus(job);
    cluster.until("both nodes stand in the ledger", || {
        let ledger = read_ledger(cluster);
        let own = ledger.iter().filter(|event| event.job == job);
        let seen: show::Gpus = own
            .map(|event| (event.node.clone(), event.gpus.clone()))
            .collect();
        (seen == gpus).then_some(())
    });
    assert_ne!(gpus["n1"], gpus["n2"]);
    cluster.cancel(&[beside, job]);
}

/// A node has failed and is set down: slurmctld has taken back every start of a job there. Slurmctld goes
/// on sending what it had under way to the node, though, and a slurmd that comes back soon runs the prolog
/// of a start that was taken back (stock Slurm too). So the ledger notes which starts can still be valid.
fn record_failure(cluster: &Cluster, node: &str) {
    let jobs = cluster.run("scontrol", &["show", "job"]);
    let valid: Vec<String> = jobs.split("\n\n").filter_map(first_valid).collect();
    let valid = match valid.is_empty() {
        true => "none".to_string(),
        false => valid.join(","),
    };
    record(cluster, &format!("F {} {node} {valid}", nanoseconds()));
}

/// `JOB:RESTARTS`: a start of this job with a lower restart count has been taken back. `None` where
/// no start has been.
fn first_valid(block: &str) -> Option<String> {
    let field = |name| gpuos_lab::field(block, name);
    let job = field("JobId")?;
    let restarts: u32 = field("Restarts")?.parse().ok()?;
    let goes_on = [
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETING",
        "CONFIGURING",
    ];
    let over = !goes_on.contains(&field("JobState")?);
    // A job that is over starts again only after a requeue, which counts one more.
    let first = restarts + u32::from(over);
    (first > 0).then(|| format!("{job}:{first}"))
}

fn record(cluster: &Cluster, line: &str) {
    use std::io::Write;
    let path = cluster.lab.dir().join("work/ledger");
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    writeln!(file.expect("opens"), "{line}").expect("writes");
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    /// A node has failed: nothing on it is held any more.
    Failure,
    /// A job has ended on a node.
    End,
    /// A job starts on a node.
    Start,
}

struct Event {
    time: u128,
    kind: Kind,
    node: String,
    job: u32,
    gpus: Vec<usize>,
    /// How often the job had been started anew; not every epilog knows it.
    restarts: Option<u32>,
    /// At a failure: the first restart count of each job that is still valid.
    valid: Vec<(u32, u32)>,
}

fn read_ledger(cluster: &Cluster) -> Vec<Event> {
    let text = fs::read_to_string(cluster.lab.dir().join("work/ledger"));
    parse_ledger(&text.unwrap_or_default())
}

/// Lines are `S TIME NODE JOB GPUS RESTARTS`, the same with `E`, and `F TIME NODE JOB:RESTARTS,...`.
fn parse_ledger(text: &str) -> Vec<Event> {
    let pair = |text: &str| {
        let (job, first) = text.split_once(':')?;
        Some((job.parse().ok()?, first.parse().ok()?))
    };
    let mut events: Vec<Event> = text
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let word = |index: usize| words.get(index).copied().unwrap_or_default();
            Event {
                kind: match word(0) {
                    "F" => Kind::Failure,
                    "S" => Kind::Start,
                    "E" => Kind::End,
                    _ => panic!("ledger: {line:?}"),
                },
                time: word(1).parse().expect("a time"),
                node: word(2).to_string(),
                job: word(3).parse().unwrap_or(0),
                gpus: show::indices(word(4)),
                restarts: word(5).parse().ok(),
                valid: word(3).split(',').filter_map(pair).collect(),
            }
        })
        .collect();
    events.sort_by_key(|event| (event.time, event.kind));
    events
}

/// No GPU may be held by two jobs at once. What a start that was taken back before has on record does not
/// count: the GPU may be another job's by then.
fn check_ledger(events: &[Event]) -> Result<(), String> {
    // Job and restart count that hold each GPU of each node.
    let mut held: BTreeMap<(&str, usize), (u32, Option<u32>)> = BTreeMap::new();
    let mut valid: BTreeMap<u32, u32> = BTreeMap::new();
    for event in events {
        match event.kind {
            Kind::Failure => {
                held.retain(|(node, _), _| *node != event.node);
                for (job, first) in &event.valid {
                    let known = valid.entry(*job).or_default();
                    *known = (*known).max(*first);
                }
            }
            Kind::End => held.retain(|(node, _), (job, restarts)| {
                // The epilog of a requeued start names the count of the next one.
                let other_start = match (event.restarts, *restarts) {
                    (Some(ended), Some(holds)) => holds > ended,
                    _ => false,
                };
                *node != event.node || *job != event.job || other_start
            }),
            Kind::Start => {
                let first = valid.get(&event.job).copied().unwrap_or(0);
                if event.restarts.is_some_and(|restarts| restarts < first) {
                    continue;
                }
                for gpu in &event.gpus {
                    let before = held.insert((&event.node, *gpu), (event.job, event.restarts));
                    if let Some((other, _)) = before.filter(|(other, _)| *other != event.job) {
                        return Err(format!(
                            "{} GPU {gpu} was given to job {} while job {other} held it",
                            event.node, event.job
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_ledger_sees_a_gpu_given_twice() {
    let good = "S 10 n1 1 0,1 0\nS 12 n2 2 0 0\nE 20 n1 1 0,1 -\nS 30 n1 3 1-2 0\nF 40 n1 none\n\
                S 41 n1 4 1 0\n";
    assert_eq!(check_ledger(&parse_ledger(good)), Ok(()));
    let bad = good.to_string() + "S 50 n1 5 0-1 0\n";
    assert!(check_ledger(&parse_ledger(&bad)).is_err());
}

/// The order that 26.05 shows after a slurmd's death: job 5 was given GPU 0, the node failed, job 6 was
/// given the GPU, and then the node ran the prolog of job 5's first start, and its epilog.
#[test]
fn a_start_that_was_taken_back_holds_nothing() {
    let check = |text: &str| check_ledger(&parse_ledger(text));
    let start = "F 10 n1 5:1\nS 20 n1 6 0 0\n";
    assert_eq!(check(&format!("{start}S 30 n1 5 0 0\n")), Ok(()));
    // Its second start is as good as any.
    let twice = check(&format!("{start}S 30 n1 5 0 1\n"));
    assert_eq!(
        twice.unwrap_err(),
        "n1 GPU 0 was given to job 5 while job 6 held it"
    );
    // The end of the first start is not the end of the second.
    let late_end = "F 10 n1 5:1\nS 20 n1 5 0 1\nE 25 n1 5 0 0\nS 30 n1 6 0 0\n";
    assert!(check(late_end).is_err());
    // After a requeue slurmctld has counted on before the epilog runs.
    let requeued = "S 20 n1 5 0 0\nE 25 n1 5 0 1\nS 30 n1 6 0 0\n";
    assert_eq!(check(requeued), Ok(()));
    // A start that was taken back keeps nobody out either.
    let first = "F 10 n1 5:1\nS 20 n1 5 0 0\nS 30 n1 6 0 0\n";
    assert_eq!(check(first), Ok(()));
}

#[test]
fn a_failure_notes_which_starts_are_valid() {
    let job = |state: &str, restarts: u32| {
        first_valid(&format!(
            "JobId=7 JobName=wrap\n   JobState={state} Reason=None\n   Requeue=1 Restarts={restarts} BatchFlag=1"
        ))
    };
    assert_eq!(job("PENDING", 0), None);
    assert_eq!(job("RUNNING", 0), None);
    assert_eq!(job("PENDING", 1).as_deref(), Some("7:1"));
    assert_eq!(job("CANCELLED", 0).as_deref(), Some("7:1"));
    assert_eq!(job("COMPLETED", 2).as_deref(), Some("7:3"));
}

/// A job is given a GPU of a node whose slurmd has just died; the node is set down and comes back, and
/// another job is given the GPU. The prolog of the first may still run there: no GPU is given twice.
fn late_start(suite: &Suite) {
    let setup = Setup::new("late-start", suite);
    let cluster = match std::env::var_os("GPUOS_SOAK_STOCK").is_some() {
        true => setup.stock().up(),
        false => setup.steered(),
    };
    let Some(cluster) = cluster else {
        return;
    };
    write_ledger_scripts(&cluster);
    let lab = &cluster.lab;
    let pid = lab.slurmd_pid("n1").expect("runs");
    cluster.run("sh", &["-c", &format!("kill -9 {pid}")]);
    let options = ["--requeue", "--gres=gpu:8", "-w", "n1"];
    let first = cluster.sbatch(&options, "sleep 3");
    cluster.wait(first, &["RUNNING", "CONFIGURING"]);
    let update = |state| {
        let args = ["update", "NodeName=n1", state, "Reason=soak"];
        cluster.run("scontrol", &args);
    };
    update("State=DOWN");
    record_failure(&cluster, "n1");
    cluster.run("scontrol", &["hold", &first.to_string()]);
    let second = cluster.sbatch(&options, "sleep 5");
    cluster.until("the slurmd starts", || lab.start_slurmd("n1").ok());
    cluster.wait(second, &["COMPLETED"]);
    cluster.drained();
    let ledger = read_ledger(&cluster);
    let late = ledger
        .iter()
        .filter(|event| (event.kind, event.job, event.restarts) == (Kind::Start, first, Some(0)))
        .count();
    eprintln!("{late} prologs of a start that was taken back");
    assert_eq!(check_ledger(&ledger), Ok(()));
}
