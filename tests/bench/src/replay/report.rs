//! The figures of a replay as a table and as JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::of_kind;
use super::tally::{Figures, mean};
use crate::samples::{Ask, Kind, Sample};
use gpuos_sim::replay::jobs::{Job, Scale};

/// Waits within this share, or within [`SECOND`], are level: two runs differ by as much.
const LEVEL: f64 = 0.03;
/// Slurm tells starts in whole seconds.
const SECOND: f64 = 1.0;

/// What the select plugin had to do in one peer, in processor time of the calling thread.
#[derive(Clone, Copy, Default, Debug)]
pub struct Work {
    /// Calls of `job_test`: start now, could it ever, when could it.
    pub calls: [usize; 3],
    /// Their time in nanoseconds.
    pub test_ns: [u64; 3],
    /// Time when jobs start and end, nanoseconds.
    pub around_ns: u64,
}

impl Work {
    /// Of all samples of a peer.
    pub fn of(samples: &[Sample]) -> Work {
        let mut work = Work::default();
        for sample in of_kind(samples, Kind::JobTest) {
            let kind = match sample.ask {
                Ask::RunNow => 0,
                Ask::TestOnly => 1,
                Ask::WillRun | Ask::Other => 2,
            };
            work.calls[kind] += 1;
            work.test_ns[kind] += sample.cpu_ns;
        }
        for kind in [Kind::NodeinfoSet, Kind::JobFini] {
            work.around_ns += of_kind(samples, kind).map(|s| s.cpu_ns).sum::<u64>();
        }
        work
    }

    fn tests(&self) -> f64 {
        self.test_ns.iter().sum::<u64>() as f64
    }

    fn all(&self) -> f64 {
        self.tests() + self.around_ns as f64
    }

    fn json(&self) -> Value {
        let part = |kind: usize| json!({ "calls": self.calls[kind], "cpu_ns": self.test_ns[kind] });
        json!({
            "run_now": part(0),
            "test_only": part(1),
            "will_run": part(2),
            "job_start_and_end_cpu_ns": self.around_ns,
        })
    }
}

/// One release.
pub struct Run {
    /// Release of Slurm.
    pub slurm: String,
    /// What the two are called.
    pub names: [String; 2],
    /// By how many seconds the latest submission was late.
    pub late: f64,
    /// The two; the second is held against the first.
    pub peers: [(Figures, Work); 2],
}

/// What is better, and what counts as level.
enum Better {
    Less(f64),
    More,
}

struct Row {
    name: &'static str,
    key: &'static str,
    values: [f64; 2],
    digits: usize,
    better: Better,
}

impl Row {
    fn reached(&self) -> bool {
        let [first, second] = self.values;
        match self.better {
            Better::Less(slack) => second <= first * (1.0 + LEVEL) + slack,
            Better::More => second >= first * (1.0 - 0.005),
        }
    }
}

impl Run {
    fn rows(&self) -> Vec<Row> {
        let row = |name, key, of: &dyn Fn(&(Figures, Work)) -> f64, digits, better| Row {
            name,
            key,
            values: [of(&self.peers[0]), of(&self.peers[1])],
            digits,
            better,
        };
        let waits = Better::Less(SECOND);
        vec![
            row(
                "mean wait, s",
                "mean_wait_s",
                &|p| mean(&p.0.waits),
                2,
                waits,
            ),
            row(
                "mean wait, each job by its GPU time, s",
                "work_wait_s",
                &|p| p.0.wait_by_work,
                2,
                Better::Less(SECOND),
            ),
            row(
                "95 % waited no longer than, s",
                "p95_wait_s",
                &|p| rank(&p.0.waits, 0.95),
                0,
                Better::Less(SECOND),
            ),
            row(
                "mean wait of jobs on several nodes, s",
                "mean_gang_wait_s",
                &|p| mean(&p.0.gang_waits),
                2,
                Better::Less(SECOND),
            ),
            row(
                "mean wait of jobs with several GPUs of one node, s",
                "mean_local_wait_s",
                &|p| mean(&p.0.local_waits),
                2,
                Better::Less(SECOND),
            ),
            row(
                "mean wait of jobs with one GPU, s",
                "mean_single_wait_s",
                &|p| mean(&p.0.single_waits),
                2,
                Better::Less(SECOND),
            ),
            row(
                "first submission to last end, s",
                "makespan_s",
                &|p| p.0.makespan,
                0,
                Better::Less(2.0 * SECOND),
            ),
            row(
                "GPUs held while jobs were submitted, %",
                "allocation_percent",
                &|p| p.0.allocation * 100.0,
                1,
                Better::More,
            ),
            row(
                "ring bandwidth, several GPUs of one node, GB/s",
                "node_ring_gbps",
                &|p| mean(&p.0.local),
                2,
                Better::More,
            ),
            row(
                "ring bandwidth, several nodes, GB/s",
                "gang_ring_gbps",
                &|p| mean(&p.0.gang_gbps),
                2,
                Better::More,
            ),
            row(
                "ring bandwidth of both, by GPU time, GB/s",
                "weighted_ring_gbps",
                &|p| p.0.weighted_gbps,
                2,
                Better::More,
            ),
            row(
                "leaves that a job on several nodes lies in",
                "leaf_span",
                &|p| mean(&p.0.spans),
                3,
                Better::Less(0.0),
            ),
            row(
                "processor time, job tests that are to start a job, ms",
                "run_now_cpu_ms",
                &|p| p.1.test_ns[0] as f64 / 1e6,
                0,
                Better::Less(0.0),
            ),
            row(
                "processor time, backfill's forecasts, ms",
                "will_run_cpu_ms",
                &|p| p.1.test_ns[2] as f64 / 1e6,
                0,
                Better::Less(0.0),
            ),
            row(
                "processor time of all job tests, ms",
                "job_test_cpu_ms",
                &|p| p.1.tests() / 1e6,
                0,
                Better::Less(0.0),
            ),
            row(
                "the same with job starts and ends, ms",
                "select_cpu_ms",
                &|p| p.1.all() / 1e6,
                0,
                Better::Less(0.0),
            ),
        ]
    }

    /// For the terminal.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for row in self.rows() {
            let [first, second] = row.values;
            let [one, other] = &self.names;
            let _ = writeln!(
                text,
                "  {:<54} {one} {first:>9.d$}  {other} {second:>9.d$}",
                row.name,
                d = row.digits
            );
        }
        text
    }

    fn json(&self) -> Value {
        let side = |at: usize, (figures, work): &(Figures, Work)| {
            let mut value = json!({
                "jobs": figures.waits.len(),
                "median_wait_s": rank(&figures.waits, 0.5),
                "longest_wait_s": rank(&figures.waits, 1.0),
                "allocation_to_the_end_percent": figures.whole_allocation * 100.0,
                "jobs_with_several_gpus_of_one_node": figures.local.len(),
                "jobs_on_several_nodes": figures.spans.len(),
                "job_tests": work.json(),
            });
            for row in self.rows() {
                value[row.key] = json!(row.values[at]);
            }
            value
        };
        let mut value = json!({
            "slurm": self.slurm,
            "latest_submission_late_s": self.late,
            "behind": self.rows().iter().filter(|r| !r.reached()).map(|r| r.key).collect::<Vec<_>>(),
        });
        for (at, peer) in self.peers.iter().enumerate() {
            value[&self.names[at]] = side(at, peer);
        }
        value
    }
}

/// All releases.
pub struct Report {
    /// The day on which it was measured.
    date: String,
    about: Value,
    headline: String,
    names: [String; 2],
    /// One for each release.
    pub runs: Vec<Run>,
}

impl Report {
    /// Without any run yet.
    pub fn new(
        date: String,
        names: [String; 2],
        scale: Scale,
        leaf: usize,
        node_type: &str,
        jobs: &[Job],
    ) -> Report {
        let count = |wanted: &dyn Fn(&Job) -> bool| jobs.iter().filter(|job| wanted(job)).count();
        let mut runs: Vec<f64> = jobs.iter().map(|job| job.run).collect();
        runs.sort_unstable_by(f64::total_cmp);
        let gangs = count(&|job| job.nodes > 1);
        let local = count(&|job| job.nodes == 1 && job.per_node > 1);
        Report {
            date,
            names,
            headline: headline(&scale, leaf, node_type, jobs),
            about: json!({
                "trace": "philly",
                "jobs": jobs.len(),
                "jobs_on_several_nodes": gangs,
                "jobs_with_several_gpus_of_one_node": local,
                "submitted_in_s": scale.seconds,
                "load": scale.load,
                "run_s": { "median": rank(&runs, 0.5), "mean": mean(&runs), "longest": rank(&runs, 1.0) },
                "nodes": scale.nodes,
                "node_type": node_type,
                "leaf": leaf,
                "gang_scale": scale.gang_scale,
                "most_nodes": scale.most_nodes,
            }),
            runs: Vec::new(),
        }
    }

    /// A table in Markdown.
    pub fn table(&self) -> String {
        let mut text = format!("\n{}\n| |", self.headline);
        for run in &self.runs {
            let [one, other] = &self.names;
            let _ = write!(text, " {0}: {one} | {0}: {other} |", run.slurm);
        }
        text += "\n| --- |";
        text += &" ---: | ---: |".repeat(self.runs.len());
        let rows: Vec<Vec<Row>> = self.runs.iter().map(Run::rows).collect();
        for at in 0..rows.first().map_or(0, Vec::len) {
            let _ = write!(text, "\n| {} |", rows[0][at].name);
            for run in &rows {
                let Row { values, digits, .. } = &run[at];
                let miss = if run[at].reached() { "" } else { " (behind)" };
                let _ = write!(text, " {:.*} |", digits, values[0]);
                let _ = write!(text, " {:.*}{miss} |", digits, values[1]);
            }
        }
        text + "\n\n"
    }

    /// Figures in which gpuos is behind stock, in words.
    pub fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        for run in &self.runs {
            for row in run.rows().iter().filter(|row| !row.reached()) {
                missed.push(format!(
                    "Slurm {}: {}: {} {:.*}, {} {:.*}",
                    run.slurm,
                    row.name,
                    self.names[0],
                    row.digits,
                    row.values[0],
                    self.names[1],
                    row.digits,
                    row.values[1]
                ));
            }
        }
        missed
    }

    /// A line for each figure of each release.
    fn csv(&self) -> String {
        let [one, other] = &self.names;
        let mut text =
            format!("date,slurm,jobs,submitted_in_s,load,nodes,leaf,figure,{one},{other}\n");
        let scale = ["jobs", "submitted_in_s", "load", "nodes", "leaf"]
            .map(|key| self.about[key].to_string())
            .join(",");
        for run in &self.runs {
            for row in run.rows() {
                let [first, second] = row.values;
                let _ = writeln!(
                    text,
                    "{},{},{scale},\"{}\",{first:.d$},{second:.d$}",
                    self.date,
                    run.slurm,
                    row.name,
                    d = row.digits
                );
            }
        }
        text
    }

    /// Writes replay.json and replay.csv.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let runs: Vec<Value> = self.runs.iter().map(Run::json).collect();
        let value = json!({
            "schema": "gpuos.replay/1",
            "workload": self.about,
            "machine": crate::report::machine(),
            "runs": runs,
        });
        let text = serde_json::to_string_pretty(&value)? + "\n";
        for (name, text) in [("replay.json", text), ("replay.csv", self.csv())] {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// What is replayed, in a sentence.
pub fn headline(scale: &Scale, leaf: usize, node_type: &str, jobs: &[Job]) -> String {
    let count = |wanted: &dyn Fn(&Job) -> bool| jobs.iter().filter(|job| wanted(job)).count();
    let mut runs: Vec<f64> = jobs.iter().map(|job| job.run).collect();
    runs.sort_unstable_by(f64::total_cmp);
    format!(
        "{} jobs in {:.0} s, load {}, on {} nodes of type {node_type} in leaves of {leaf}: \
         {} on several nodes, {} with several GPUs of one node; they run {:.1} s (median), \
         {:.1} s (mean), {:.0} s (longest)\n",
        jobs.len(),
        scale.seconds,
        scale.load,
        scale.nodes,
        count(&|job| job.nodes > 1),
        count(&|job| job.nodes == 1 && job.per_node > 1),
        rank(&runs, 0.5),
        mean(&runs),
        rank(&runs, 1.0)
    )
}

/// The value at a share of the sorted list (nearest rank); 0 of nothing.
fn rank(sorted: &[f64], share: f64) -> f64 {
    let at = (share * sorted.len() as f64).ceil() as usize;
    let found = sorted.get(at.saturating_sub(1));
    found.copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_csv_has_a_line_for_each_figure_with_the_day() {
        let scale = Scale {
            jobs: 60,
            seconds: 10.0,
            load: 0.95,
            nodes: 16,
            node_gpus: 8,
            gang_scale: 4,
            most_nodes: 4,
            seed: 0,
        };
        let names = ["stock", "gpuos"].map(String::from);
        let mut report = Report::new("2026-11-22".into(), names.clone(), scale, 4, "pairs-8", &[]);
        report.runs.push(Run {
            slurm: "22.05.8".into(),
            names,
            late: 0.0,
            peers: Default::default(),
        });
        report.runs[0].peers[0].0.waits = vec![1.0];
        report.runs[0].peers[1].0.waits = vec![1.0, 2.0];
        let csv = report.csv();
        let mut lines = csv.lines();
        let head = "date,slurm,jobs,submitted_in_s,load,nodes,leaf,figure,stock,gpuos";
        assert_eq!(lines.next(), Some(head));
        let first = "2026-11-22,22.05.8,0,10.0,0.95,16,4,\"mean wait, s\",1.00,1.50";
        assert_eq!(lines.next(), Some(first));
        assert_eq!(csv.lines().count(), 1 + report.runs[0].rows().len());
    }
}
