//! Two builds of select/gpuos against each other: what a change costs.
//!
//! Runs one after the other differ by a fifth on a virtual machine; turns in the same run differ by a few per cent, as both builds
//! meet the same minutes.

use std::fmt::Write as _;

use crate::report::{Line, Report};

/// A cell of the newer build counts as slower beyond this many times the older one's median.
const SLOWER: f64 = 1.05;

/// How many times as long the newer build takes, by medians: of elapsed time or of processor time, whichever says less. What
/// interrupts one of the two is not the build's.
fn times(line: &Line) -> f64 {
    let times = |older: u64, newer: u64| newer as f64 / older.max(1) as f64;
    times(line.stock.median, line.gpuos.median)
        .min(times(line.stock.cpu_median, line.gpuos.cpu_median))
}

/// The cells in which the newer build is slower.
pub fn slower(report: &Report) -> Vec<String> {
    let of_run = |run: &crate::report::Run| {
        let slow = run.lines.iter().filter(|line| times(line) > SLOWER);
        let text = |line: &Line| {
            let (nodes, times) = (run.nodes, times(line));
            format!(
                "Slurm {}, {nodes} nodes, {}: {times:.2} times as long as the older build",
                run.slurm,
                line.name()
            )
        };
        slow.map(text).collect::<Vec<_>>()
    };
    report.runs.iter().flat_map(of_run).collect()
}

/// A line for each cell, times in microseconds.
pub fn csv(report: &Report) -> String {
    let mut text = String::from(
        "date,slurm,nodes,job,load,call,turns,older_median_us,newer_median_us,older_cpu_median_us,newer_cpu_median_us,times\n",
    );
    for run in &report.runs {
        for line in &run.lines {
            let (older, newer) = (line.stock, line.gpuos);
            let us = |ns: u64| format!("{:.1}", ns as f64 / 1000.0);
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{},{},{:.2}",
                report.date,
                run.slurm,
                run.nodes,
                line.quoted(),
                newer.samples.min(older.samples),
                us(older.median),
                us(newer.median),
                us(older.cpu_median),
                us(newer.cpu_median),
                times(line)
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Figures, Run};

    fn line(older: [u64; 2], newer: [u64; 2]) -> Line {
        let figures = |[median, cpu_median]: [u64; 2]| Figures {
            samples: 30,
            median,
            cpu_median,
            ..Figures::default()
        };
        Line {
            job: "1 GPU".into(),
            stock: figures(older),
            gpuos: figures(newer),
            ..Line::default()
        }
    }

    #[test]
    fn what_takes_longer_by_both_clocks_is_slower() {
        let mut report = Report::new(false, "2026-11-23".into());
        report.runs.push(Run {
            slurm: "24.11.5".into(),
            nodes: 4,
            gpus: 32,
            lines: vec![
                line([100_000, 100_000], [105_000, 105_000]),
                line([100_000, 100_000], [180_000, 101_000]),
                line([100_000, 100_000], [107_000, 106_000]),
            ],
        });
        let wanted = "Slurm 24.11.5, 4 nodes, 1 GPU, idle, RUN_NOW, starts: 1.06 times as long as the older build";
        assert_eq!(slower(&report), [wanted]);
        let csv = csv(&report);
        let last = csv.lines().last();
        let wanted = "2026-11-23,24.11.5,4,\"1 GPU\",\"idle\",\"RUN_NOW, starts\",30,100.0,107.0,100.0,106.0,1.06";
        assert_eq!(last, Some(wanted));
    }
}
