//! `gpuos ckpt report`: how long restarts from checkpoints took, part by part, what work was lost, and what drills came to.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use gpuos_core::wire::CheckpointRecovery;
use gpuos_host::Machine;
use gpuos_model::hostlist::compress;
use gpuos_model::screen::line;
use serde_json::{Value, json};

use super::find;
use super::mover::NoMover;
use super::words::{self, NONE, span, span_ms};
use crate::cli::CkptReportArgs;
use crate::reply::Reply;
use crate::table::{Table, count, utc};

/// The parts of a recovery, in their order.
const PARTS: [&str; 4] = ["detection", "requeue", "rebuild", "load"];

pub fn run(machine: &dyn Machine, args: &CkptReportArgs) -> Result<Reply> {
    let since = words::clock().saturating_sub(args.since);
    let (mut told, mut missing, mut asked) = (Vec::new(), Vec::new(), Vec::new());
    for (node, mover) in find::meant(machine, &args.reach)? {
        match mover.report(since, args.job.as_ref()) {
            Ok((node, all)) => {
                told.extend(all);
                asked.push(node);
            }
            Err(e) if asked.is_empty() && node.is_none() => {
                let hint = match e.is::<NoMover>() {
                    true => "; from a machine without one, --node NODE asks a node",
                    false => "",
                };
                bail!("{e:#}{hint}");
            }
            Err(e) => missing.push(format!("{}: {e:#}", node.unwrap_or_default())),
        }
    }
    if asked.is_empty() {
        match missing.first() {
            Some(why) => bail!("{why}"),
            None => bail!("there is no node of a lab here: `gpuos lab up` starts one"),
        }
    }
    told.sort_by_key(|one| one.time);
    let (drills, restarts): (Vec<_>, Vec<_>) = told.iter().partition(|one| one.drill.is_some());
    let users = words::users(machine, told.iter().map(|one| one.uid));
    let user = |one: &CheckpointRecovery| {
        let name = users.get(&one.uid).cloned();
        name.unwrap_or_else(|| one.uid.to_string())
    };
    let nodes = compress(asked.iter().map(String::as_str));
    let mut text = match restarts.is_empty() {
        true => format!(
            "no job that {nodes} led went on from a checkpoint in the last {}\n",
            span(args.since)
        ),
        false => table(&restarts, user) + &summary(&restarts),
    };
    if !drills.is_empty() {
        text += &format!("\n{}", drilled(&drills, user));
    }
    for missing in &missing {
        text += &format!("not asked: {}\n", line(missing));
    }
    let figures: BTreeMap<&str, Value> = figures(&restarts)
        .into_iter()
        .map(|(name, of)| (name, of.json()))
        .collect();
    Ok(Reply {
        schema: "gpuos.ckpt-report/1",
        json: json!({
            "since_s": args.since,
            "asked": asked,
            "missing": missing,
            "recoveries": told,
            "figures": figures,
        }),
        text,
        yes: true,
    })
}

fn table(restarts: &[&CheckpointRecovery], user: impl Fn(&CheckpointRecovery) -> String) -> String {
    let mut table = Table::new(&[
        "WHEN",
        "JOB",
        "USER",
        "FROM",
        "NODES",
        "DETECTION",
        "REQUEUE",
        "REBUILD",
        "LOAD",
        "TOTAL",
        "LOST WORK",
    ]);
    let ms = |ms: Option<u64>| ms.map_or_else(|| NONE.into(), span_ms);
    for one in restarts {
        let [detection, requeue, rebuild, load] = one.parts();
        table.row([
            utc(one.time),
            one.job.to_string(),
            user(one),
            one.number.map_or_else(|| NONE.into(), |n| n.to_string()),
            one.nodes.to_string(),
            ms(detection),
            ms(requeue),
            ms(rebuild),
            ms(load),
            span_ms(one.total_ms()),
            one.lost_s.map_or_else(|| NONE.into(), span),
        ]);
    }
    table.render()
}

/// Figures of one part: how many are known, the median, the 95th percentile and the largest.
struct Figures {
    count: usize,
    median: u64,
    p95: u64,
    most: u64,
}

impl Figures {
    fn of(mut all: Vec<u64>) -> Option<Figures> {
        all.sort_unstable();
        // The smallest that so many percent do not exceed.
        let at = |percent: usize| {
            all.get((all.len() * percent).div_ceil(100).saturating_sub(1))
                .copied()
        };
        Some(Figures {
            count: all.len(),
            median: at(50)?,
            p95: at(95)?,
            most: *all.last()?,
        })
    }

    fn json(&self) -> Value {
        json!({ "count": self.count, "median": self.median, "p95": self.p95, "most": self.most })
    }
}

/// By name: milliseconds of the parts and of all, and seconds of lost work.
fn figures(restarts: &[&CheckpointRecovery]) -> Vec<(&'static str, Figures)> {
    let mut all: Vec<(&str, Vec<u64>)> = PARTS.iter().map(|name| (*name, Vec::new())).collect();
    for one in restarts {
        for ((_, known), part) in all.iter_mut().zip(one.parts()) {
            known.extend(part);
        }
    }
    all.push(("total", restarts.iter().map(|one| one.total_ms()).collect()));
    all.push((
        "lost_s",
        restarts.iter().filter_map(|one| one.lost_s).collect(),
    ));
    let all = all.into_iter();
    all.filter_map(|(name, known)| Some((name, Figures::of(known)?)))
        .collect()
}

fn summary(restarts: &[&CheckpointRecovery]) -> String {
    let mut text = format!(
        "\n{}: median, 95th percentile, largest\n",
        count(restarts.len(), "restart")
    );
    for (name, of) in figures(restarts) {
        let say = |value: u64| match name {
            "lost_s" => span(value),
            _ => span_ms(value),
        };
        let name = if name == "lost_s" { "lost work" } else { name };
        text += &format!(
            "  {name:<10} {}, {}, {}\n",
            say(of.median),
            say(of.p95),
            say(of.most)
        );
    }
    text
}

fn drilled(drills: &[&CheckpointRecovery], user: impl Fn(&CheckpointRecovery) -> String) -> String {
    let mut table = Table::new(&[
        "DRILL", "OF JOB", "USER", "NUMBER", "LOST", "TOOK", "OUTCOME",
    ]);
    for one in drills {
        let outcome = match one.failed.is_empty() {
            true => "restored".into(),
            false => line(&one.failed).into_owned(),
        };
        table.row([
            utc(one.time),
            one.job.to_string(),
            user(one),
            one.number.map_or_else(|| NONE.into(), |n| n.to_string()),
            one.lose.to_string(),
            match one.failed.is_empty() {
                true => span_ms(one.total_ms()),
                false => NONE.into(),
            },
            outcome,
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let of = Figures::of((1..=20).rev().collect()).unwrap();
        assert_eq!((of.count, of.median, of.p95, of.most), (20, 10, 19, 20));
        let one = Figures::of(vec![7]).unwrap();
        assert_eq!((one.median, one.p95, one.most), (7, 7, 7));
        assert!(Figures::of(Vec::new()).is_none());
    }
}
