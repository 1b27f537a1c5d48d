//! openb with lifetimes.

use anyhow::{Result, anyhow};
use gpuos_sim::curve::mean;
use gpuos_sim::policy::Name;
use gpuos_sim::protocol::lifetimes::{Lifetimes, Outcome};
use serde_json::json;

use super::{Input, Report, percent};
use crate::table::Table;

struct Run {
    policy: Name,
    seed: u64,
    outcome: Outcome,
}

pub fn run(input: &Input<'_>) -> Result<Report> {
    let mut runs = Vec::new();
    for &policy in &input.args.policy {
        for seed in input.args.seeds.iter() {
            runs.push(one(input, policy, seed)?);
        }
    }
    let policies = &input.args.policy;
    Ok(Report {
        text: text(input.args.load, policies, &runs),
        json: json(input.args.load, policies, &runs),
        csv: csv(&runs),
        svg: None,
    })
}

fn one(input: &Input<'_>, policy: Name, seed: u64) -> Result<Run> {
    let load = u64::from(input.args.load);
    let mut run = Lifetimes::new(
        &input.nodes,
        &input.jobs,
        input.contender(policy),
        load,
        seed,
    )
    .map_err(|e| anyhow!("{}: {e}", input.args.trace().display()))?;
    let bar = &input.bar;
    bar.set_length((run.steps() * input.args.runs()) as u64);
    bar.set_message(format!("{policy}, seed {seed}"));
    while run.step() {
        bar.inc(1);
    }
    Ok(Run {
        policy,
        seed,
        outcome: run.outcome(),
    })
}

/// Mean over the seeds of a policy.
fn over(runs: &[Run], policy: Name, figure: impl Fn(&Outcome) -> u64) -> (f64, f64) {
    let of_policy = runs.iter().filter(|run| run.policy == policy);
    let figures: Vec<f64> = of_policy.map(|run| figure(&run.outcome) as f64).collect();
    mean(&figures)
}

fn text(load: u16, policies: &[Name], runs: &[Run]) -> String {
    let mut table = Table::new(&[
        "policy",
        "allocated %",
        "deviation",
        "rejected %",
        "rejected GPU hours",
        "rejected jobs",
        "largest gang",
    ]);
    for &policy in policies {
        let (allocated, deviation) = over(runs, policy, |o| o.allocated_ppm);
        let mean = |figure: fn(&Outcome) -> u64| over(runs, policy, figure).0;
        table.row([
            policy.to_string(),
            percent(allocated),
            percent(deviation),
            percent(mean(|o| o.rejected_ppm)),
            format!("{:.0}", mean(|o| o.rejected_gpu_hours)),
            format!("{:.0}", mean(|o| o.rejected_jobs)),
            format!("{:.1}", mean(|o| o.gang_milli) / 1e3),
        ]);
    }
    format!(
        "Load {load} %: means over time of the GPUs allocated, in % of all, and of the largest gang \
         that fits, in GPUs\n(8 GPUs and 64 cores of a node for each task); rejected: GPU time of \
         jobs that found no room.\n\n{}",
        table.render()
    )
}

fn json(load: u16, policies: &[Name], runs: &[Run]) -> serde_json::Value {
    let policies = policies.iter().map(|&policy| {
        let (allocated, deviation) = over(runs, policy, |o| o.allocated_ppm);
        let of_policy = runs.iter().filter(|run| run.policy == policy);
        let each: Vec<_> = of_policy
            .map(|run| {
                json!({
                    "seed": run.seed,
                    "allocation_percent": run.outcome.allocated_ppm as f64 / 1e4,
                    "rejected_percent": run.outcome.rejected_ppm as f64 / 1e4,
                    "rejected_gpu_hours": run.outcome.rejected_gpu_hours,
                    "rejected_jobs": run.outcome.rejected_jobs,
                    "largest_gang_gpus": run.outcome.gang_milli as f64 / 1e3,
                })
            })
            .collect();
        json!({
            "policy": policy.as_str(),
            "allocation_percent": allocated / 1e4,
            "deviation": deviation / 1e4,
            "runs": each,
        })
    });
    json!({ "load_percent": load, "policies": policies.collect::<Vec<_>>() })
}

fn csv(runs: &[Run]) -> String {
    let mut text = String::from(
        "policy,seed,allocation_percent,rejected_percent,rejected_gpu_hours,rejected_jobs,\
         largest_gang_gpus\n",
    );
    for run in runs {
        let outcome = &run.outcome;
        text += &format!(
            "{},{},{},{},{},{},{:.3}\n",
            run.policy,
            run.seed,
            percent(outcome.allocated_ppm as f64),
            percent(outcome.rejected_ppm as f64),
            outcome.rejected_gpu_hours,
            outcome.rejected_jobs,
            outcome.gang_milli as f64 / 1e3
        );
    }
    text
}
