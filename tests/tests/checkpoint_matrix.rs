//! Programs in several languages, under MPI and with torch, and what can end beneath them, at random moments: each has to end as if nothing had happened.
//!
//! `GPUOS_CKPT_MATRIX=N` tries each until it was struck at N moments; without it nothing is done. `GPUOS_CKPT_MATRIX_SEED` repeats a run,
//! `GPUOS_CKPT_MATRIX_VICTIMS=node,mover` and `GPUOS_CKPT_MATRIX_PROGRAMS=C,PyTorch` have these alone, and with `GPUOS_WRITE=1` what came of it is added to the table of
//! docs/results. `GPUOS_LAB_CACHE` may name a folder of suites that have Python, Open MPI and torch.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpuos_lab::{Suite, field};
use gpuos_tests::{Cluster, Setup, counted, per_suite, plugins, results};

#[path = "checkpoint_matrix/judge.rs"]
mod judge;
#[path = "checkpoint_matrix/programs.rs"]
mod programs;
#[path = "checkpoint_matrix/table.rs"]
mod table;
#[path = "checkpoint_matrix/victims.rs"]
mod victims;

use crate::checkpoint::committed;
use judge::Moment;
use programs::Program;
use table::Table;
use victims::{Struck, VICTIMS, Victim};
pub(crate) use victims::{end_all_of, kill, programs as programs_of, slurmstepd};

per_suite!(each_program_survives_each_victim);

/// A job with fewer steps before it may end before it makes another checkpoint: 12 s of steps, or two fifths of all.
const ENOUGH: u64 = 240;
/// Between two looks at jobs.
const PAUSE: Duration = Duration::from_millis(150);
const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// How long all jobs may take until the next moment, or to their ends: far more than they do on a busy machine.
const PATIENCE: Duration = Duration::from_secs(200);

/// Starts the program again when it fails. srun waits for ever for a rank whose slurmstepd has ended, if `--wait` does not say otherwise. Each rank of each start writes a file of its own, as what Slurm carries can be lost with a node.
/// Ranks of Open MPI that wait for each other leave the cores to others, and find each other although all nodes are one machine.
const SCRIPT: &str = r#"
start=0
while [ $start -lt 100 ]; do
    start=$((start + 1))
    export LOG=$PWD/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.$start
    export FAKE_MPI=$LOG.mpi INIT_METHOD=file://$LOG.store OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_tcp_if_include=lo
    srun --kill-on-bad-exit=1 --wait=5 OPTIONS sh ./rank.sh PROGRAM && exit 0
    sleep 0.2
done
exit 1
"#;
const RANK: &str = r#"exec >>"$LOG.$SLURM_PROCID.log" 2>&1
GPUOS_MATRIX_RANK=$SLURM_PROCID exec "$@""#;

/// A job of the matrix.
struct Job {
    program: Rc<Program>,
    id: u32,
    state: String,
    /// The newest checkpoint that any node was seen to know of.
    newest: Option<u32>,
    /// slurmctld holds it back after it was requeued.
    held_back: bool,
    moments: Vec<Moment>,
}

impl Job {
    fn has_ended(&self) -> bool {
        !["PENDING", "RUNNING", "COMPLETING", ""].contains(&self.state.as_str())
    }
}

/// Jobs that are struck together.
struct Group {
    jobs: Range<usize>,
    /// When they are, and how long that is after they were ready.
    due: Option<(Instant, Duration)>,
    struck: Vec<Struck>,
}

impl Group {
    fn of(jobs: Range<usize>) -> Group {
        Group {
            jobs,
            due: None,
            struck: Vec::new(),
        }
    }
}

struct Matrix {
    cluster: Cluster,
    /// Where nodes have their temporary files.
    temporary: PathBuf,
    programs: Vec<Rc<Program>>,
    random: Random,
    table: Table,
    moments: u64,
    /// The node that takes over from a lost one.
    spare: &'static str,
    /// The node that was lost and is not back yet.
    lost: Option<&'static str>,
}

fn each_program_survives_each_victim(suite: &Suite) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let moments = number("GPUOS_CKPT_MATRIX").unwrap_or(0);
    if moments == 0 {
        return;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = number("GPUOS_CKPT_MATRIX_SEED").unwrap_or(since.unwrap_or_default().as_secs());
    let only = |what: &str, name: &str| {
        let only = std::env::var(format!("GPUOS_CKPT_MATRIX_{what}")).unwrap_or_default();
        only.is_empty() || only.split(',').any(|one| one == name)
    };
    let mut setup = Setup::simulated("ckpt-matrix", suite, NODES.len());
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    let temporary = folders_of_pmix(&mut setup, &NODES);
    let Some(cluster) = setup.steered() else {
        return;
    };
    eprintln!("GPUOS_CKPT_MATRIX_SEED={seed}");
    fs::write(cluster.lab.dir().join("work/rank.sh"), RANK).expect("written");
    let programs = programs::programs(&cluster, |name| only("PROGRAMS", name));
    let release = cluster.lab.version().to_string();
    let mut matrix = Matrix {
        cluster,
        temporary: temporary.path().into(),
        programs: programs.into_iter().map(Rc::new).collect(),
        random: Random(seed | 1),
        table: Table::new(seed, release),
        moments,
        spare: NODES[3],
        lost: None,
    };
    for victim in VICTIMS {
        if only("VICTIMS", victim.name()) {
            matrix.all_moments(victim);
        }
    }
    matrix.table.assert_all_held();
}

/// A temporary folder for each node: PMIx makes one for each step there, and all nodes are one machine. They last as long as what is returned.
pub(crate) fn folders_of_pmix(setup: &mut Setup, nodes: &[&str]) -> tempfile::TempDir {
    let temporary = tempfile::tempdir().expect("a folder");
    for node in nodes {
        fs::create_dir(temporary.path().join(node)).expect("a folder");
    }
    let of_node = format!("TmpFS={}/%n", temporary.path().display());
    setup.spec.slurm_conf_extra.push(of_node);
    temporary
}

pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().expect("the project")
}

impl Matrix {
    /// Rounds until each program was struck at as many moments as are wanted.
    fn all_moments(&mut self, victim: Victim) {
        let begun = Instant::now();
        let wanted = self.moments.min(victim.enough());
        loop {
            let lacks = |program: &&Rc<Program>| {
                program.not != Some(victim) && self.lacks(program, victim, wanted) > 0
            };
            let programs: Vec<Rc<Program>> = self.programs.iter().filter(lacks).cloned().collect();
            if programs.is_empty() {
                break;
            }
            self.round(victim, wanted, &programs);
            if results::wanted() {
                self.table.write();
            }
            let (release, victim) = (self.cluster.lab.version(), victim.name());
            let done = programs
                .iter()
                .map(|program| self.table.moments(program.name, victim))
                .min();
            let (done, seconds) = (done.unwrap_or(0), begun.elapsed().as_secs());
            eprintln!("{release}, {victim}: {done} of {wanted} moments in {seconds} s");
        }
    }

    /// How many moments of a program are left to be had.
    fn lacks(&self, program: &Program, victim: Victim, wanted: u64) -> usize {
        let had = self.table.moments(program.name, victim.name());
        wanted.saturating_sub(had) as usize
    }

    /// All programs at once, and what ends beneath them again and again, until they have ended.
    fn round(&mut self, victim: Victim, wanted: u64, programs: &[Rc<Program>]) {
        self.spare = NODES[3];
        self.cluster.ready();
        self.cluster.set_node(self.spare, "DRAIN");
        let mut jobs: Vec<Job> = Vec::new();
        // Those that begin late come first, or the others would be near their ends.
        for slow in [true, false] {
            let those = programs.iter().filter(|program| program.is_slow == slow);
            jobs.extend(those.map(|program| self.submit(program, victim)));
            let begun = Instant::now();
            while !jobs
                .iter()
                .all(|job| job.newest.is_some() || job.has_ended())
                && begun.elapsed() < PATIENCE
            {
                self.look(&mut jobs);
            }
        }
        // What ends beneath one program alone ends when that one is ready for it.
        let mut groups: Vec<Group> = match victim.is_of_one_job() {
            true => (0..jobs.len()).map(|job| Group::of(job..job + 1)).collect(),
            false => vec![Group::of(0..jobs.len())],
        };
        let mut last = Instant::now();
        while !jobs.iter().all(Job::has_ended) && last.elapsed() < PATIENCE {
            self.look(&mut jobs);
            for group in &mut groups {
                let those = &mut jobs[group.jobs.clone()];
                let lacks = those
                    .iter()
                    .map(|job| self.lacks(&job.program, victim, wanted))
                    .max();
                let most = lacks.unwrap_or(0).min(victim.most());
                if group.struck.len() >= most || those.iter().any(Job::has_ended) {
                    continue;
                }
                match group.due {
                    None if those.iter().all(|job| self.is_ready(job, victim)) => {
                        self.bring_back();
                        let after = Duration::from_millis(self.random.below(2500));
                        group.due = Some((Instant::now() + after, after));
                    }
                    Some((due, after)) if Instant::now() >= due => {
                        self.strike(those, victim, after, &mut group.struck);
                        group.due = None;
                        last = Instant::now();
                    }
                    _ => (),
                }
            }
        }
        for job in &jobs {
            self.judge(job, victim);
        }
        self.clean(&jobs);
    }

    /// Whether the last strike is behind a job, it has made a checkpoint since, and will make more.
    fn is_ready(&self, job: &Job, victim: Victim) -> bool {
        let starts = self.starts(job.id);
        let limit = victim.limit();
        if judge::reached(&starts) + ENOUGH.min(limit * 2 / 5) > limit {
            return false;
        }
        let Some(last) = job.moments.last() else {
            return job.newest.is_some();
        };
        let goes_on = || judge::is_running_again(&last.starts, &starts);
        job.newest > last.committed && (!victim.ends_programs() || goes_on())
    }

    fn strike(
        &mut self,
        jobs: &mut [Job],
        victim: Victim,
        after: Duration,
        earlier: &mut Vec<Struck>,
    ) {
        for job in &mut *jobs {
            job.held_back = victim == Victim::Node;
            let starts = self.starts(job.id);
            job.moments.push(Moment {
                after,
                committed: job.newest,
                starts,
            });
        }
        let ids: Vec<u32> = jobs.iter().map(|job| job.id).collect();
        earlier.push(victims::strike(self, victim, &ids, earlier));
    }

    fn submit(&self, program: &Rc<Program>, victim: Victim) -> Job {
        let options = [
            "--requeue",
            "-N3",
            &format!("--ntasks={}", program.ranks),
            "--open-mode=append",
            "--gpuos-checkpoint=1s,l2=xor:3",
        ];
        let script = SCRIPT.replace("OPTIONS", program.srun);
        let command = program
            .command
            .replace("LIMIT", &victim.limit().to_string());
        let script = script.replace("PROGRAM", &command);
        Job {
            program: program.clone(),
            id: self.cluster.sbatch(&options, &script),
            state: String::new(),
            newest: None,
            held_back: false,
            moments: Vec::new(),
        }
    }

    fn starts(&self, job: u32) -> Vec<counted::Start> {
        counted::starts(&self.cluster.lab.dir().join("work"), job)
    }

    /// Waits a moment, sees how each job stands, and lets go what was requeued. All are asked for at once: programs need the cores.
    fn look(&self, jobs: &mut [Job]) {
        std::thread::sleep(PAUSE);
        let all = self.cluster.try_run("scontrol", &["-o", "show", "jobs"]);
        // Without an answer they stand as they stood.
        let all = all.unwrap_or_default();
        for job in jobs {
            let of = |node: &&str| committed(&self.cluster, node, job.id);
            job.newest = job.newest.max(NODES.iter().filter_map(of).max());
            let id = format!("JobId={} ", job.id);
            let own = all.lines().find(|line| line.starts_with(&id));
            if let Some(state) = own.and_then(|line| field(line, "JobState")) {
                job.state = state.into();
            }
            if job.held_back && job.state == "PENDING" {
                job.held_back = false;
                // slurmctld holds a requeued job back for two minutes.
                let id = format!("JobId={}", job.id);
                self.cluster.update(&[&id, "StartTime=now+3"]);
            }
        }
        if let Some(node) = self.lost {
            self.stays_lost(node);
        }
    }

    /// Slurm takes a node back by itself when it hears late of an answer that its slurmd gave before it ended, and would start jobs there.
    fn stays_lost(&self, node: &str) {
        let shown = self
            .cluster
            .try_run("scontrol", &["-o", "show", "node", node]);
        let shown = shown.unwrap_or_default();
        let state = field(shown.trim(), "State").unwrap_or("DOWN");
        if !state.starts_with("DOWN") {
            victims::down(&self.cluster, node);
        }
    }

    /// Each moment of a job into the table. What a job as a whole has done wrong is laid on its last moment.
    fn judge(&mut self, job: &Job, victim: Victim) {
        let starts = self.starts(job.id);
        let mut all_held = !job.moments.is_empty();
        let whole = judge::whole(&job.program, victim.limit(), &job.state, &starts);
        for (at, moment) in job.moments.iter().enumerate() {
            let next = job
                .moments
                .get(at + 1)
                .map_or(job.newest, |next| next.committed);
            let mut held = judge::moment(moment, &starts, next, victim);
            if at + 1 == job.moments.len() {
                held = held.and(whole.clone());
            }
            all_held &= held.is_ok();
            if let Err(why) = &held {
                let (name, id) = (job.program.name, job.id);
                let after = moment.after.as_millis();
                eprintln!("{victim:?}, {name}, job {id}, moment {at}, after {after} ms: {why}");
                self.show(id, &starts);
            }
            let again = judge::again(&starts, &moment.starts);
            self.table
                .add(job.program.name, victim.name(), again, held.err());
        }
        if job.moments.is_empty() {
            let why = format!("the job was {} before anything ended: {whole:?}", job.state);
            eprintln!("{victim:?}, {}, job {}: {why}", job.program.name, job.id);
            self.show(job.id, &starts);
            // One that ended well, as others kept it waiting for its first moment, has none.
            if whole.is_err() {
                self.table
                    .add(job.program.name, victim.name(), 0, Some(why));
            }
        }
        // All that lie there are looked through in each look.
        if all_held {
            let folder = self.cluster.lab.dir().join("work");
            counted::forget(&folder, job.id);
        }
    }

    /// Brings back a node that was lost, as the next spare one.
    fn bring_back(&mut self) {
        if let Some(node) = self.lost.take() {
            self.cluster.lab.start_mover(node).expect("starts");
            self.cluster.lab.start_slurmd(node).expect("starts");
            // It may have been taken back by itself.
            self.resume(node);
            self.cluster.set_node(node, "DRAIN");
            self.spare = node;
        }
    }

    fn resume(&self, node: &str) {
        let name = format!("NodeName={node}");
        let update = ["update", &name, "State=RESUME"];
        let _ = self.cluster.try_run("scontrol", &update);
    }

    /// Makes the lab as it was: no job, no program, all nodes up.
    fn clean(&mut self, jobs: &[Job]) {
        for job in jobs {
            let _ = self.cluster.try_run("scancel", &[&job.id.to_string()]);
        }
        for process in victims::programs(&self.cluster) {
            kill(process.pid);
        }
        self.bring_back();
        for node in NODES {
            self.resume(node);
        }
        self.cluster.until("all jobs have ended", || {
            let text = self.cluster.run("squeue", &["-h", "-o", "%i"]);
            text.trim().is_empty().then_some(())
        });
    }

    fn show(&self, job: u32, starts: &[counted::Start]) {
        for (at, start) in starts
            .iter()
            .enumerate()
            .skip(starts.len().saturating_sub(4))
        {
            for (rank, said) in start {
                eprintln!("  start {at}, rank {rank}: {said:?}");
            }
        }
        let script = fs::read_to_string(self.cluster.lab.dir().join(format!("work/{job}.out")));
        eprintln!("  script: {}", script.unwrap_or_default());
        for node in NODES {
            let log = self.cluster.lab.mover_log(node);
            let lines: Vec<&str> = log
                .lines()
                .filter(|line| line.contains(&format!("\"job\":\"{job}\"")))
                .collect();
            let last = lines[lines.len().saturating_sub(12)..].join("\n    ");
            eprintln!("  mover of {node}:\n    {last}");
        }
    }
}

/// Numbers that look random and can be repeated (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}
