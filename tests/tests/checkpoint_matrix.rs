//! Programs in four languages, each with three ranks, and what can end beneath them, at random moments: each has to end as if nothing had happened.
//!
//! `GPUOS_CKPT_MATRIX=N` tries each N times; without it nothing is done. `GPUOS_CKPT_MATRIX_SEED` repeats a run, `GPUOS_CKPT_MATRIX_VICTIMS=node,mover` has
//! these alone, and with `GPUOS_WRITE=1` the table is written to docs/results.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, counted, per_suite, plugins};

#[path = "checkpoint_matrix/table.rs"]
mod table;
#[path = "checkpoint_matrix/victims.rs"]
mod victims;

pub(crate) use victims::{kill, slurmstepd};

use crate::checkpoint::committed;
use table::{Cell, Table};
use victims::{Struck, VICTIMS, Victim};

per_suite!(each_program_survives_each_victim);

/// To what all programs count, a step each 25 ms.
const LIMIT: u64 = 600;
const RANKS: u32 = 3;
const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// The last of them, which takes over from a lost one.
const SPARE: &str = "n4";

/// How long a job may take in all: far more than it does on a busy machine.
const PATIENCE: Duration = Duration::from_secs(100);

/// A loop in Python whose ranks look for themselves, as those in sh and C do.
const LOOP: &str = "
import sys, time
from gpuos import checkpoint
ckpt, limit, count = checkpoint.Checkpoints(), int(sys.argv[1]), 0
start = ckpt.join()
if start:
    count = int((start.folder / 'count').read_text())
    print(f'restored checkpoint {start.number} at {count}', flush=True)
else:
    print('new', flush=True)
while count < limit:
    count += 1
    time.sleep(0.025)
    wanted = ckpt.wanted()
    if wanted:
        try:
            (ckpt.folder(wanted.number) / 'count').write_text(str(count))
            ckpt.ready(wanted.number)
            print(f'saved {wanted.number} at {count}', flush=True)
        except checkpoint.GivenUp as why:
            print(why, flush=True)
print(f'done at {count}', flush=True)
";

/// Starts the program again when it fails. srun waits for ever for a rank whose slurmstepd has ended, if `--wait` does not say otherwise. Each rank of each start writes a file of its own, as what Slurm carries can be lost with a node.
const SCRIPT: &str = r#"
start=0
while [ $start -lt 8 ]; do
    start=$((start + 1))
    export LOG=$PWD/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.$start
    FAKE_MPI=$LOG.mpi srun --kill-on-bad-exit=1 --wait=5 sh ./rank.sh PROGRAM && exit 0
    sleep 0.2
done
exit 1
"#;
const RANK: &str = r#"exec >>"$LOG.$SLURM_PROCID.log" 2>&1
GPUOS_MATRIX_RANK=$SLURM_PROCID exec "$@""#;

/// A job of the matrix.
struct Job {
    program: &'static str,
    id: u32,
}

struct Matrix {
    cluster: Cluster,
    programs: Vec<(&'static str, String)>,
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
    let only = std::env::var("GPUOS_CKPT_MATRIX_VICTIMS").unwrap_or_default();
    let mut setup = Setup::simulated("ckpt-matrix", suite, NODES.len());
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    let Some(cluster) = setup.steered() else {
        return;
    };
    eprintln!("GPUOS_CKPT_MATRIX_SEED={seed}");
    let programs = programs(&cluster);
    let mut matrix = Matrix {
        cluster,
        programs,
        random: Random(seed | 1),
        table: Table::new(seed, moments),
    };
    for victim in VICTIMS {
        if only.is_empty() || only.split(',').any(|name| name == victim.name()) {
            for _ in 0..moments {
                matrix.round(victim);
            }
        }
    }
    let text = matrix.table.to_string();
    eprintln!("{text}");
    if std::env::var_os("GPUOS_WRITE").is_some() {
        matrix.table.write(&root().join("docs/results"));
    }
    matrix.table.assert_all_held();
}

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().expect("the project")
}

/// Compiles in `work` what is in C, and gives how each program is started.
fn programs(cluster: &Cluster) -> Vec<(&'static str, String)> {
    let (root, work) = (root(), cluster.lab.dir().join("work"));
    let built = plugins::programs();
    for (name, names) in [
        ("libgpuos.so", ["libgpuos.so.0", "libgpuos.so"]),
        ("libscr.so", ["libscr-gpuos.so.0", "libscr.so"]),
    ] {
        for other in names {
            symlink(built.join(name), work.join(other)).expect("a link");
        }
    }
    let compile = |to: &str, arguments: &[&str]| {
        let mut cc = Command::new("cc");
        cc.current_dir(&work).args(["-D_DEFAULT_SOURCE", "-o", to]);
        cc.args([
            &format!("-I{}/include", root.display()),
            "-L.",
            "-Wl,-rpath,$ORIGIN",
        ]);
        let out = cc.args(arguments).output().expect("cc runs");
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
    };
    let examples = root.join("examples/checkpoint");
    let file = |path: &Path| path.display().to_string();
    compile("counter", &[&file(&examples.join("counter.c")), "-lgpuos"]);
    let mpi = root.join("crates/libscr/tests/mpi");
    compile(
        "libmpi.so",
        &["-shared", "-fPIC", &file(&mpi.join("mpi.c"))],
    );
    let header = format!("-I{}", mpi.display());
    let scr = file(&examples.join("counter-scr.c"));
    compile(
        "counter-scr",
        &["-DWITH_MPI", &header, &scr, "-lscr", "-lmpi"],
    );
    fs::write(work.join("loop.py"), LOOP).expect("written");
    fs::write(work.join("rank.sh"), RANK).expect("written");
    let (share, python) = (root.join("share"), root.join("python"));
    vec![
        (
            "sh",
            format!(
                "env GPUOS_HELPERS={} sh {} {LIMIT} 0.025",
                share.display(),
                file(&examples.join("counter.sh"))
            ),
        ),
        ("C", format!("./counter {LIMIT} 25")),
        (
            "Python",
            format!(
                "env PYTHONPATH={} python3 loop.py {LIMIT}",
                python.display()
            ),
        ),
        ("C with SCR", format!("./counter-scr {LIMIT} 25")),
    ]
}

impl Matrix {
    /// All programs at once, and what ends beneath them.
    fn round(&mut self, victim: Victim) {
        self.cluster.ready();
        self.cluster.set_node(SPARE, "DRAIN");
        let jobs: Vec<Job> = self
            .programs
            .iter()
            .map(|(program, command)| self.submit(program, command))
            .collect();
        let begun = Instant::now();
        let early = |job: &&Job| self.committed(job.id).is_none();
        while jobs.iter().any(|job| early(&job)) && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(50));
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
            let judged = judge(&state, &starts, &before, newest, victim);
            if let Err(why) = &judged {
                eprintln!(
                    "{victim:?}, {}, job {} after {} ms on {}: {why}",
                    job.program,
                    job.id,
                    moment.as_millis(),
                    struck.node
                );
                self.show(job.id, &starts);
            }
            let again = again(&starts, &before.1);
            self.table.add(
                job.program,
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

    fn submit(&self, program: &'static str, command: &str) -> Job {
        let options = [
            "--requeue",
            "-N3",
            "--ntasks-per-node=1",
            "--open-mode=append",
            "--gpuos-checkpoint=1s,l2=xor:3",
        ];
        let id = self
            .cluster
            .sbatch(&options, &SCRIPT.replace("PROGRAM", command));
        Job { program, id }
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
        for process in victims::programs(self) {
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
    state: &str,
    starts: &[counted::Start],
    (committed, before): &(Option<u32>, Vec<counted::Start>),
    newest: Option<u32>,
    victim: Victim,
) -> Result<(), String> {
    if state != "COMPLETED" {
        return Err(format!("the job is {state}"));
    }
    counted::check(starts, RANKS, LIMIT)?;
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
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}
