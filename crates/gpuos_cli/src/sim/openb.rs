//! The openb inflation protocol.

use anyhow::Result;
use gpuos_sim::curve::{Curve, mean};
use gpuos_sim::plot::{Line, Titles, svg};
use gpuos_sim::policy::Name;
use gpuos_sim::protocol::inflation::{ARRIVAL_PERCENT, Inflation, Standing};
use serde_json::json;

use super::{Input, Report, percent};
use crate::table::Table;

/// Arrived load that the table shows, in % of the cluster's GPUs.
const SHOWN: [usize; 4] = [80, 100, 110, 130];

struct Run {
    policy: Name,
    seed: u64,
    curve: Curve,
    end: Standing,
}

pub fn run(input: &Input<'_>) -> Result<Report> {
    let mut runs = Vec::new();
    for &policy in &input.args.policy {
        for seed in input.args.seeds.iter() {
            runs.push(one(input, policy, seed));
        }
    }
    let policies = &input.args.policy;
    Ok(Report {
        text: text(policies, &runs),
        json: json(policies, &runs),
        csv: csv(&runs),
        svg: Some(plot(input, &runs)),
    })
}

fn one(input: &Input<'_>, policy: Name, seed: u64) -> Run {
    let mut run = Inflation::new(&input.nodes, &input.jobs, input.contender(policy), seed);
    let mut curve = Curve::new();
    let bar = &input.bar;
    bar.set_length((run.steps() * input.args.runs()) as u64);
    bar.set_message(format!("{policy}, seed {seed}"));
    while let Some(standing) = run.step() {
        curve.push(&standing);
        bar.inc(1);
    }
    Run {
        policy,
        seed,
        curve,
        end: run.standing(),
    }
}

/// Mean and deviation over the seeds of a policy.
fn over(runs: &[Run], policy: Name, figure: impl Fn(&Run) -> f64) -> (f64, f64) {
    let of_policy = runs.iter().filter(|run| run.policy == policy);
    mean(&of_policy.map(figure).collect::<Vec<_>>())
}

/// Allocation at the end, in millionths.
fn last(run: &Run) -> f64 {
    run.curve.at(ARRIVAL_PERCENT as usize) as f64
}

fn text(policies: &[Name], runs: &[Run]) -> String {
    let shown = SHOWN.map(|at| format!("at {at} %"));
    let mut headings = vec!["policy"];
    headings.extend(shown.iter().map(String::as_str));
    headings.extend(["deviation", "rejected jobs", "rejected GPUs"]);
    let mut table = Table::new(&headings);
    for &policy in policies {
        let mut row = vec![policy.to_string()];
        row.extend(SHOWN.map(|at| percent(over(runs, policy, |run| run.curve.at(at) as f64).0)));
        row.push(percent(over(runs, policy, last).1));
        let jobs = over(runs, policy, |run| run.end.rejected as f64).0;
        let gpus = over(runs, policy, |run| run.end.rejected_milli as f64).0;
        row.push(format!("{jobs:.0}"));
        row.push(format!("{:.0}", gpus / 1e3));
        table.row(row);
    }
    format!(
        "GPUs allocated, in % of all, when so much load has arrived; jobs never end.\n\n{}",
        table.render()
    )
}

fn json(policies: &[Name], runs: &[Run]) -> serde_json::Value {
    let policies = policies.iter().map(|&policy| {
        let (mean, deviation) = over(runs, policy, last);
        let of_policy = runs.iter().filter(|run| run.policy == policy);
        let each: Vec<_> = of_policy
            .map(|run| {
                json!({
                    "seed": run.seed,
                    "allocation_percent": last(run) / 1e4,
                    "rejected_jobs": run.end.rejected,
                    "rejected_gpus": run.end.rejected_milli as f64 / 1e3,
                })
            })
            .collect();
        json!({
            "policy": policy.as_str(),
            "allocation_percent": mean / 1e4,
            "deviation": deviation / 1e4,
            "runs": each,
        })
    });
    json!({ "arrived_percent": ARRIVAL_PERCENT, "policies": policies.collect::<Vec<_>>() })
}

fn csv(runs: &[Run]) -> String {
    let mut text = String::from("policy,seed,arrived_percent,allocation_percent\n");
    for run in runs {
        for at in 0..=ARRIVAL_PERCENT as usize {
            let allocation = percent(run.curve.at(at) as f64);
            text += &format!("{},{},{at},{allocation}\n", run.policy, run.seed);
        }
    }
    text
}

fn plot(input: &Input<'_>, runs: &[Run]) -> String {
    // Below this load everything fits under every policy.
    let shown = 70..=ARRIVAL_PERCENT as usize;
    let line = |policy: Name| Line {
        name: policy.to_string(),
        points: shown
            .clone()
            .map(|at| {
                let allocation = over(runs, policy, |run| run.curve.at(at) as f64).0;
                (at as f64, allocation / 1e4)
            })
            .collect(),
    };
    let titles = Titles {
        title: &format!("{}: GPUs allocated", input.name),
        x: "load arrived, % of the cluster's GPUs",
        y: "allocated, % of the cluster's GPUs",
    };
    let lines: Vec<Line> = input.args.policy.iter().copied().map(line).collect();
    svg(titles, &lines)
}
