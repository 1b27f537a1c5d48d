//! Which jobs of PBS make checkpoints, and on which hosts they may lie, by pbs_server: for who reaches no gpuos_mover, as on a login node.

use anyhow::Error;
use gpuos_core::job::JobId;
use gpuos_host::Machine;
use gpuos_host::pbs::Pbs;
use gpuos_model::hostlist::{compress, expand};
use gpuos_model::screen;
use gpuos_pbs::hook::resources::{CHECKPOINT, HOSTS};
use gpuos_pbs::state::Job;
use serde_json::{Value, json};

use super::words::NONE;
use crate::reply::Reply;
use crate::table::Table;

/// A line for each job that makes checkpoints; `None`: there is none, or pbs_server does not answer. `why`: no gpuos_mover could be asked.
pub fn list(machine: &dyn Machine, only: Option<&JobId>, why: &Error) -> Option<Reply> {
    let site = Pbs::find(machine).ok()?.site(machine, None).ok()?;
    let makes = |job: &&Job| {
        let says = [CHECKPOINT, HOSTS]
            .iter()
            .any(|name| job.resource(name).is_some());
        says && only.is_none_or(|only| job.id.parse() == Ok(only.clone()))
    };
    let jobs: Vec<&Job> = site.jobs.iter().filter(makes).collect();
    if jobs.is_empty() {
        return None;
    }
    let why = format!("{why:#}");
    let mut table = Table::new(&["JOB", "USER", "STATE", "NODES", "CHECKPOINTS"]);
    let mut rows: Vec<Value> = Vec::new();
    for job in jobs {
        let nodes: Vec<&str> = match job.has_vnodes() {
            true => job.hosts.iter().map(String::as_str).collect(),
            false => Vec::new(),
        };
        let former = expand(job.resource(HOSTS).unwrap_or_default()).unwrap_or_default();
        table.row([
            job.id.clone(),
            job.user.clone(),
            job.state.clone(),
            match nodes.is_empty() {
                true => NONE.into(),
                false => compress(nodes.iter().copied()),
            },
            match former.is_empty() {
                true => "it has run nowhere before".into(),
                false => format!("may lie on {}", compress(former.iter().map(String::as_str))),
            },
        ]);
        rows.push(json!({
            "job": job.id,
            "user": job.user,
            "nodes": nodes,
            "former_nodes": former,
            "state": job.state,
        }));
    }
    let text = format!(
        "{}By pbs_server's records; what is kept is shown by `gpuos ckpt show JOBID`.\ngpuos_mover was not asked: {}\n",
        table.render(),
        screen::line(&why)
    );
    Some(Reply {
        schema: "gpuos.ckpt-list/1",
        json: json!({ "jobs": [], "told": [], "missing": [why], "recorded": rows }),
        text,
        yes: true,
    })
}
