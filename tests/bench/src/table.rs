//! The figures as CSV, and the releases side by side for a page.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cells::Call;
use crate::report::{Line, Run, us};

/// Writes bench.csv, and bench.md with the releases side by side.
pub fn write(runs: &[Run], dir: &Path) -> Result<()> {
    for (name, text) in [("bench.csv", csv(runs)), ("bench.md", side_by_side(runs))] {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// A line for each cell, times in microseconds; those of a start and an end stand where a job starts.
fn csv(runs: &[Run]) -> String {
    let mut text = String::from(
        "slurm,nodes,gpus,job,load,call,samples,stock_median_us,stock_p95_us,gpuos_median_us,gpuos_p95_us,\
         gpuos_in_cons_tres_us,times_faster,goal,reached,stock_start_us,gpuos_start_us,stock_end_us,gpuos_end_us\n",
    );
    for run in runs {
        for line in &run.lines {
            let figure = |ns: u64| format!("{:.1}", ns as f64 / 1000.0);
            let beside = [line.start, line.end].concat();
            let beside = beside.iter().map(|figures| match line.call {
                Call::Start => figure(figures.median),
                _ => String::new(),
            });
            let fields = [
                run.slurm.clone(),
                run.nodes.to_string(),
                run.gpus.to_string(),
                line.job.clone(),
                line.load().into(),
                line.call().replace(',', ""),
                line.gpuos.samples.to_string(),
                figure(line.stock.median),
                figure(line.stock.p95),
                figure(line.gpuos.median),
                figure(line.gpuos.p95),
                figure(line.gpuos.inner_median),
                format!("{:.2}", line.ratio()),
                line.goal(run.nodes).to_string(),
                line.reached(run.nodes).to_string(),
            ];
            let all: Vec<String> = fields.into_iter().chain(beside).collect();
            let _ = writeln!(text, "{}", all.join(","));
        }
    }
    text
}

/// A table in Markdown for each size of cluster: a line for each cell, a column for each release.
fn side_by_side(runs: &[Run]) -> String {
    let mut sizes: Vec<(usize, usize)> = runs.iter().map(|run| (run.nodes, run.gpus)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut text = String::new();
    for (nodes, gpus) in sizes {
        let runs: Vec<&Run> = runs.iter().filter(|run| run.nodes == nodes).collect();
        let releases: Vec<&str> = runs.iter().map(|run| run.slurm.as_str()).collect();
        let _ = writeln!(
            text,
            "### {nodes} nodes, {gpus} GPUs\n\n| job | load | call | {} |\n| --- | --- | --- |{}",
            releases.join(" | "),
            " ---: |".repeat(releases.len())
        );
        let Some(first) = runs.first() else { continue };
        for line in &first.lines {
            let same = |other: &&Line| {
                (&other.job, other.load(), other.call()) == (&line.job, line.load(), line.call())
            };
            let cells = runs.iter().map(|run| match run.lines.iter().find(same) {
                None => String::new(),
                Some(cell) => {
                    let missed = if cell.reached(nodes) { "" } else { " (missed)" };
                    let (stock, gpuos) = (us(cell.stock.median), us(cell.gpuos.median));
                    format!("{stock} / {gpuos}: {:.2}{missed}", cell.ratio())
                }
            });
            let cells: Vec<String> = cells.collect();
            let (job, load, call) = (&line.job, line.load(), line.call());
            let _ = writeln!(text, "| {job} | {load} | {call} | {} |", cells.join(" | "));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Figures;

    fn run(slurm: &str, stock: u64) -> Run {
        let figures = |median| Figures {
            samples: 30,
            median,
            cpu_median: median,
            ..Figures::default()
        };
        let line = Line {
            job: "1 GPU".into(),
            job_nodes: 1,
            call: Call::Start,
            stock: figures(stock),
            gpuos: figures(100_000),
            ..Line::default()
        };
        Run {
            slurm: slurm.into(),
            nodes: 4,
            gpus: 32,
            lines: vec![line],
        }
    }

    #[test]
    fn releases_stand_side_by_side() {
        let runs = [run("22.05.8", 200_000), run("26.05.5", 90_000)];
        let text = side_by_side(&runs);
        assert!(text.contains("| 22.05.8 | 26.05.5 |"), "{text}");
        assert!(
            text.contains("| 200 / 100: 2.00 | 90.0 / 100: 0.90 (missed) |"),
            "{text}"
        );
    }

    #[test]
    fn each_line_of_the_csv_has_all_fields() {
        let text = csv(&[run("22.05.8", 200_000), run("26.05.5", 90_000)]);
        let fields: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(fields, [19, 19, 19], "{text}");
        assert!(
            text.contains("\n22.05.8,4,32,1 GPU,idle,RUN_NOW starts,30,200.0,"),
            "{text}"
        );
    }
}
