//! The figures of the twin, and by how much one policy is ahead of another on the same jobs.

use super::{Figures, Outcome};

/// A figure: its name, how to read it, and whether more of it is better.
pub type Figure = (&'static str, fn(&Figures) -> f64, bool);

/// All figures, in the order of the table.
pub const FIGURES: [Figure; 11] = [
    ("mean wait, s", |f| f.wait, false),
    ("95 % waited no longer than, s", |f| f.wait_p95, false),
    (
        "mean wait of jobs on several nodes, s",
        |f| f.gang_wait,
        false,
    ),
    (
        "mean wait, several GPUs of one node, s",
        |f| f.local_wait,
        false,
    ),
    ("mean wait, one GPU, s", |f| f.single_wait, false),
    ("first submission to last end, s", |f| f.makespan, false),
    (
        "GPUs held while jobs were submitted, %",
        |f| 100.0 * f.allocation,
        true,
    ),
    (
        "ring bandwidth, several GPUs of one node, GB/s",
        |f| f.local_gbps,
        true,
    ),
    ("ring bandwidth, several nodes, GB/s", |f| f.gang_gbps, true),
    (
        "ring bandwidth of both, by GPU time, GB/s",
        |f| f.gbps,
        true,
    ),
    (
        "leaves that a job on several nodes lies in",
        |f| f.span,
        false,
    ),
];

/// A mean and its standard error.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Mean.
    pub mean: f64,
    /// Standard error of the mean; 0 of one value.
    pub error: f64,
}

/// Mean and standard error of values.
pub fn estimate(values: impl Iterator<Item = f64>) -> Estimate {
    let values: Vec<f64> = values.collect();
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    let error = (squares / (n - 1.0).max(1.0) / n).sqrt();
    Estimate { mean, error }
}

/// By how many percent `policy` has more of a figure than `base`: the mean difference over the
/// seeds, by the mean of `base`, with its standard error.
pub fn change(outcome: &Outcome, figure: &Figure, policy: usize, base: usize) -> Estimate {
    let (of, base) = (&outcome.rows[policy].1, &outcome.rows[base].1);
    let whole = estimate(base.iter().map(figure.1)).mean;
    let differences = of.iter().zip(base).map(|(a, b)| figure.1(a) - figure.1(b));
    let found = estimate(differences);
    let percent = 100.0 / if whole == 0.0 { 1.0 } else { whole };
    Estimate {
        mean: found.mean * percent,
        error: found.error * percent,
    }
}

/// All figures of all runs, a line for each.
pub fn csv(outcome: &Outcome) -> String {
    let mut text = String::from("policy,seed,figure,value\n");
    for (policy, runs) in &outcome.rows {
        for (seed, run) in outcome.options.seeds.iter().zip(runs) {
            for (name, of, _) in &FIGURES {
                let (policy, value) = (policy.name(), of(run));
                text += &format!("{policy},{seed},\"{name}\",{value:.4}\n");
            }
        }
    }
    text
}
