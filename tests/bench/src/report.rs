//! The figures as a table, as JSON, as CSV and as a picture.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cells::{Call, Load};
use crate::samples::Sample;

/// What gangs of this many nodes have to reach on a large cluster.
const GANG: usize = 64;
const GANG_RATIO: f64 = 4.0;
/// From this many nodes on a start has to take no longer than [`START_NS`], and all that the first job asks no longer
/// than [`FIRST_NS`].
const HUGE: usize = 10_000;
const START_NS: u64 = 1_000_000;
const FIRST_NS: u64 = 100_000_000;
/// A cell counts as slower only beyond this: two runs of one and the same plugin differ by as much.
const NOISE: f64 = 0.95;

/// Figures of the samples of one cell, times in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Figures {
    /// How many samples.
    pub samples: usize,
    /// Elapsed time: median.
    pub median: u64,
    /// Elapsed time: 95 % took no longer.
    pub p95: u64,
    /// Elapsed time: shortest.
    pub min: u64,
    /// Elapsed time: longest.
    pub max: u64,
    /// Processor time: median.
    pub cpu_median: u64,
    /// Part of the elapsed time that gpuos spent in cons_tres: median.
    pub inner_median: u64,
    /// Most calls of cons_tres by gpuos for one call of Slurm.
    pub inner_calls: u32,
}

impl Figures {
    /// Of these samples; all 0 without any.
    pub fn of(samples: &[Sample]) -> Figures {
        let mut wall: Vec<u64> = samples.iter().map(|s| s.wall_ns).collect();
        let mut cpu: Vec<u64> = samples.iter().map(|s| s.cpu_ns).collect();
        let mut inner: Vec<u64> = samples.iter().map(|s| s.inner_ns).collect();
        inner.sort_unstable();
        wall.sort_unstable();
        cpu.sort_unstable();
        Figures {
            samples: wall.len(),
            median: rank(&wall, 0.5),
            p95: rank(&wall, 0.95),
            min: rank(&wall, 0.0),
            max: rank(&wall, 1.0),
            cpu_median: rank(&cpu, 0.5),
            inner_median: rank(&inner, 0.5),
            inner_calls: samples.iter().map(|s| s.inner_calls).max().unwrap_or(0),
        }
    }

    fn json(&self) -> Value {
        json!({
            "samples": self.samples,
            "median_ns": self.median,
            "p95_ns": self.p95,
            "min_ns": self.min,
            "max_ns": self.max,
            "cpu_median_ns": self.cpu_median,
            "in_cons_tres_median_ns": self.inner_median,
            "cons_tres_calls": self.inner_calls,
        })
    }
}

/// The value at a share of the sorted list (nearest rank).
fn rank(sorted: &[u64], share: f64) -> u64 {
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(at.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// One cell, measured.
#[derive(Default)]
pub struct Line {
    /// Job, for people.
    pub job: String,
    /// Nodes of the job.
    pub job_nodes: usize,
    /// Load.
    pub load: Load,
    /// Question.
    pub call: Call,
    /// Nodes among which the plugin could choose.
    pub candidates: u32,
    /// select/cons_tres, or an older build of select/gpuos.
    pub stock: Figures,
    /// select/gpuos.
    pub gpuos: Figures,
    /// In each start of both: how many times as long gpuos takes ([`crate::older::times`]). Empty for [`Call::First`].
    pub times: Vec<f64>,
    /// TEST_ONLY calls around it, which gpuos only hands on: stock, gpuos.
    pub test_only: [Figures; 2],
    /// What follows when a job has got its nodes (`select_p_select_nodeinfo_set`), where gpuos
    /// writes its note: stock, gpuos.
    pub start: [Figures; 2],
    /// What follows when a job ends (`select_p_job_fini`): stock, gpuos.
    pub end: [Figures; 2],
}

impl Line {
    /// How many times faster gpuos is, by medians: of elapsed time or of processor time, whichever
    /// says less. On a busy machine the longer call is interrupted more, which flatters the shorter.
    pub fn ratio(&self) -> f64 {
        let ratio = |stock: u64, gpuos: u64| stock as f64 / gpuos.max(1) as f64;
        ratio(self.stock.median, self.gpuos.median)
            .min(ratio(self.stock.cpu_median, self.gpuos.cpu_median))
    }

    fn goal(&self, nodes: usize) -> f64 {
        if nodes >= 1000 && self.job_nodes == GANG {
            GANG_RATIO
        } else {
            1.0
        }
    }

    /// The longest that the median may be in a cluster of so many nodes, in nanoseconds.
    fn longest(&self, nodes: usize) -> Option<u64> {
        match self.call {
            Call::Start if nodes >= HUGE => Some(START_NS),
            Call::First => Some(FIRST_NS),
            _ => None,
        }
    }

    /// Whether it reaches its goals in a cluster of so many nodes.
    pub fn reached(&self, nodes: usize) -> bool {
        if self
            .longest(nodes)
            .is_some_and(|most| self.gpuos.median > most)
        {
            return false;
        }
        let goal = self.goal(nodes);
        // As it is printed: two decimals.
        (self.ratio() * 100.0).round() / 100.0 >= if goal > 1.0 { goal } else { NOISE }
    }

    fn load(&self) -> &'static str {
        match self.load {
            Load::Idle => "idle",
            Load::Full => "90 % full",
        }
    }

    fn call(&self) -> &'static str {
        match self.call {
            Call::Start => "RUN_NOW, starts",
            Call::Refused => "RUN_NOW, no room",
            Call::When => "WILL_RUN",
            Call::First => "until it starts",
        }
    }

    /// Job, load and question, for people.
    pub fn name(&self) -> String {
        format!("{}, {}, {}", self.job, self.load(), self.call())
    }

    /// The same for a CSV file.
    pub fn quoted(&self) -> String {
        format!("\"{}\",\"{}\",\"{}\"", self.job, self.load(), self.call())
    }

    /// For the terminal, with the name of what gpuos is compared with.
    pub fn text(&self, other: &str) -> String {
        format!(
            "{:<19} {:<10} {:<17} {other} {:>8} us (cpu {:>8})  gpuos {:>8} us (cpu {:>8}, cons_tres {:>8} in {})  x{:.2}",
            self.job,
            self.load(),
            self.call(),
            us(self.stock.median),
            us(self.stock.cpu_median),
            us(self.gpuos.median),
            us(self.gpuos.cpu_median),
            us(self.gpuos.inner_median),
            self.gpuos.inner_calls,
            self.ratio()
        )
    }
}

/// Both peers on one cluster of one release.
pub struct Run {
    /// Release of Slurm.
    pub slurm: String,
    /// Nodes.
    pub nodes: usize,
    /// GPUs.
    pub gpus: usize,
    /// Cells.
    pub lines: Vec<Line>,
}

/// All that was measured.
pub struct Report {
    flat: bool,
    /// The day on which it was measured.
    pub date: String,
    /// One per release and cluster.
    pub runs: Vec<Run>,
}

impl Report {
    /// Without any run yet.
    pub fn new(flat: bool, date: String) -> Report {
        Report {
            flat,
            date,
            runs: Vec::new(),
        }
    }

    fn topology(&self) -> &'static str {
        if self.flat { "none" } else { "tree" }
    }

    /// A table in Markdown.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for run in &self.runs {
            let _ = write!(
                text,
                "\nSlurm {}, {} nodes, {} GPUs, topology {} (microseconds)\n\n\
                 | job | load | call | nodes to choose from | stock median | stock p95 | gpuos median | gpuos p95 | of it in cons_tres | stock / gpuos |\n\
                 | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
                run.slurm,
                run.nodes,
                run.gpus,
                self.topology()
            );
            for line in &run.lines {
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.2}{} |",
                    line.job,
                    line.load(),
                    line.call(),
                    line.candidates,
                    us(line.stock.median),
                    us(line.stock.p95),
                    us(line.gpuos.median),
                    us(line.gpuos.p95),
                    us(line.gpuos.inner_median),
                    line.ratio(),
                    if line.reached(run.nodes) {
                        ""
                    } else {
                        " (missed)"
                    },
                );
            }
            let starts = run.lines.iter().filter(|line| line.call == Call::Start);
            text += "\nBeside it, when the job has its nodes and when it ends (medians):\n\n\
                     | job | load | stock: start | gpuos: start, with its note | stock: end | gpuos: end |\n\
                     | --- | --- | ---: | ---: | ---: | ---: |\n";
            for line in starts {
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {} | {} |",
                    line.job,
                    line.load(),
                    us(line.start[0].median),
                    us(line.start[1].median),
                    us(line.end[0].median),
                    us(line.end[1].median),
                );
            }
        }
        text + "\n"
    }

    /// Cells that miss their goal, in words.
    pub fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        for run in &self.runs {
            for line in run.lines.iter().filter(|line| !line.reached(run.nodes)) {
                let most = line.longest(run.nodes);
                missed.push(format!(
                    "Slurm {}, {} nodes, {}, {}, {}: {:.2} times as fast as stock, the goal is {}{}",
                    run.slurm,
                    run.nodes,
                    line.job,
                    line.load(),
                    line.call(),
                    line.ratio(),
                    line.goal(run.nodes),
                    most.map_or(String::new(), |most| format!(
                        "; {} us, the goal is {}",
                        us(line.gpuos.median),
                        us(most)
                    ))
                ));
            }
        }
        missed
    }

    fn json(&self) -> Value {
        let runs: Vec<Value> = self
            .runs
            .iter()
            .map(|run| {
                let cells: Vec<Value> = run
                    .lines
                    .iter()
                    .map(|line| {
                        json!({
                            "job": line.job,
                            "job_nodes": line.job_nodes,
                            "load": line.load(),
                            "call": line.call(),
                            "candidates": line.candidates,
                            "stock": line.stock.json(),
                            "gpuos": line.gpuos.json(),
                            "ratio": line.ratio(),
                            "goal": line.goal(run.nodes),
                            "reached": line.reached(run.nodes),
                            "test_only": {
                                "stock": line.test_only[0].json(),
                                "gpuos": line.test_only[1].json(),
                            },
                            "start": {
                                "stock": line.start[0].json(),
                                "gpuos": line.start[1].json(),
                            },
                            "end": {
                                "stock": line.end[0].json(),
                                "gpuos": line.end[1].json(),
                            },
                        })
                    })
                    .collect();
                json!({
                    "slurm": run.slurm,
                    "nodes": run.nodes,
                    "gpus": run.gpus,
                    "cells": cells,
                })
            })
            .collect();
        json!({
            "schema": "gpuos.bench/1",
            "unit": "ns",
            "topology": self.topology(),
            "machine": machine(),
            "runs": runs,
        })
    }

    /// A line for each cell, times in microseconds; what a cell does not have is empty.
    fn csv(&self) -> String {
        let mut text = String::from(
            "date,slurm,nodes,gpus,topology,job,load,call,candidates,stock_median_us,stock_p95_us,gpuos_median_us,\
             gpuos_p95_us,in_cons_tres_median_us,times_faster,goal,reached,stock_start_us,gpuos_start_us,\
             stock_end_us,gpuos_end_us\n",
        );
        for run in &self.runs {
            for line in &run.lines {
                let _ = write!(
                    text,
                    "{},{},{},{},{},{},{}",
                    self.date,
                    run.slurm,
                    run.nodes,
                    run.gpus,
                    self.topology(),
                    line.quoted(),
                    line.candidates,
                );
                let (stock, gpuos) = (line.stock, line.gpuos);
                for ns in [
                    stock.median,
                    stock.p95,
                    gpuos.median,
                    gpuos.p95,
                    gpuos.inner_median,
                ] {
                    let _ = write!(text, ",{}", us(ns));
                }
                let reached = if line.reached(run.nodes) { "yes" } else { "no" };
                let goal = line.goal(run.nodes);
                let _ = write!(text, ",{:.2},{goal},{reached}", line.ratio());
                for around in line.start.iter().chain(&line.end) {
                    let value = match line.call {
                        Call::Start => us(around.median),
                        _ => String::new(),
                    };
                    let _ = write!(text, ",{value}");
                }
                text.push('\n');
            }
        }
        text
    }

    /// Writes bench.json, bench.csv and bench.svg.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let text = serde_json::to_string_pretty(&self.json())? + "\n";
        for (name, text) in [
            ("bench.json", text),
            ("bench.csv", self.csv()),
            ("bench.svg", self.svg()),
        ] {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Two bars for each cell on a logarithmic scale: the median, with a line to the 95th percentile.
    fn svg(&self) -> String {
        const LEFT: f64 = 330.0;
        const DECADE: f64 = 130.0;
        const ROW: f64 = 34.0;
        // 1 us to 100 ms.
        let x = |ns: u64| LEFT + DECADE * ((ns.max(1000) as f64 / 1000.0).log10()).min(5.0);
        let rows: usize = self.runs.iter().map(|run| run.lines.len() + 1).sum();
        let (width, height) = (LEFT + 5.0 * DECADE + 70.0, 60.0 + ROW * rows as f64);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"10\" y=\"20\" font-size=\"14\">job_test inside slurmctld: median, line to the 95th percentile</text>\n\
             <rect x=\"10\" y=\"30\" width=\"12\" height=\"10\" fill=\"#9aa5b1\"/><text x=\"27\" y=\"40\">stock</text>\n\
             <rect x=\"80\" y=\"30\" width=\"12\" height=\"10\" fill=\"#2f7d32\"/><text x=\"97\" y=\"40\">gpuos</text>\n"
        );
        let names = ["1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms"];
        for (i, name) in names.iter().enumerate() {
            let at = LEFT + DECADE * i as f64;
            let _ = writeln!(
                svg,
                "<line x1=\"{at}\" y1=\"48\" x2=\"{at}\" y2=\"{height}\" stroke=\"#ddd\"/>\
                 <text x=\"{at}\" y=\"44\" text-anchor=\"middle\" fill=\"#555\">{name}</text>"
            );
        }
        let mut y = 55.0;
        for run in &self.runs {
            let _ = writeln!(
                svg,
                "<text x=\"10\" y=\"{}\" font-weight=\"bold\">Slurm {}, {} nodes, {} GPUs</text>",
                y + 20.0,
                run.slurm,
                run.nodes,
                run.gpus
            );
            y += ROW;
            for line in &run.lines {
                let _ = writeln!(
                    svg,
                    "<text x=\"10\" y=\"{}\">{}, {}, {}</text>",
                    y + 16.0,
                    line.job,
                    line.load(),
                    line.call()
                );
                for (i, (figures, colour)) in [(line.stock, "#9aa5b1"), (line.gpuos, "#2f7d32")]
                    .iter()
                    .enumerate()
                {
                    let top = y + 2.0 + 13.0 * i as f64;
                    let _ = writeln!(
                        svg,
                        "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{:.1}\" height=\"11\" fill=\"{colour}\"/>\
                         <line x1=\"{:.1}\" y1=\"{m}\" x2=\"{:.1}\" y2=\"{m}\" stroke=\"#333\"/>",
                        x(figures.median) - LEFT,
                        x(figures.median),
                        x(figures.p95),
                        m = top + 5.5
                    );
                }
                let _ = writeln!(
                    svg,
                    "<text x=\"{:.1}\" y=\"{}\">x{:.1}</text>",
                    x(line.stock.p95.max(line.gpuos.p95)) + 6.0,
                    y + 18.0,
                    line.ratio()
                );
                y += ROW;
            }
        }
        svg + "</svg>\n"
    }
}

fn us(ns: u64) -> String {
    let us = ns as f64 / 1000.0;
    if us < 100.0 {
        format!("{us:.1}")
    } else {
        format!("{us:.0}")
    }
}

/// The day in UTC, as `2026-11-21`.
pub fn today() -> Result<String> {
    let out = Command::new("date").args(["-u", "+%F"]).output();
    let out = out.context("cannot run date")?;
    ensure!(out.status.success(), "date fails: {}", out.status);
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_string())
}

/// Processor and its count, as figures without them mean little.
pub fn machine() -> Value {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map(|(_, name)| name.trim().to_string());
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    json!({ "processor": model, "processors": count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_csv_has_a_line_for_each_cell_with_the_day() {
        let of = |median| Figures {
            median,
            p95: 2 * median,
            cpu_median: median,
            inner_median: median / 2,
            ..Figures::default()
        };
        let line = |call| Line {
            job: "64 nodes x 8 GPUs".into(),
            job_nodes: 64,
            load: Load::Full,
            call,
            candidates: 80,
            stock: of(9_000_000),
            gpuos: of(3_000_000),
            start: [of(1_000), of(2_000)],
            end: [of(3_000), of(4_000)],
            ..Line::default()
        };
        let mut report = Report::new(false, "2026-11-21".into());
        report.runs.push(Run {
            slurm: "22.05.8".into(),
            nodes: 1250,
            gpus: 10_000,
            lines: vec![line(Call::Start), line(Call::When)],
        });
        let csv = report.csv();
        let (head, lines) = csv.split_once('\n').expect("a line of names");
        let common = "2026-11-21,22.05.8,1250,10000,tree,\"64 nodes x 8 GPUs\",\"90 % full\"";
        let times = "80,9000,18000,3000,6000,1500,3.00,4,no";
        assert_eq!(
            lines,
            format!(
                "{common},\"RUN_NOW, starts\",{times},1.0,2.0,3.0,4.0\n{common},\"WILL_RUN\",{times},,,,\n"
            )
        );
        let columns = lines.lines().nth(1).expect("WILL_RUN").split(',').count();
        assert_eq!(head.split(',').count(), columns);
    }

    #[test]
    fn today_is_a_date() {
        let today = today().expect("date runs");
        let parts: Vec<usize> = today.split('-').map(str::len).collect();
        assert_eq!(parts, [4, 2, 2], "{today}");
    }

    #[test]
    fn ranks_are_values_that_were_measured() {
        let sorted: Vec<u64> = (1..=20).collect();
        assert_eq!(rank(&sorted, 0.5), 10);
        assert_eq!(rank(&sorted, 0.95), 19);
        assert_eq!(rank(&sorted, 0.0), 1);
        assert_eq!(rank(&sorted, 1.0), 20);
        assert_eq!(rank(&[], 0.5), 0);
    }
}
