//! Programs in several languages, under MPI and with torch, and what can end beneath them, at random moments: each has to end as if nothing had happened.
//!
//! `GPUOS_CKPT_MATRIX=N` tries each N times; without it nothing is done. `GPUOS_CKPT_MATRIX_SEED` repeats a run, `GPUOS_CKPT_MATRIX_VICTIMS=node,mover` and
//! `GPUOS_CKPT_MATRIX_PROGRAMS=C,PyTorch` have these alone, and with `GPUOS_WRITE=1` the table is written to docs/results.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, counted, per_suite, plugins, results};

#[path = "checkpoint_matrix/programs.rs"]
mod programs;
#[path = "checkpoint_matrix/table.rs"]
mod table;
#[path = "checkpoint_matrix/victims.rs"]
mod victims;

use crate::checkpoint::committed;
use programs::Program;
use table::{Cell, Table};
use victims::{Struck, VICTIMS, Victim};
pub(crate) use victims::{end_all_of, kill, programs as programs_of, slurmstepd};

per_suite!(each_program_survives_each_victim);

/// To what all programs count, a step each 25 ms.
const LIMIT: u64 = 800;
const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// The last of them, which takes over from a lost one.
const SPARE: &str = "n4";

/// How long a job may take in all: far more than it does on a busy machine.
const PATIENCE: Duration = Duration::from_secs(200);

/// Starts the program again when it fails. srun waits for ever for a rank whose slurmstepd has ended, if `--wait` does not say otherwise. Each rank of each start writes a file of its own, as what Slurm carries can be lost with a node.
/// Ranks of Open MPI that wait for each other leave the cores to others.
const SCRIPT: &str = r#"
start=0
while [ $start -lt 8 ]; do
    start=$((start + 1))
    export LOG=$PWD/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.$start
    export FAKE_MPI=$LOG.mpi INIT_METHOD=file://$LOG.store OMPI_MCA_mpi_yield_when_idle=1
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
}

struct Matrix {
    cluster: Cluster,
    programs: Vec<Rc<Program>>,
    random: Random,
    table: Table,
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
    let _temporary = folders_of_pmix(&mut setup, &NODES);
    let Some(cluster) = setup.steered() else {
        return;
    };
    eprintln!("GPUOS_CKPT_MATRIX_SEED={seed}");
    fs::write(cluster.lab.dir().join("work/rank.sh"), RANK).expect("written");
    let mut programs = programs::programs(&cluster);
    programs.retain(|program| only("PROGRAMS", program.name));
    let names = programs.iter().map(|program| program.name).collect();
    let mut matrix = Matrix {
        cluster,
        programs: programs.into_iter().map(Rc::new).collect(),
        random: Random(seed | 1),
        table: Table::new(seed, moments, names),
    };
    for victim in VICTIMS {
        if only("VICTIMS", victim.name()) {
            for _ in 0..moments {
                matrix.round(victim);
            }
        }
    }
    let text = matrix.table.to_string();
    eprintln!("{text}");
    if results::wanted() {
        matrix.table.write();
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
    /// All programs at once, and what ends beneath them.
    fn round(&mut self, victim: Victim) {
        self.cluster.ready();
        self.cluster.set_node(SPARE, "DRAIN");
        let begun = Instant::now();
        let mut jobs = Vec::new();
        // Those that begin late come first, or the others would be near their ends.
        for slow in [true, false] {
            let those =
                |program: &&Rc<Program>| program.is_slow == slow && program.not != Some(victim);
            jobs.extend(
                self.programs
                    .iter()
                    .filter(those)
                    .map(|program| self.submit(program)),
            );
            let early = |job: &Job| self.committed(job.id).is_none();
            while jobs.iter().any(early) && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let moment = Duration::from_millis(self.random.below(2500));
        std::thread::sleep(moment);
        let before: Vec<(Option<u32>, Vec<counted::Start>)> = jobs
            .iter()
            .map(|job| (self.committed(job.id), self.starts(job.id)))
            .collect();
        let struck = victims::strike(self, victim, &jobs);
        let after = self.follow(&jobs, &struck);
        for ((job, before), (state, newest)) in jobs.iter().zip(before).zip(after) {
            let starts = self.starts(job.id);
            let judged = judge(&job.program, &state, &starts, &before, newest, victim);
            if let Err(why) = &judged {
                eprintln!(
                    "{victim:?}, {}, job {} after {} ms on {}: {why}",
                    job.program.name,
                    job.id,
                    moment.as_millis(),
                    struck.node
                );
                self.show(job.id, &starts);
            }
            let again = again(&starts, &before.1);
            self.table.add(
                job.program.name,
                victim.name(),
                Cell {
                    held: judged.is_ok(),
                    again,
                    why: judged.err(),
                },
            );
        }
        eprintln!("{victim:?}: {} s", begun.elapsed().as_secs());
        self.clean(&jobs, &struck);
    }

    fn submit(&self, program: &Rc<Program>) -> Job {
        let options = [
            "--requeue",
            "-N3",
            &format!("--ntasks={}", program.ranks),
            "--open-mode=append",
            "--gpuos-checkpoint=1s,l2=xor:3",
        ];
        let script = SCRIPT.replace("OPTIONS", program.srun);
        let script = script.replace("PROGRAM", &program.command);
        Job {
            program: program.clone(),
            id: self.cluster.sbatch(&options, &script),
        }
    }

    fn starts(&self, job: u32) -> Vec<counted::Start> {
        counted::starts(&self.cluster.lab.dir().join("work"), job)
    }

    /// The newest checkpoint of a job that any node knows of.
    fn committed(&self, job: u32) -> Option<u32> {
        let of = |node: &&str| committed(&self.cluster, node, job);
        NODES.iter().filter_map(of).max()
    }

    /// Waits until all jobs have ended: how, and the newest checkpoint that was seen.
    fn follow(&self, jobs: &[Job], struck: &Struck) -> Vec<(String, Option<u32>)> {
        let begun = Instant::now();
        let mut seen: BTreeMap<u32, (String, Option<u32>)> = BTreeMap::new();
        let mut held_back: Vec<u32> = jobs.iter().map(|job| job.id).collect();
        loop {
            for job in jobs {
                let (state, newest) = seen.entry(job.id).or_default();
                *newest = (*newest).max(self.committed(job.id));
                *state = self
                    .cluster
                    .lab
                    .job_state(job.id)
                    .unwrap_or_else(|error| error.to_string());
                if struck.requeues && state == "PENDING" && held_back.contains(&job.id) {
                    held_back.retain(|id| *id != job.id);
                    // slurmctld holds a requeued job back for two minutes.
                    let id = format!("JobId={}", job.id);
                    self.cluster.update(&[&id, "StartTime=now+3"]);
                }
            }
            let ended = |(state, _): &(String, Option<u32>)| {
                !["PENDING", "RUNNING", "COMPLETING", ""].contains(&state.as_str())
            };
            if seen.values().all(ended) || begun.elapsed() > PATIENCE {
                return jobs.iter().map(|job| seen[&job.id].clone()).collect();
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Makes the lab as it was: no job, no program, all nodes up.
    fn clean(&self, jobs: &[Job], struck: &Struck) {
        for job in jobs {
            let _ = self.cluster.try_run("scancel", &[&job.id.to_string()]);
        }
        for process in victims::programs(&self.cluster) {
            kill(process.pid);
        }
        victims::mend(self, struck);
        self.cluster.until("all jobs have ended", || {
            let text = self.cluster.run("squeue", &["-h", "-o", "%i"]);
            text.trim().is_empty().then_some(())
        });
    }

    fn show(&self, job: u32, starts: &[counted::Start]) {
        for (at, start) in starts.iter().enumerate() {
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

/// Whether a job has come through.
fn judge(
    program: &Program,
    state: &str,
    starts: &[counted::Start],
    (committed, before): &(Option<u32>, Vec<counted::Start>),
    newest: Option<u32>,
    victim: Victim,
) -> Result<(), String> {
    if state != "COMPLETED" {
        return Err(format!("the job is {state}"));
    }
    counted::check(starts, program.ranks, LIMIT)?;
    if let (Some(result), Some(last)) = (&program.result, starts.last()) {
        let other = last.iter().find(|(_, said)| !said.other.contains(result));
        if let Some((rank, said)) = other {
            return Err(format!(
                "rank {rank} has not ended with {result}: {:?}",
                said.other
            ));
        }
    }
    let later = starts.get(before.len()).and_then(|start| start.get(&0));
    if victim.ends_programs() && later.is_none() {
        return Err("the program was not started again".into());
    }
    // Names of SCR are no numbers; those that are have to be at least what was committed.
    if let Some(later) = later {
        let Some((what, _)) = &later.restored else {
            return Err(format!(
                "checkpoint {committed:?} was committed, and the program began from the start"
            ));
        };
        if let (Ok(number), Some(committed)) = (what.parse::<u32>(), committed)
            && number < *committed
        {
            return Err(format!(
                "checkpoint {committed} was committed, and the program went on from {number}"
            ));
        }
        // The newest that was said may have been on its way to the nodes; the one before it was there.
        let said = before
            .last()
            .and_then(|start| start.get(&0))
            .map_or(&[][..], |said| &said.saved[..]);
        if let ([.., second, _], Some((_, count))) = (said, &later.restored)
            && *count < second.1
        {
            return Err(format!(
                "more than an interval was done again: {second:?} was saved, and it went on at {count}"
            ));
        }
    }
    if committed.is_none() {
        return Err(
            "no checkpoint was made before anything ended: the job's standard error may say why"
                .into(),
        );
    }
    if newest <= *committed {
        return Err(format!("no checkpoint was made after {committed:?}"));
    }
    Ok(())
}

/// How many steps rank 0 did again: from what it went on to what it is known to have reached.
fn again(starts: &[counted::Start], before: &[counted::Start]) -> u64 {
    let rank = |start: Option<&counted::Start>| {
        start
            .and_then(|start| start.get(&0))
            .cloned()
            .unwrap_or_default()
    };
    let reached = rank(starts.get(before.len().wrapping_sub(1)))
        .saved
        .last()
        .map_or(0, |(_, count)| *count);
    let from = rank(starts.get(before.len()))
        .restored
        .map(|(_, count)| count);
    from.map_or(0, |from| reached.saturating_sub(from))
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
