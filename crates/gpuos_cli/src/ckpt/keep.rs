//! `gpuos ckpt verify` and `prune`: what is kept, held against its digests or removed.

use anyhow::{Error, Result};
use gpuos_core::job::JobId;
use gpuos_host::Machine;
use gpuos_model::screen::line;
use serde_json::{Value, json};

use super::find;
use super::mover::Told;
use super::now::spinner;
use super::show::rest;
use crate::cli::{CkptJobArgs, CkptPruneArgs};
use crate::reply::Reply;
use crate::table::count;

pub fn verify(machine: &dyn Machine, args: &CkptJobArgs) -> Result<Reply> {
    let mut found = find::find(machine, &args.reach, &args.job, find::For::Kept)?;
    let mut text = String::new();
    let mut well = found.missing.is_empty();
    for (mover, told) in &mut found.movers {
        let bar = spinner();
        let node = line(&told.node).into_owned();
        bar.set_message(format!("reading what {node} keeps of job {}", found.id));
        bar.tick();
        let answer = mover.verify(&found.id);
        bar.finish_and_clear();
        match answer {
            Ok(answer) => {
                let (said, holds) = verified(&answer);
                text += &said;
                well &= holds;
                *told = answer;
            }
            Err(e) => {
                well = false;
                found.missing.push(format!("{node}: {e:#}"));
            }
        }
    }
    text += rest(&found).trim_start_matches('\n');
    let told = found.told();
    Ok(Reply {
        schema: "gpuos.ckpt-verify/1",
        json: json!({ "job": found.id, "well": well, "told": told, "missing": found.missing }),
        text,
        yes: well,
    })
}

/// What a node said, and whether all of it holds.
fn verified(told: &Told) -> (String, bool) {
    let faults: Vec<&String> = told.jobs.iter().flat_map(|job| &job.faults).collect();
    let kept: usize = told.jobs.iter().map(|job| job.checkpoints.len()).sum();
    let kept = count(kept, "checkpoint");
    if faults.is_empty() {
        return (
            format!("{}: {kept} read, all of it holds\n", told.node),
            true,
        );
    }
    let lines = faults.iter().map(|fault| format!("  {}\n", line(fault)));
    let text = format!(
        "{}: {kept} read, {} found\n{}",
        told.node,
        count(faults.len(), "fault"),
        lines.collect::<String>()
    );
    (text, false)
}

pub fn prune(machine: &dyn Machine, args: &CkptPruneArgs) -> Result<Reply> {
    let mut found = match find::find(machine, &args.reach, &args.job, find::For::Kept) {
        Ok(found) => found,
        Err(nobody) if args.anew => return forget(machine, args, nobody),
        Err(nobody) => return Err(nobody),
    };
    let (mut text, mut nodes, mut first) = (String::new(), Vec::<Value>::new(), None);
    let mut failed = Vec::new();
    for (mover, told) in &found.movers {
        match mover.prune(&found.id, args.anew) {
            Ok(message) => {
                text += &format!("{}\n", line(&message));
                nodes.push(json!({ "node": told.node, "message": message }));
                first.get_or_insert(message);
            }
            Err(e) => failed.push((told.node.clone(), e)),
        }
    }
    // Of one node its own word is enough.
    if nodes.is_empty()
        && let [(_, _)] = &failed[..]
        && let Some((_, e)) = failed.pop()
    {
        return Err(e);
    }
    let refused = failed.iter().map(|(node, e)| format!("{node}: {e:#}"));
    found.missing.extend(refused);
    let yes = found.missing.is_empty();
    text += rest(&found).trim_start_matches('\n');
    Ok(Reply {
        schema: "gpuos.ckpt-prune/1",
        json: json!({
            "job": found.id,
            "message": first,
            "nodes": nodes,
            "missing": found.missing,
        }),
        text,
        yes,
    })
}

/// Of a job of which nobody keeps anything, any more: its record may still send it to look for that.
fn forget(machine: &dyn Machine, args: &CkptPruneArgs, nobody: Error) -> Result<Reply> {
    let Ok(id) = args.job.parse::<u32>().map(JobId::from) else {
        return Err(nobody);
    };
    for (_, mover) in find::meant(machine, &args.reach)? {
        if let Ok(message) = mover.prune(&id, true) {
            return Ok(Reply {
                schema: "gpuos.ckpt-prune/1",
                json: json!({ "job": id, "message": message, "nodes": [], "missing": [] }),
                text: format!("{}\n", line(&message)),
                yes: true,
            });
        }
    }
    Err(nobody)
}
