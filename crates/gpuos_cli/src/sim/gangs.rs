//! Gangs on a site of 10,000 GPUs.

use anyhow::{Result, anyhow};
use clap::CommandFactory;
use clap::error::ErrorKind;
use gpuos_placement::plan::Placement;
use gpuos_sim::gangs::policy::PolicyKind;
use gpuos_sim::gangs::queue::Settings;
use gpuos_sim::gangs::site::SiteKind;
use gpuos_sim::gangs::workload::Scale;
use gpuos_sim::gangs::{self, Options, Outcome, philly, report};
use gpuos_sim::policy::Name;
use serde_json::json;

use crate::cli::{Cli, SimArgs};
use crate::reply::Reply;
use crate::table::{Table, count};

/// Days simulated when none are named.
const DAYS: u32 = 14;
/// The most GPUs that a scaled gang asks for.
const MOST_GPUS: u32 = 1024;
/// The links between leaves carry half of what the adapters could.
const TAPER: f32 = 2.0;

pub fn run(args: &SimArgs) -> Result<Reply> {
    let options = options(args)?;
    let jobs = super::read(args.trace(), philly::parse)?;
    let outcome = super::with_bar(options.policies.len() * options.seeds.len(), |begin| {
        gangs::run(&jobs, &options, |policy, seed| {
            begin(format!("{policy}, seed {seed}"));
        })
    });
    let outcome = outcome.map_err(|e| anyhow!("{}: {e}", args.trace().display()))?;
    let title = format!(
        "{} at {} % load, gangs x{}",
        options.site.name(),
        args.load,
        options.scale.gang_scale
    );
    super::write(
        args,
        &report::csv(&outcome),
        Some(&report::plot(&outcome, &title)),
    )?;
    let mut json = json!({ "trace": args.trace().display().to_string(), "protocol": "gangs" });
    if let (Some(all), serde_json::Value::Object(more)) =
        (json.as_object_mut(), report::json(&outcome))
    {
        all.extend(more);
    }
    Ok(Reply {
        schema: "gpuos.sim/1",
        json,
        text: text(&outcome),
        yes: true,
    })
}

fn options(args: &SimArgs) -> Result<Options> {
    let usage = |problem: String| Cli::command().error(ErrorKind::ArgumentConflict, problem);
    if args.nodes.is_some() {
        let problem = "--nodes names a node list, which --protocol gangs does not read; use --site \
                       and --site-nodes";
        return Err(usage(problem.into()).into());
    }
    let mut policies = Vec::new();
    for policy in &args.policy {
        match policy {
            Name::Gpuos => policies.push(PolicyKind::Gpuos),
            Name::BestFit => policies.push(PolicyKind::BestFit),
            Name::Stock => policies.extend([PolicyKind::Stock, PolicyKind::StockTree]),
            other => {
                let problem = format!(
                    "--protocol gangs compares gpuos, best-fit and stock; {other} places one job \
                     on one node only"
                );
                return Err(usage(problem).into());
            }
        }
    }
    let gangs = &args.gangs;
    let days = gangs.days.unwrap_or(DAYS);
    Ok(Options {
        site: gangs.site.unwrap_or(SiteKind::Rail8),
        nodes: gangs.site_nodes,
        taper: TAPER,
        scale: Scale {
            load: f64::from(args.load) / 100.0,
            days,
            warm_days: (days / 10).max(1),
            gang_scale: gangs.gang_scale.unwrap_or(1),
            most_gpus: MOST_GPUS,
            limit_factor: gangs.limits.unwrap_or(1),
            seed: 0,
        },
        queue: Settings::default(),
        placement: match gangs.backfill {
            true => Placement::Backfill,
            false => Placement::Default,
        },
        patience: i64::from(gangs.patience.unwrap_or(0)),
        policies,
        seeds: args.seeds.iter().collect(),
    })
}

fn text(outcome: &Outcome) -> String {
    let scale = &outcome.options.scale;
    // A row for each figure: there are more of them than policies.
    let (headings, rows) = report::table(outcome);
    let mut names = vec![""];
    names.extend(rows.iter().map(|row| row[0].as_str()));
    let mut table = Table::new(&names);
    for (figure, heading) in headings.iter().enumerate().skip(1) {
        let mut cells = vec![(*heading).to_string()];
        cells.extend(rows.iter().map(|row| row[figure].clone()));
        table.row(cells);
    }
    let mut text = format!(
        "{}: {} with {} GPUs, {} in {} days of {}, load {:.1} % (submitted {:.1} %), trace copied \
         {:.2} times, gangs x{}\n\n{}",
        outcome.options.site.name(),
        count(outcome.nodes as usize, "node"),
        outcome.gpus,
        count(outcome.jobs, "job"),
        scale.days,
        count(outcome.options.seeds.len(), "seed"),
        100.0 * scale.load,
        100.0 * outcome.load,
        outcome.copies,
        scale.gang_scale,
        table.render()
    );
    if let Some((span, gbps)) = report::gain(outcome) {
        let word = |percent: f64, more, less| match percent < 0.0 {
            true => format!("{:.1} % {less}", -percent),
            false => format!("{percent:.1} % {more}"),
        };
        text += &format!(
            "\ngpuos against the best of the others: mean leaf span {}, mean bandwidth {}.\n",
            word(span, "lower", "higher"),
            word(gbps, "higher", "lower")
        );
    }
    text
}
