//! A randomised run: submits in all forms, cancels, requeues, node failures, reconfigures, restarts
//! and crashes of slurmctld. A ledger that knows nothing of Slurm's counts, made from what prolog and
//! epilog write on the nodes, says whether a GPU was ever held by two jobs; at the end nothing may be
//! in use.
//!
//! 200 operations on each release; `GPUOS_SOAK=5000` does more, `GPUOS_SOAK_SEED` repeats a run, and
//! `GPUOS_SOAK_STOCK=1` does the same to Slurm without gpuos, to tell whose a fault is. With `GPUOS_SOAK_KILLS=1`
//! slurmctld is killed with `kill -9` beside it, every few seconds, whatever it is doing.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuos_lab::{LabSpec, Suite};
use gpuos_tests::{Cluster, Setup, ledger, per_suite, show};

per_suite!(soak, late_start);

const NODES: usize = 4;

fn soak(suite: &Suite) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let operations = number("GPUOS_SOAK").unwrap_or(200);
    // The short run of every day is always the same one; longer ones look for news.
    let fresh = || match number("GPUOS_SOAK") {
        None => 2205,
        Some(_) => ledger::now() as u64,
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
    ledger::write_scripts(&cluster);
    ledger_is_right(&cluster);
    eprintln!(
        "soak on Slurm {}: {operations} operations, GPUOS_SOAK_SEED={seed}",
        cluster.lab.version()
    );
    let _kept = KeepLogs(&cluster);
    let mut run = Run {
        cluster: &cluster,
        random: Random(seed | 1),
        jobs: Vec::new(),
        done: BTreeMap::new(),
        forms: FORMS.to_vec(),
        kills: None,
    };
    if stock {
        run.forms.retain(|form| !form.contains("gpuos"));
    }
    let kills = Kills {
        on: std::env::var_os("GPUOS_SOAK_KILLS").is_some(),
        ..Kills::default()
    };
    run.kills = Some(&kills);
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| kills.run(&cluster, seed ^ 0x9e37));
        // Ended also where an operation panics, or the scope would wait for ever.
        let _over = Over(&kills);
        for operation in 0..operations {
            run.step();
            if operation % 25 == 24 {
                let _quiet = kills.quiet();
                if kills.on {
                    run.nodes_are_back();
                }
                run.check_records(seed);
            }
        }
        kills.over.store(true, Ordering::Relaxed);
        killer.join().expect("the killer of slurmctld");
    });
    eprintln!(
        "{:?}, {} kills of slurmctld at random moments",
        run.done,
        kills.count.load(Ordering::Relaxed)
    );
    // First: what follows may fail for less.
    let events = ledger::read(&cluster);
    assert_eq!(ledger::check(&events), Ok(()));
    cluster.drained();
    let starts = events
        .iter()
        .filter(|event| event.kind == ledger::Kind::Start)
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

/// The lab goes with its test; of one that fails, its logs and the ledger stay.
struct KeepLogs<'a>(&'a Cluster);

impl Drop for KeepLogs<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let lab = &self.0.lab;
        let kept = std::env::temp_dir().join(lab.name());
        let _ = fs::create_dir_all(&kept);
        let _ = fs::copy(lab.dir().join("work/ledger"), kept.join("ledger"));
        for file in fs::read_dir(lab.dir().join("log"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let _ = fs::copy(file.path(), kept.join(file.file_name()));
        }
        eprintln!("logs and ledger are kept in {}", kept.display());
    }
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
    /// Who kills slurmctld meanwhile.
    kills: Option<&'a Kills>,
}

/// Kills slurmctld at random moments.
#[derive(Default)]
struct Kills {
    on: bool,
    over: AtomicBool,
    count: AtomicU32,
    /// Held during a kill, and by what cannot do without slurmctld.
    turn: Mutex<()>,
}

/// The operations are over.
struct Over<'a>(&'a Kills);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl Kills {
    /// No kill while this is held.
    fn quiet(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, cluster: &Cluster, seed: u64) {
        let mut random = Random(seed | 1);
        while self.on && !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(500 + random.below(9000)));
            let _turn = self.quiet();
            cluster.lab.kill_slurmctld(9).expect("kills slurmctld");
            // What it had sent to the nodes has arrived there by then.
            std::thread::sleep(Duration::from_secs(2));
            let killed = ledger::now();
            cluster.lab.start_slurmctld().expect("starts slurmctld");
            ledger::record_crash(cluster, killed);
            cluster.open_nodes(&["State=UNDRAIN", "State=RESUME"]);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Run<'_> {
    fn step(&mut self) {
        let draw = self.random.below(1000);
        // Beside a kill go requests of users alone.
        let _quiet = self.kills.filter(|_| draw >= 920).map(Kills::quiet);
        if draw >= 920 && self.kills.is_some_and(|kills| kills.on) {
            self.nodes_are_back();
        }
        if draw >= 940 {
            self.take_back_drains();
        }
        let name = match draw {
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
                self.cluster.restart_only(15);
                self.nodes_are_back();
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
            // On a busy machine; the job may be there or not.
            Err(why) if why.contains("Socket timed out") => "submit timed out",
            Err(_) if self.kills.is_some_and(|kills| kills.on) => "submit met no slurmctld",
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
        self.cluster.kill_slurmd(&node);
        self.cluster.set_node(&node, "DOWN");
        ledger::record_failure(self.cluster, &node);
        // A child that the dead slurmd had just forked may still hold its port.
        self.cluster
            .until("the slurmd starts", || lab.start_slurmd(&node).ok());
        self.nodes_are_back();
        "node dies"
    }

    /// All nodes can run jobs, those also that slurmctld has drained for a job that it started twice.
    fn nodes_are_back(&self) {
        self.cluster.until("the nodes are back", || {
            self.take_back_drains();
            self.cluster.lab.wait_ready(Duration::from_secs(5)).ok()
        });
    }

    /// A slurmd that is asked to start a job again while it believes an earlier start to go on refuses, and
    /// slurmctld drains the node with this reason, under any select plugin.
    fn take_back_drains(&self) {
        let Ok(nodes) = self.cluster.try_run("sinfo", &["-h", "-N", "-o", "%N %E"]) else {
            return;
        };
        for line in nodes.lines() {
            if let Some((node, "Duplicate jobid")) = line.split_once(' ') {
                let name = format!("NodeName={node}");
                let _ = self
                    .cluster
                    .try_run("scontrol", &["update", &name, "State=RESUME"]);
            }
        }
    }

    /// slurmctld is killed. No job may start between its last save and its death: what it had not
    /// saved it does not know, and then no select plugin can keep the counts right.
    fn crash(&mut self) -> &'static str {
        let partitions = |state: &str| {
            for name in ["PartitionName=all", "PartitionName=high"] {
                self.cluster.update(&[name, state]);
            }
        };
        partitions("State=DOWN");
        let held = self.cluster.sbatch(&["--hold", "-N1"], "true");
        self.cluster.crash_only(held);
        self.nodes_are_back();
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

/// The ledger shows of each node of a job what Slurm gave it there.
fn ledger_is_right(cluster: &Cluster) {
    let beside = cluster.start(&["--gres=gpu:3", "-w", "n1"]);
    // All that is free: equal shares would be the same GPUs on both nodes.
    let job = cluster.start(&["--gpus=13", "-w", "n1,n2", "-N2"]);
    let gpus = cluster.gpus(job);
    cluster.until("both nodes stand in the ledger", || {
        let events = ledger::read(cluster);
        let own = events
            .iter()
            .filter(|event| event.kind == ledger::Kind::Start && event.job == job);
        let seen: show::Gpus = own
            .map(|event| (event.node.clone(), event.gpus.clone()))
            .collect();
        (seen == gpus).then_some(())
    });
    assert_ne!(gpus["n1"], gpus["n2"]);
    cluster.cancel(&[beside, job]);
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
    ledger::write_scripts(&cluster);
    let lab = &cluster.lab;
    cluster.kill_slurmd("n1");
    let options = ["--requeue", "--gres=gpu:8", "-w", "n1"];
    let first = cluster.sbatch(&options, "sleep 3");
    cluster.wait(first, &["RUNNING", "CONFIGURING"]);
    cluster.set_node("n1", "DOWN");
    ledger::record_failure(&cluster, "n1");
    cluster.run("scontrol", &["hold", &first.to_string()]);
    let second = cluster.sbatch(&options, "sleep 5");
    cluster.until("the slurmd starts", || lab.start_slurmd("n1").ok());
    cluster.wait(second, &["COMPLETED"]);
    cluster.drained();
    let events = ledger::read(&cluster);
    let late = events
        .iter()
        .filter(|event| {
            (event.kind, event.job, event.restarts) == (ledger::Kind::Start, first, Some(0))
        })
        .count();
    eprintln!("{late} prologs of a start that was taken back");
    assert_eq!(ledger::check(&events), Ok(()));
}
