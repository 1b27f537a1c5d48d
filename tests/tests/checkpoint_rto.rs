//! How long a program stands still when it loses a node: from the death of the node to the next step of the program on all ranks.
//!
//! `GPUOS_CKPT_RTO=RUNS` measures it so often, by `make ckpt-rto`; without it nothing is done. All processes of the node are killed, gpuosd too, and its store is
//! removed; slurmctld is told nothing: the gpuosds of the job's other nodes find it. `GPUOS_CKPT_RTO_MIB` is what each rank saves, `GPUOS_CKPT_RTO_MODES` which of
//! `requeue` and `spare` are measured, `GPUOS_CKPT_RTO_SEED` repeats the choice of nodes and moments, and with `GPUOS_WRITE=1` the table is written to docs/results.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpuos_core::peers::HOLD_MS;
use gpuos_lab::Suite;
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::{Cluster, Setup, measured_runs, plugins, results, skip};

#[path = "checkpoint_rto/table.rs"]
mod table;

use crate::checkpoint::{committed, logs};
use crate::checkpoint_matrix::{Random, end_all_of, kill, programs_of, root};
use crate::heartbeat::{all_heard, found, nodes_of, now_ms, revive};
use table::{Run, Table};

/// Three or four for a job, one that takes over, and those that wait: for a minute, a gpuosd that was started anew has no say, and one that has said that a node
/// is gone says nothing against who asked it.
const NODES: usize = 16;
const RANKS: u32 = 3;

/// A program that saves what it is asked to, in steps of 10 ms, and writes when it began, was answered and did its first step. It ends once
/// what it had reached is far behind.
const PROGRAM: &str = "
import os, sys, time
from gpuos import checkpoint
ckpt, name, size = checkpoint.Checkpoints(), sys.argv[1], int(sys.argv[2]) << 20
def say(what):
    with open(f'{name}.{ckpt.rank}.times', 'a') as file:
        file.write(f'{time.time_ns() // 1000000} {what}\\n')
say('begun')
start, count, state = ckpt.join(), 0, os.urandom(size)
say('answered')
if start:
    count, state = int((start.folder / 'count').read_text()), (start.folder / 'state').read_bytes()
    assert len(state) == size
first = count + 1
while True:
    time.sleep(0.01)
    count += 1
    if count == first:
        say(f'step {count}')
    wanted = ckpt.wanted()
    if wanted:
        try:
            folder = ckpt.folder(wanted.number)
            (folder / 'count').write_text(str(count))
            (folder / 'state').write_bytes(state)
            ckpt.ready(wanted.number)
        except checkpoint.GivenUp as why:
            print(why, flush=True)
";

/// How the program comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// The job is requeued.
    Requeue,
    /// The job has a node more, and `gpuos run` starts the program again.
    Spare,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Requeue => "requeue",
            Mode::Spare => "spare",
        }
    }
}

struct Measure {
    cluster: Cluster,
    random: Random,
    mib: u64,
    /// Since when the gpuosd of a node has run and been asked nothing.
    up: BTreeMap<String, Instant>,
    /// The command `gpuos`, in a folder that the lab's jobs can read.
    gpuos: PathBuf,
}

#[test]
fn node_loss_to_next_step() {
    let Some(runs) = measured_runs("GPUOS_CKPT_RTO", "make ckpt-rto") else {
        return;
    };
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = number("GPUOS_CKPT_RTO_SEED").unwrap_or(since.unwrap_or_default().as_secs());
    let mib = number("GPUOS_CKPT_RTO_MIB").unwrap_or(16);
    let modes = std::env::var("GPUOS_CKPT_RTO_MODES").unwrap_or_default();
    let mut setup = Setup::simulated("ckpt-rto", &Suite::Native, NODES);
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    setup.spec.job_submit = true;
    setup.spec.gpuos_toml = Some("[heartbeat]\nact = \"down\"\n".into());
    // As slow as Slurm is by its own defaults: labs have a slurmctld that looks for work every few seconds.
    setup.spec.slurm_conf_extra = vec![
        "SchedulerParameters=batch_sched_delay=3,sched_interval=60,bf_interval=30".into(),
        "KillWait=30".into(),
    ];
    let Some(cluster) = setup.steered() else {
        return;
    };
    eprintln!("GPUOS_CKPT_RTO_SEED={seed}");
    let file = cluster.lab.dir().join("work/steps.py");
    fs::write(file, PROGRAM).expect("written");
    let nodes = cluster.lab.spec().node_names().into_iter();
    let mut measure = Measure {
        random: Random(seed | 1),
        mib,
        up: nodes.map(|node| (node, Instant::now())).collect(),
        gpuos: plugins::programs().join("gpuos"),
        cluster,
    };
    let mut table = Table::new(seed, mib, measure.cluster.lab.version());
    for mode in [Mode::Requeue, Mode::Spare] {
        if !modes.is_empty() && !modes.split(',').any(|name| name == mode.name()) {
            continue;
        }
        if mode == Mode::Spare && !measure.has_spares() {
            skip(
                "node loss with a spare",
                "this gpuos has no command `gpuos run`",
            );
            continue;
        }
        for at in 1..=runs {
            let run = measure.run(mode);
            eprintln!("{} {at} of {runs}: {run}", mode.name());
            table.add(mode, run);
        }
    }
    eprintln!("{table}");
    if results::wanted() {
        table.write();
    }
    table.assert_goals();
}

impl Measure {
    fn has_spares(&self) -> bool {
        let told = Command::new(&self.gpuos).args(["run", "--help"]).output();
        told.is_ok_and(|out| out.status.success())
    }

    fn submit(&self, mode: Mode) -> u32 {
        let python = root().join("python");
        let program = format!(
            "env PYTHONPATH={} python3 steps.py $SLURM_JOB_ID {}",
            python.display(),
            self.mib
        );
        let start = match mode {
            Mode::Requeue => format!("srun {program}"),
            Mode::Spare => format!("{} run --ntasks-per-node=1 {program}", self.gpuos.display()),
        };
        let script = format!("echo $(date +%s%3N) begun >> $SLURM_JOB_ID.script.times; {start}");
        let mut options = vec![
            "--requeue",
            "-N3",
            "--ntasks-per-node=1",
            "--gres=gpu:1",
            "--open-mode=append",
            "--gpuos-checkpoint=1s,l2=xor:3",
        ];
        if mode == Mode::Spare {
            options.push("--gpuos-spares=1");
        }
        let silent: Vec<&str> = self
            .up
            .keys()
            .filter(|node| !self.has_a_say(node))
            .map(String::as_str)
            .collect();
        let exclude = format!("--exclude={}", silent.join(","));
        if !silent.is_empty() {
            options.push(&exclude);
        }
        self.cluster.sbatch(&options, &script)
    }

    fn has_a_say(&self, node: &str) -> bool {
        self.up[node].elapsed() > Duration::from_millis(HOLD_MS) + Duration::from_secs(1)
    }

    /// When `what` was written since `since`, by this rank or `script`, in milliseconds since 1970.
    fn at(&self, job: u32, who: &str, what: &str, since: u64) -> Option<u64> {
        let file = self
            .cluster
            .lab
            .dir()
            .join(format!("work/{job}.{who}.times"));
        let text = fs::read_to_string(file).unwrap_or_default();
        let times = text.lines().filter_map(|line| {
            let (at, said) = line.split_once(' ')?;
            said.starts_with(what).then(|| at.parse::<u64>().ok())?
        });
        times.filter(|at| *at >= since).min()
    }

    /// When the last rank had written it.
    fn all_at(&self, job: u32, what: &str, since: u64) -> Option<u64> {
        let of = |rank: u32| self.at(job, &rank.to_string(), what, since);
        let all: Option<Vec<u64>> = (0..RANKS).map(of).collect();
        all?.into_iter().max()
    }

    /// The spare one has none.
    fn has_rank(&self, node: &str, job: u32) -> bool {
        let jobs = self
            .cluster
            .lab
            .checkpoints_dir(node)
            .with_file_name("jobs");
        let ranks = fs::read_dir(jobs.join(format!("{job}/ranks")));
        ranks.is_ok_and(|mut ranks| ranks.next().is_some())
    }

    fn newest(&self, job: u32) -> u32 {
        let of = |node: &String| committed(&self.cluster, node, job);
        self.up.keys().filter_map(of).max().unwrap_or(0)
    }

    /// Waits; in vain with all that is known.
    fn until<T>(&self, job: u32, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(value) = done() {
                return value;
            }
            if Instant::now() > deadline {
                let output = crate::checkpoint::output(&self.cluster, job);
                let report = self.cluster.report("");
                panic!(
                    "waited in vain: {what}\n{output}\n{}\n{report}",
                    logs(&self.cluster)
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A job loses a node.
    fn run(&mut self, mode: Mode) -> Run {
        self.cluster.ready();
        self.until(0, "nodes that have a say", || {
            let count = self.up.keys().filter(|node| self.has_a_say(node)).count();
            (count > RANKS as usize + 1).then_some(())
        });
        let job = self.submit(mode);
        self.cluster.wait(job, &["RUNNING"]);
        all_heard(&self.cluster, job);
        let nodes = nodes_of(&self.cluster, job);
        let before = self.newest(job);
        self.until(job, "checkpoints", || {
            (self.newest(job) > before + 1).then_some(())
        });
        std::thread::sleep(Duration::from_millis(self.random.below(1000)));
        let ranks: Vec<&String> = nodes
            .iter()
            .filter(|node| self.has_rank(node, job))
            .collect();
        let victim = ranks[self.random.below(ranks.len() as u64) as usize].clone();
        let newest = self.newest(job);

        let killed = now_ms();
        self.cluster
            .lab
            .kill_gpuosd(&victim, libc::SIGKILL)
            .expect("ends");
        end_all_of(&self.cluster, &victim);
        if mode == Mode::Requeue {
            self.until(job, "the job is requeued", || {
                let show = self.cluster.show(job);
                (!show.contains("JobState=RUNNING") || !show.contains("Restarts=0")).then_some(())
            });
        }
        let requeued = now_ms();
        let step = self.until(job, "the next step", || self.all_at(job, "step", killed));
        let others: Vec<String> = nodes.into_iter().filter(|node| *node != victim).collect();
        let found = found(&self.cluster, &victim, &others, killed);
        let since = |at: Option<u64>| at.map(|at| at - killed);
        let run = Run {
            found: since(found),
            requeued: (mode == Mode::Requeue).then(|| requeued - killed),
            script: since(self.at(job, "script", "begun", killed)),
            begun: since(self.all_at(job, "begun", killed)),
            answered: since(self.all_at(job, "answered", killed)),
            step: step - killed,
            first_node: others.first().is_none_or(|first| *first > victim),
        };
        self.goes_on(job, newest);
        self.clean(job, &victim);
        let now = Instant::now();
        self.up
            .extend(others.into_iter().chain([victim]).map(|node| (node, now)));
        run
    }

    /// It has gone on from a checkpoint, and makes others.
    fn goes_on(&self, job: u32, newest: u32) {
        self.until(job, "another checkpoint", || {
            (self.newest(job) > newest).then_some(())
        });
        for rank in 0..RANKS {
            let file = self
                .cluster
                .lab
                .dir()
                .join(format!("work/{job}.{rank}.times"));
            let text = fs::read_to_string(file).unwrap_or_default();
            let last = text
                .lines()
                .filter_map(|line| line.split_once(" step "))
                .next_back();
            let count: u64 = last.and_then(|(_, count)| count.parse().ok()).unwrap_or(0);
            assert!(count > 1, "rank {rank} has begun from the start:\n{text}");
        }
    }

    fn clean(&mut self, job: u32, victim: &str) {
        let _ = self.cluster.try_run("scancel", &[&job.to_string()]);
        for process in programs_of(&self.cluster) {
            kill(process.pid);
        }
        self.cluster.lab.start_mover(victim).expect("starts");
        revive(&self.cluster, victim);
        for node in self.up.keys() {
            let name = format!("NodeName={node}");
            let _ = self
                .cluster
                .try_run("scontrol", &["update", &name, "State=RESUME"]);
        }
        self.cluster.until("all jobs have ended", || {
            let text = self.cluster.run("squeue", &["-h", "-o", "%i"]);
            text.trim().is_empty().then_some(())
        });
    }
}
