//! The twin of the replay in the real slurmctld.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use clap::CommandFactory;
use clap::error::ErrorKind;
use gpuos_model::node_types::by_name;
use gpuos_placement::plan::Placement;
use gpuos_sim::gangs::philly;
use gpuos_sim::gangs::policy::PolicyKind;
use gpuos_sim::policy::Name;
use gpuos_sim::replay::jobs::Scale;
use gpuos_sim::replay::report::{self, Estimate, FIGURES};
use gpuos_sim::replay::{Options, Outcome};
use serde_json::{Value, json};

use crate::cli::{Cli, SimArgs};
use crate::reply::Reply;
use crate::table::{Table, count};

/// The nodes of the replay in the real slurmctld.
const NODE_TYPE: &str = "pairs-8";
const NODES: usize = 256;
const LEAF: usize = 32;

pub fn run(args: &SimArgs) -> Result<Reply> {
    let options = options(args)?;
    let jobs = super::read(args.trace(), philly::parse)?;
    let outcome = super::with_bar(options.policies.len() * options.seeds.len(), |begin| {
        gpuos_sim::replay::run(&jobs, &options, |policy, seed| {
            begin(format!("{policy}, seed {seed}"));
        })
    });
    let outcome = outcome.map_err(|e| anyhow!("{}: {e}", args.trace().display()))?;
    super::write(args, &report::csv(&outcome), None)?;
    Ok(Reply {
        schema: "gpuos.sim/1",
        json: json(args, &outcome),
        text: text(&outcome),
        yes: true,
    })
}

fn options(args: &SimArgs) -> Result<Options> {
    let usage = |problem: String| Cli::command().error(ErrorKind::ArgumentConflict, problem);
    if args.nodes.is_some() || args.svg.is_some() {
        let problem =
            "--protocol replay has its own nodes and no plot: leave out --nodes and --svg";
        return Err(usage(problem.into()).into());
    }
    let mut policies = Vec::new();
    for policy in &args.policy {
        policies.push(match policy {
            Name::Gpuos => PolicyKind::Gpuos,
            Name::BestFit => PolicyKind::BestFit,
            // The cluster of the replay has topology/tree.
            Name::Stock => PolicyKind::StockTree,
            other => {
                let problem = format!(
                    "--protocol replay compares gpuos, best-fit and stock; {other} places one job \
                     on one node only"
                );
                return Err(usage(problem).into());
            }
        });
    }
    let node_type = by_name(NODE_TYPE).context("the node type of the replay")?;
    Ok(Options {
        scale: Scale {
            jobs: 2000,
            seconds: 240.0,
            load: f64::from(args.load) / 100.0,
            nodes: NODES,
            node_gpus: node_type.gpus as u32,
            gang_scale: 4,
            most_nodes: 32,
            seed: 0,
        },
        leaf: LEAF,
        node_type: Arc::new(node_type),
        placement: Placement::Default,
        policies,
        seeds: args.seeds.iter().collect(),
    })
}

/// By how many percent each policy after the first differs from it in a figure.
fn changes(outcome: &Outcome, figure: &report::Figure) -> Vec<Estimate> {
    let others = 1..outcome.rows.len();
    others
        .map(|policy| report::change(outcome, figure, policy, 0))
        .collect()
}

fn text(outcome: &Outcome) -> String {
    let names: Vec<&str> = outcome.rows.iter().map(|(p, _)| p.name()).collect();
    let others: Vec<String> = names[1..].iter().map(|n| format!("{n}, %")).collect();
    let mut headings = vec![""];
    headings.extend(&names);
    headings.extend(others.iter().map(String::as_str));
    let mut table = Table::new(&headings);
    for figure in &FIGURES {
        let mut cells = vec![figure.0.to_string()];
        for (_, runs) in &outcome.rows {
            let mean = report::estimate(runs.iter().map(figure.1)).mean;
            cells.push(format!("{mean:.3}"));
        }
        let changes = changes(outcome, figure).into_iter();
        cells.extend(changes.map(|c| format!("{:+.2} ± {:.2}", c.mean, c.error)));
        table.row(cells);
    }
    let scale = &outcome.options.scale;
    let seeds = count(outcome.options.seeds.len(), "selection");
    let mut text = format!(
        "{} of {} jobs in {} s on {} nodes of type {NODE_TYPE} in leaves of {}, load {:.0} %\n\n{}",
        seeds,
        scale.jobs,
        scale.seconds,
        scale.nodes,
        outcome.options.leaf,
        100.0 * scale.load,
        table.render()
    );
    if let [first, _, ..] = names[..] {
        text += &format!(
            "\nIn %: against {first} on the same jobs, mean difference and its standard error.\n"
        );
    }
    text
}

fn json(args: &SimArgs, outcome: &Outcome) -> Value {
    let policies = outcome.rows.iter().enumerate().map(|(at, (policy, runs))| {
        let figures = FIGURES.iter().map(|figure| {
            let own = report::estimate(runs.iter().map(figure.1));
            let change = report::change(outcome, figure, at, 0);
            json!({
                "figure": figure.0,
                "more_is_better": figure.2,
                "mean": own.mean,
                "standard_error": own.error,
                "percent_against_first": change.mean,
                "percent_standard_error": change.error,
            })
        });
        json!({ "policy": policy.name(), "figures": figures.collect::<Vec<_>>() })
    });
    json!({
        "trace": args.trace().display().to_string(),
        "protocol": args.protocol.name(),
        "load_percent": args.load,
        "seeds": outcome.options.seeds,
        "policies": policies.collect::<Vec<_>>(),
    })
}
