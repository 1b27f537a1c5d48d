//! Hosts of PBS for `gpuos health`: what their vnodes tell of GPUs.

use anyhow::{Result, bail};
use gpuos_host::Machine;
use gpuos_host::pbs::Pbs;
use serde_json::json;

use super::{Listed, list};
use crate::table::Table;

/// Hosts, by PBS's vnodes and what gpuosd shows there; without a name those with something to tell.
///
/// # Errors
/// PBS does not answer, or has no such host.
pub fn nodes(machine: &dyn Machine, wanted: Option<&str>) -> Result<Listed> {
    let site = Pbs::find(machine)?.site(machine, None)?;
    let all = &site.nodes.hosts;
    if let Some(name) = wanted
        && !all.iter().any(|host| host.name == name)
    {
        bail!("PBS has no host {name}: `pbsnodes -a` lists them");
    }
    let is_meant = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    let mut table = Table::new(&["NODE", "STATE", "GPUS", "OUT", "DEGRADED", "WHY"]);
    let (mut rows, mut yes) = (Vec::new(), true);
    for host in all.iter().filter(|host| is_meant(&host.name)) {
        let vnodes = || site.nodes.vnodes_of(host).map(|(_, vnode)| vnode);
        let broken = vnodes().find(|vnode| !vnode.works);
        let well = broken.is_none() && host.out.is_empty();
        if wanted.is_none() && (well || host.gpus == 0) {
            continue;
        }
        yes &= well;
        let state = broken.or_else(|| vnodes().next());
        let state = state.map_or("", |vnode| &vnode.state);
        let comments = vnodes().map(|vnode| &vnode.comment[..]);
        let why = comments.into_iter().find(|comment| !comment.is_empty());
        let why = match (why, well) {
            (Some(why), _) => why.to_owned(),
            (None, true) => String::new(),
            (None, false) => format!("ask on {}: gpuos health", host.name),
        };
        let out: Vec<usize> = host.out.iter().collect();
        table.row([
            host.name.clone(),
            state.to_owned(),
            host.gpus.to_string(),
            list(&out),
            // Which GPUs get jobs last only gpuosd of the host knows.
            String::new(),
            why.clone(),
        ]);
        rows.push(json!({
            "node": host.name,
            "state": state,
            "gpus": host.gpus,
            "out": out,
            "degraded": [],
            "why": why,
        }));
    }
    let meant = all
        .iter()
        .filter(|host| host.gpus > 0 && is_meant(&host.name));
    Ok(Listed {
        records: "PBS's vnodes",
        table,
        rows,
        yes,
        meant: meant.map(|host| host.name.clone()).collect(),
    })
}
