//! Two builds of select/gpuos against each other: what a change costs.
//!
//! Runs one after the other differ by a fifth on a virtual machine; turns in the same run differ by a few per cent, as both builds
//! meet the same minutes. One start of slurmctld differs from the next by more, as memory lies elsewhere: over several starts the
//! median is taken, with the interval in which it lies.

use std::fmt::Write as _;

use crate::report::{Figures, Line, Report};

/// A cell of the newer build counts as slower beyond this many times the older one's median.
const SLOWER: f64 = 1.05;

/// How many times as long the newer build takes, by medians: of elapsed time or of processor time, whichever says less. What
/// interrupts one of the two is not the build's.
pub fn times(older: &Figures, newer: &Figures) -> f64 {
    let times = |older: u64, newer: u64| newer as f64 / older.max(1) as f64;
    times(older.median, newer.median).min(times(older.cpu_median, newer.cpu_median))
}

/// A median over starts, and where it lies with at least 95 % confidence.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Interval {
    low: f64,
    median: f64,
    high: f64,
}

impl Interval {
    /// By order statistics: of n values, the k-th smallest and the k-th largest enclose the median unless fewer than k lie on one
    /// side of it, and how many do is binomial with 1/2 (Conover, Practical Nonparametric Statistics, section 3.2). Up to five
    /// values cannot say so much: then it reaches from the smallest to the largest.
    fn of(values: &[f64]) -> Interval {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let Some(last) = count.checked_sub(1) else {
            return Interval {
                low: 1.0,
                median: 1.0,
                high: 1.0,
            };
        };
        let mut term = 0.5_f64.powi(count as i32);
        let (mut below, mut skipped) = (term, 0);
        for k in 1..count {
            term *= (count - k + 1) as f64 / k as f64;
            if 2.0 * below > 0.05 {
                break;
            }
            skipped = k - 1;
            below += term;
        }
        let middle = (sorted[last / 2] + sorted[count / 2]) / 2.0;
        Interval {
            low: sorted[skipped],
            median: middle,
            high: sorted[last - skipped],
        }
    }
}

/// The cells in which the newer build is slower.
pub fn slower(report: &Report) -> Vec<String> {
    cells(report, |times| times.low > SLOWER)
}

/// The cells for which the starts do not say whether it is.
pub fn undecided(report: &Report) -> Vec<String> {
    cells(report, |times| times.low <= SLOWER && times.high > SLOWER)
}

fn cells(report: &Report, wanted: impl Fn(&Interval) -> bool) -> Vec<String> {
    let mut texts = Vec::new();
    for run in &report.runs {
        for line in &run.lines {
            let times = Interval::of(&line.times);
            if !wanted(&times) {
                continue;
            }
            let (nodes, name) = (run.nodes, line.name());
            let within = match line.times.len() {
                1 => String::new(),
                starts => format!(
                    " (median of {starts} starts, between {:.2} and {:.2})",
                    times.low, times.high
                ),
            };
            texts.push(format!(
                "Slurm {}, {nodes} nodes, {name}: {:.2} times as long as the older build{within}",
                run.slurm, times.median
            ));
        }
    }
    texts
}

/// A line for each cell, times in microseconds.
pub fn csv(report: &Report) -> String {
    let mut text = String::from(
        "date,slurm,nodes,job,load,call,starts,turns,older_median_us,newer_median_us,older_cpu_median_us,newer_cpu_median_us,times,times_low,times_high\n",
    );
    for run in &report.runs {
        for line in &run.lines {
            text.push_str(&row(report, run, line));
        }
    }
    text
}

fn row(report: &Report, run: &crate::report::Run, line: &Line) -> String {
    let (older, newer) = (line.stock, line.gpuos);
    let times = Interval::of(&line.times);
    let mut text = String::new();
    let _ = write!(
        text,
        "{},{},{},{},{},{}",
        report.date,
        run.slurm,
        run.nodes,
        line.quoted(),
        line.times.len(),
        newer.samples.min(older.samples)
    );
    for ns in [
        older.median,
        newer.median,
        older.cpu_median,
        newer.cpu_median,
    ] {
        let _ = write!(text, ",{:.1}", ns as f64 / 1000.0);
    }
    let _ = writeln!(
        text,
        ",{:.2},{:.2},{:.2}",
        times.median, times.low, times.high
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Run;

    fn line(starts: &[([u64; 2], [u64; 2])]) -> Line {
        let figures = |[median, cpu_median]: [u64; 2]| Figures {
            samples: 30,
            median,
            cpu_median,
            ..Figures::default()
        };
        let pairs = starts
            .iter()
            .map(|(older, newer)| (figures(*older), figures(*newer)));
        Line {
            job: "1 GPU".into(),
            stock: figures(starts[0].0),
            gpuos: figures(starts[0].1),
            times: pairs.map(|(older, newer)| times(&older, &newer)).collect(),
            ..Line::default()
        }
    }

    fn report(lines: Vec<Line>) -> Report {
        let mut report = Report::new(false, "2026-11-24".into());
        report.runs.push(Run {
            slurm: "24.11.5".into(),
            nodes: 4,
            gpus: 32,
            lines,
        });
        report
    }

    #[test]
    fn what_takes_longer_by_both_clocks_is_slower() {
        let older = [100_000, 100_000];
        let report = report(vec![
            line(&[(older, [105_000, 105_000])]),
            line(&[(older, [180_000, 101_000])]),
            line(&[(older, [107_000, 106_000])]),
        ]);
        let wanted = "Slurm 24.11.5, 4 nodes, 1 GPU, idle, RUN_NOW, starts: 1.06 times as long as the older build";
        assert_eq!(slower(&report), [wanted]);
        assert!(undecided(&report).is_empty());
        let csv = csv(&report);
        let wanted = "2026-11-24,24.11.5,4,\"1 GPU\",\"idle\",\"RUN_NOW, starts\",1,30,100.0,107.0,100.0,106.0,1.06,1.06,1.06";
        assert_eq!(csv.lines().last(), Some(wanted));
    }

    #[test]
    fn starts_that_differ_by_more_than_the_builds_leave_it_open() {
        let older = [100_000, 100_000];
        let starts = |newer: &[u64]| {
            let all: Vec<_> = newer.iter().map(|n| (older, [*n, *n])).collect();
            line(&all)
        };
        let open = starts(&[
            90_000, 95_000, 99_000, 101_000, 104_000, 108_000, 109_000, 111_000,
        ]);
        let slow = starts(&[
            104_000, 106_000, 107_000, 108_000, 109_000, 110_000, 111_000, 112_000, 120_000,
        ]);
        let report = report(vec![open, slow]);
        let named = |lines: Vec<String>| lines.join("\n");
        assert!(named(undecided(&report)).ends_with(
            "1.02 times as long as the older build (median of 8 starts, between 0.90 and 1.11)"
        ));
        assert!(named(slower(&report)).ends_with(
            "1.09 times as long as the older build (median of 9 starts, between 1.06 and 1.12)"
        ));
    }

    #[test]
    fn the_interval_is_that_of_the_published_table() {
        // Ranks for 95 % of a median: none for 5 values, 1 and 6 of 6, 2 and 9 of 10, 6 and 15 of 20, 18 and 33 of 50.
        for (count, low) in [(5, 1), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6), (50, 18)] {
            let values: Vec<f64> = (1..=count).rev().map(f64::from).collect();
            let interval = Interval::of(&values);
            assert_eq!(interval.low, f64::from(low), "{count}");
            assert_eq!(interval.high, f64::from(count + 1 - low), "{count}");
            assert_eq!(interval.median, f64::from(count + 1) / 2.0);
        }
    }
}
