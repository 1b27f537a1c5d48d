//! What came of the runs: parts beside each other, percentiles below each other.

use std::fmt;

use gpuos_tests::results;

use super::Mode;

/// One loss of a node: milliseconds from there.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// The other nodes had agreed that it is gone.
    pub(crate) found: Option<u64>,
    /// slurmctld had requeued the job.
    pub(crate) requeued: Option<u64>,
    /// The batch script ran again.
    pub(crate) script: Option<u64>,
    /// All ranks of the program had begun.
    pub(crate) begun: Option<u64>,
    /// All ranks were told what they go on from, and had its files.
    pub(crate) answered: Option<u64>,
    /// All ranks had done the next step.
    pub(crate) step: u64,
    /// It was the node of the batch script.
    pub(crate) first_node: bool,
}

impl Run {
    /// Points of time that are known, in order.
    fn points(&self) -> Vec<(&'static str, Option<u64>)> {
        vec![
            ("the other nodes have found it", self.found),
            ("the job is requeued", self.requeued),
            ("its script runs again", self.script),
            ("all ranks have begun", self.begun),
            ("all ranks have their files", self.answered),
            ("all ranks have done a step", Some(self.step)),
        ]
    }

    /// What each part took: from the point before that is known.
    fn parts(&self) -> Vec<(&'static str, u64)> {
        let mut before = 0;
        let known = self.points().into_iter().filter_map(|(name, at)| {
            let at = at?;
            let took = at.saturating_sub(before);
            before = before.max(at);
            Some((name, took))
        });
        known.collect()
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.step)?;
        for (name, took) in self.parts() {
            write!(f, "; {name} {took}")?;
        }
        if self.first_node {
            write!(f, "; it had the script")?;
        }
        Ok(())
    }
}

pub(crate) struct Table {
    seed: u64,
    mib: u64,
    slurm: String,
    runs: Vec<(Mode, Run)>,
}

impl Table {
    pub(crate) fn new(seed: u64, mib: u64, slurm: &str) -> Table {
        Table {
            seed,
            mib,
            slurm: slurm.into(),
            runs: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, mode: Mode, run: Run) {
        self.runs.push((mode, run));
    }

    fn of(&self, mode: Mode) -> Vec<&Run> {
        let of = self.runs.iter().filter(|(own, _)| *own == mode);
        of.map(|(_, run)| run).collect()
    }

    /// Writes `ckpt-rto.csv` and the table of `ckpt-rto.md`.
    pub(crate) fn write(&self) {
        let date = results::today();
        let mut csv = String::from(
            "date,mode,found_ms,requeued_ms,script_ms,begun_ms,answered_ms,step_ms,had_script\n",
        );
        for (mode, run) in &self.runs {
            let points: Vec<String> = run
                .points()
                .iter()
                .map(|(_, at)| at.map_or(String::new(), |at| at.to_string()))
                .collect();
            let (mode, points) = (mode.name(), points.join(","));
            csv += &format!("{date},{mode},{points},{}\n", run.first_node);
        }
        let (slurm, mib, seed) = (&self.slurm, self.mib, self.seed);
        let made = format!("{date}, Slurm {slurm}, {mib} MiB a rank, seed {seed}.\n\n{self}");
        results::write("ckpt-rto", &csv, &made);
    }

    /// Fails where the 95th percentile is not below the goal.
    pub(crate) fn assert_goals(&self) {
        for (mode, goal) in [(Mode::Requeue, 15_000), (Mode::Spare, 5_000)] {
            let times: Vec<u64> = self.of(mode).iter().map(|run| run.step).collect();
            if let Some(p95) = percentile(times, 95) {
                let name = mode.name();
                assert!(
                    p95 < goal,
                    "{name}: {p95} ms, and the goal is {goal} ms\n{self}"
                );
            }
        }
    }
}

/// The smallest value that so many percent of all are not above.
fn percentile(mut values: Vec<u64>, percent: usize) -> Option<u64> {
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100);
    values.get(rank.saturating_sub(1)).copied()
}

/// Seconds of p50, p95 and the longest.
fn row(values: Vec<u64>) -> Option<String> {
    let seconds = |ms: u64| format!("{:.1}", ms as f64 / 1e3);
    let of = [50, 95, 100].map(|percent| percentile(values.clone(), percent).map(seconds));
    let [Some(p50), Some(p95), Some(longest)] = of else {
        return None;
    };
    Some(format!("{p50} | {p95} | {longest}"))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| by | until | runs | p50 s | p95 s | longest s |")?;
        writeln!(f, "| --- | --- | ---: | ---: | ---: | ---: |")?;
        for mode in [Mode::Requeue, Mode::Spare] {
            let runs = self.of(mode);
            let Some(first) = runs.first() else { continue };
            let name = mode.name();
            for (part, _) in first.parts() {
                let took = runs.iter().flat_map(|run| run.parts());
                let took: Vec<u64> = took
                    .filter(|(own, _)| *own == part)
                    .map(|own| own.1)
                    .collect();
                let count = took.len();
                if let Some(row) = row(took) {
                    writeln!(f, "| {name} | {part} | {count} | {row} |")?;
                }
            }
            let all: Vec<u64> = runs.iter().map(|run| run.step).collect();
            let count = all.len();
            if let Some(row) = row(all) {
                writeln!(f, "| {name} | **in all** | {count} | {row} |")?;
            }
        }
        Ok(())
    }
}
