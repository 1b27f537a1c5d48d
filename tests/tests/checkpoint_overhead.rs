//! What checkpoints cost a training loop: the same steps without them, with a session that saves nothing, and with a checkpoint every
//! few seconds, by turns; and the interval that `auto` chooses for it.
//!
//! `GPUOS_CKPT_OVERHEAD=TURNS` measures it so often, by `make ckpt-overhead`; without it nothing is done. `GPUOS_CKPT_OVERHEAD_MIB` is what the program
//! saves, `GPUOS_CKPT_OVERHEAD_STEPS` its number of steps, and with `GPUOS_WRITE=1` the table is written to docs/results.

use std::fmt;
use std::fs;
use std::process::Command;

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, measured_runs, plugins, results, skip};

use crate::checkpoint::{output, until};
use crate::checkpoint_matrix::root;

const PROGRAM: &str = include_str!("checkpoint_overhead/train.py");

/// What `auto` may cost a training loop, and what no job's checkpoints may, in percent: the goals.
const GOALS: [f64; 2] = [1.0, 3.0];

/// How the program is started, in the order of a turn.
const ARMS: [(&str, &str); 3] = [
    ("without checkpoints", "off"),
    ("a session that saves nothing", "1d"),
    ("a checkpoint every 5 s", "5s"),
];

/// What a run of the program says at its end.
#[derive(Clone, Copy)]
struct Run {
    took: f64,
    saved: f64,
    stood: f64,
}

struct Measure {
    cluster: Cluster,
    python: &'static str,
    mib: u64,
    steps: u64,
}

struct Table {
    mib: u64,
    steps: u64,
    slurm: String,
    load: String,
    runs: Vec<[Run; ARMS.len()]>,
    /// The interval that `auto` chose, in seconds, and why.
    auto: (u64, String),
}

#[test]
fn a_training_loop_and_its_checkpoints() {
    let Some(turns) = measured_runs("GPUOS_CKPT_OVERHEAD", "make ckpt-overhead") else {
        return;
    };
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has_torch) else {
        return skip("the cost of checkpoints", "no python3 has torch");
    };
    let mut setup = Setup::new("ckpt-overhead", &Suite::Native);
    setup.spec.nodes = 1.into();
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    let Some(cluster) = setup.steered() else {
        return;
    };
    fs::write(cluster.lab.dir().join("work/train.py"), PROGRAM).expect("written");
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let measure = Measure {
        cluster,
        python,
        mib: number("GPUOS_CKPT_OVERHEAD_MIB").unwrap_or(256),
        steps: number("GPUOS_CKPT_OVERHEAD_STEPS").unwrap_or(200),
    };
    let mut table = Table {
        mib: measure.mib,
        steps: measure.steps,
        slurm: measure.cluster.lab.version().to_string(),
        load: load.split(' ').next().unwrap_or_default().to_string(),
        runs: Vec::new(),
        auto: measure.auto(),
    };
    for turn in 1..=turns {
        let runs = ARMS.map(|(name, value)| {
            let run = measure.run(value);
            eprintln!(
                "{turn} of {turns}, {name}: {} s, {} saved",
                run.took, run.saved
            );
            run
        });
        table.runs.push(runs);
    }
    eprintln!("{table}");
    if results::wanted() {
        table.write();
    }
    table.assert_goals();
}

fn has_torch(python: &&str) -> bool {
    let out = Command::new(python).args(["-c", "import torch"]).output();
    out.is_ok_and(|out| out.status.success())
}

impl Measure {
    fn submit(&self, value: &str, steps: u64, more: &str) -> u32 {
        let script = format!(
            "srun env PYTHONPATH={} PYTHONDONTWRITEBYTECODE=1 {} train.py {steps} {} {more}",
            root().join("python").display(),
            self.python,
            self.mib,
        );
        let option = format!("--gpuos-checkpoint={value}");
        self.cluster.sbatch(&["-N1", &option], &script)
    }

    /// The program from its first step to its last one.
    fn run(&self, value: &str) -> Run {
        let job = self.submit(value, self.steps, "");
        self.cluster.wait(job, &["COMPLETED"]);
        let text = output(&self.cluster, job);
        let words = text.lines().find(|line| line.starts_with("took "));
        let words: Vec<&str> = words.unwrap_or_default().split(' ').collect();
        let [_, took, _, saved, _, stood] = words[..] else {
            panic!("the program said: {text}");
        };
        let number = |word: &str| word.parse::<f64>().expect("a number");
        Run {
            took: number(took),
            saved: number(saved),
            stood: number(stood),
        }
    }

    /// The interval that `auto` chooses once it has measured a checkpoint, which somebody asks for.
    fn auto(&self) -> (u64, String) {
        let job = self.submit("auto", self.steps, "600");
        let gpuos = |words: &[&str]| {
            let program = plugins::programs().join("gpuos").display().to_string();
            let sockets = self.cluster.lab.gpuosd_runtime_dir("n1");
            let more = ["--runtime-dir", sockets.to_str().expect("UTF-8")];
            self.cluster.try_run(&program, &[words, &more].concat())
        };
        let name = job.to_string();
        for _ in 0..2 {
            until(&self.cluster, "a checkpoint is made", || {
                gpuos(&["ckpt", "now", &name]).ok()
            });
        }
        let shown = gpuos(&["ckpt", "show", &name, "--json"]).expect("shown");
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        let found = find(&shown, "interval_s").and_then(|value| value.as_u64());
        let why = find(&shown, "interval_why").and_then(|value| value.as_str());
        self.cluster.cancel(&[job]);
        (found.expect("an interval"), why.unwrap_or_default().into())
    }
}

/// The first value of this name, at any depth.
fn find<'v>(value: &'v serde_json::Value, name: &str) -> Option<&'v serde_json::Value> {
    match value {
        serde_json::Value::Object(fields) => fields
            .get(name)
            .filter(|found| !found.is_null())
            .or_else(|| fields.values().find_map(|value| find(value, name))),
        serde_json::Value::Array(values) => values.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}

impl Table {
    /// The median over all turns.
    fn median(&self, of: impl Fn(&[Run; ARMS.len()]) -> f64) -> f64 {
        let mut values: Vec<f64> = self.runs.iter().map(of).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    }

    /// Seconds that a checkpoint costs the program, with what it loses while it is stored.
    fn cost(&self) -> f64 {
        self.median(|[_, idle, busy]| (busy.took - idle.took) / busy.saved.max(1.0))
    }

    /// What the program loses by a session that saves nothing, in percent.
    fn idle(&self) -> f64 {
        self.median(|[without, idle, _]| (idle.took / without.took - 1.0) * 100.0)
    }

    /// What it loses at the interval of `auto`, in percent.
    fn at_auto(&self) -> f64 {
        self.idle().max(0.0) + self.cost() / self.auto.0.max(1) as f64 * 100.0
    }

    fn write(&self) {
        let date = results::today();
        let mut csv = String::from("date,arm,took_s,saved,stood_s\n");
        for runs in &self.runs {
            for ((name, _), run) in ARMS.iter().zip(runs) {
                let Run { took, saved, stood } = run;
                csv += &format!("{date},{name},{took},{saved},{stood}\n");
            }
        }
        let (slurm, mib, steps, load) = (&self.slurm, self.mib, self.steps, &self.load);
        let turns = self.runs.len();
        let made = format!(
            "{date}, Slurm {slurm}, {mib} MiB, {steps} steps, {turns} turns, load average before them {load}.\n\n{self}"
        );
        results::write("ckpt-overhead", &csv, &made);
    }

    fn assert_goals(&self) {
        let [auto, _] = GOALS;
        let at_auto = self.at_auto();
        assert!(
            at_auto <= auto,
            "{at_auto:.2} % at auto, and the goal is {auto} %\n{self}"
        );
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | |\n| --- | ---: |")?;
        for (at, (name, _)) in ARMS.iter().enumerate() {
            let took = self.median(|runs| runs[at].took);
            writeln!(f, "| the steps, {name} | {took:.2} s |")?;
        }
        let [auto, always] = GOALS;
        let per = |run: &Run| run.stood / run.saved.max(1.0);
        let stood = self.median(|[_, _, busy]| per(busy));
        writeln!(
            f,
            "| the program stands still for a checkpoint | {stood:.3} s |"
        )?;
        writeln!(
            f,
            "| a checkpoint costs it, with all that happens meanwhile | {:.3} s |",
            self.cost()
        )?;
        writeln!(
            f,
            "| a session that saves nothing costs | {:.2} % |",
            self.idle()
        )?;
        writeln!(f, "| the interval of `auto` | {} s |", self.auto.0)?;
        writeln!(
            f,
            "| **at `auto`** (goal: {auto} %, never more than {always} %) | **{:.2} %** |",
            self.at_auto()
        )?;
        writeln!(
            f,
            "\n`gpuos ckpt show` says of the interval: {}.",
            self.auto.1
        )
    }
}
