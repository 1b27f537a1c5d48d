//! The figures as a table, as CSV and as JSON.

use serde_json::{Value, json};

use super::Outcome;
use super::metrics::{Metrics, quantile};
use super::policy::PolicyKind;
use crate::plot::{Line, Titles, svg};

/// One column of the table: its heading, its name in CSV and JSON, digits, and the figure.
type Column = (&'static str, &'static str, usize, fn(&Metrics) -> f64);

const HOUR: f64 = 3600.0;

fn share(part: usize, metrics: &Metrics) -> f64 {
    100.0 * part as f64 / metrics.leaf_span.len().max(1) as f64
}

/// The columns, in the order of table and CSV.
const COLUMNS: [Column; 17] = [
    ("gangs", "gangs", 0, |m| m.leaf_span.len() as f64),
    ("leaf span", "mean_leaf_span", 3, |m| m.leaf_span.mean()),
    ("by GPU time", "weighted_leaf_span", 3, |m| {
        m.weighted_span / m.weighted_gbps.1.max(1.0)
    }),
    ("least", "least_leaf_span", 3, |m| m.least_span.mean()),
    ("domain span", "mean_domain_span", 3, |m| {
        m.domain_span.mean()
    }),
    ("1 domain %", "one_domain_percent", 1, |m| {
        share(m.in_one_domain, m)
    }),
    ("1 leaf %", "one_leaf_percent", 1, |m| {
        share(m.in_one_leaf, m)
    }),
    ("1 rail %", "one_rail_percent", 1, |m| {
        share(m.on_one_rail, m)
    }),
    ("GB/s", "mean_bus_gbps", 2, |m| m.bus_gbps.mean()),
    ("by GPU time", "weighted_bus_gbps", 2, |m| {
        m.weighted_gbps.0 / m.weighted_gbps.1.max(1.0)
    }),
    ("rings GB/s", "mean_ring_gbps", 2, |m| m.ring_gbps.mean()),
    ("wait p50 h", "wait_p50_hours", 3, |m| {
        quantile(&m.wait.sorted(), 0.5) / HOUR
    }),
    ("p95 h", "wait_p95_hours", 3, |m| {
        quantile(&m.wait.sorted(), 0.95) / HOUR
    }),
    ("gangs p50 h", "gang_wait_p50_hours", 3, |m| {
        quantile(&m.gang_wait.sorted(), 0.5) / HOUR
    }),
    ("p95 h", "gang_wait_p95_hours", 3, |m| {
        quantile(&m.gang_wait.sorted(), 0.95) / HOUR
    }),
    ("makespan d", "makespan_days", 2, |m| {
        m.makespan as f64 / 86_400.0
    }),
    ("alloc %", "allocation_percent", 2, |m| {
        100.0 * m.held / m.capacity.max(1.0)
    }),
];

/// The headings of the table and a row for each policy.
pub fn table(outcome: &Outcome) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let mut headings = vec!["policy"];
    headings.extend(COLUMNS.iter().map(|column| column.0));
    let rows = outcome.rows.iter().map(|(kind, metrics)| {
        let mut row = vec![kind.name().to_string()];
        row.extend(
            COLUMNS
                .iter()
                .map(|(_, _, digits, of)| format!("{:.*}", *digits, of(metrics))),
        );
        row
    });
    (headings, rows.collect())
}

/// The same as CSV, with the names of the JSON's fields.
pub fn csv(outcome: &Outcome) -> String {
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.1).collect();
    let mut text = format!("policy,jobs,{}\n", names.join(","));
    for (kind, metrics) in &outcome.rows {
        let cells: Vec<String> = COLUMNS
            .iter()
            .map(|(_, _, digits, of)| format!("{:.*}", *digits, of(metrics)))
            .collect();
        text += &format!("{},{},{}\n", kind.name(), metrics.jobs, cells.join(","));
    }
    text
}

/// gpuos against the best of the others, figure by figure: how much lower its mean leaf span is and how much
/// higher its mean bandwidth, in percent of the other's; `None` unless gpuos and another ran.
pub fn gain(outcome: &Outcome) -> Option<(f64, f64)> {
    let of = |kind| {
        let found = outcome.rows.iter().find(|(known, _)| *known == kind);
        found.map(|(_, metrics)| metrics)
    };
    let ours = of(PolicyKind::Gpuos)?;
    let others = || {
        outcome
            .rows
            .iter()
            .filter(|(kind, _)| *kind != PolicyKind::Gpuos)
    };
    let span = others().map(|(_, m)| m.leaf_span.mean()).reduce(f64::min)?;
    let gbps = others().map(|(_, m)| m.bus_gbps.mean()).reduce(f64::max)?;
    Some((
        100.0 * (1.0 - ours.leaf_span.mean() / span.max(f64::MIN_POSITIVE)),
        100.0 * (ours.bus_gbps.mean() / gbps.max(f64::MIN_POSITIVE) - 1.0),
    ))
}

/// The whole outcome as JSON, with the gangs by size.
pub fn json(outcome: &Outcome) -> Value {
    let scale = &outcome.options.scale;
    let round =
        |value: f64, digits: usize| format!("{value:.digits$}").parse::<f64>().unwrap_or(value);
    let policies: Vec<Value> = outcome
        .rows
        .iter()
        .map(|(kind, metrics)| {
            let mut row = serde_json::Map::new();
            row.insert("policy".into(), kind.name().into());
            row.insert("jobs".into(), metrics.jobs.into());
            for (_, name, digits, of) in &COLUMNS {
                row.insert((*name).into(), round(of(metrics), *digits).into());
            }
            let sizes: Vec<Value> = metrics
                .sizes
                .iter()
                .map(|(gpus, size)| {
                    let gangs = size.gangs as f64;
                    json!({
                        "gpus": gpus,
                        "gangs": size.gangs,
                        "mean_leaf_span": round(size.leaf_span as f64 / gangs, 3),
                        "least_leaf_span": size.least_span,
                        "mean_bus_gbps": round(size.bus_gbps / gangs, 2),
                        "wait_p50_hours": round(quantile(&size.wait.sorted(), 0.5) / HOUR, 3),
                    })
                })
                .collect();
            row.insert("sizes".into(), sizes.into());
            Value::Object(row)
        })
        .collect();
    let gain = gain(outcome);
    json!({
        "jobs": outcome.jobs,
        "nodes": outcome.nodes,
        "gpus": outcome.gpus,
        "site": outcome.options.site.name(),
        "load_percent": round(100.0 * scale.load, 4),
        "submitted_load_percent": round(100.0 * outcome.load, 2),
        "copies": round(outcome.copies, 3),
        "running_at_start": outcome.running_at_start,
        "left_out": outcome.left_out,
        "days": scale.days,
        "warm_days": scale.warm_days,
        "gang_scale": scale.gang_scale,
        "patience_seconds": outcome.options.patience,
        "seeds": outcome.options.seeds,
        "policies": policies,
        "leaf_span_lower_percent": gain.map(|gain| round(gain.0, 2)),
        "bandwidth_higher_percent": gain.map(|gain| round(gain.1, 2)),
    })
}

/// A plot of the gangs' leaf spans: the share of the gangs that lie in so many leaves at most.
pub fn plot(outcome: &Outcome, title: &str) -> String {
    let lines: Vec<Line> = outcome
        .rows
        .iter()
        .map(|(kind, metrics)| {
            let spans = metrics.leaf_span.sorted();
            let most = spans.last().map_or(1, |&most| most as usize);
            let share = |span: usize| {
                let upto = spans.partition_point(|&value| value <= span as f64);
                (span as f64, 100.0 * upto as f64 / spans.len().max(1) as f64)
            };
            Line {
                name: kind.name().into(),
                points: (1..=most).map(share).collect(),
            }
        })
        .collect();
    let titles = Titles {
        title,
        x: "leaf span, leaves",
        y: "gangs in at most so many leaves, %",
    };
    svg(titles, &lines)
}
