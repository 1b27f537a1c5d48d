//! A cluster of PBS for `gpuos topo`: hosts by their vnodes.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use gpuos_host::Machine;
use gpuos_host::pbs::Pbs;
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_pbs::hook::resources::{LEAF, NUMA, NVLINK, UUID};
use gpuos_pbs::state::Site as PbsSite;
use gpuos_pbs::state::nodes::{Host, Vnode};
use serde_json::json;

use super::{Node, Site};
use crate::pbs_planner::keep::Keeper;
use crate::table::Table;

/// What a node type that was made of a node's facts says of where they are from: with Slurm these files.
const OF_FILES: &str = "slurm.conf and gres.conf";

/// By pbs_server's vnodes and gpuos.toml, as the planner has them.
pub fn site(machine: &dyn Machine, config: Option<&Path>) -> Result<Site> {
    let mut site = Pbs::find(machine)?.site(machine, config)?;
    // What is reserved for a job that is next is the planner's to give.
    Keeper::find(machine)?.own(machine, &mut site);
    for node in &mut site.cluster.nodes {
        if let Some(own) = node.node_type.as_mut().filter(|t| t.source == OF_FILES) {
            Arc::make_mut(own).source = "PBS's vnodes (ngpus, gpuos_nvlink, gpuos_numa)".into();
        }
    }
    let hosts = site.nodes.hosts.iter();
    let nodes = hosts.map(|host| node(&site, host)).collect();
    Ok(Site {
        cluster_name: Some(site.server.name).filter(|name| !name.is_empty()),
        manager: "PBS",
        release: site.server.release,
        machine_word: "host",
        cluster: site.cluster,
        nodes,
        notes: site.notes,
        no_fabric: "describe leaf switches of hosts with `gpuos pbs install --hosts`, or the fabric in gpuos.toml ([fabric])",
        no_gpus: "has no vnode with GPUs (ngpus in resources_available)",
    })
}

/// The GPUs of a vnode, by their index on the host.
fn gpus(vnode: &Vnode) -> GpuSet {
    let last = vnode.first_gpu.saturating_add(vnode.gpus.all as usize);
    (vnode.first_gpu..last.min(MAX_GPUS)).fold(GpuSet::EMPTY, GpuSet::with)
}

fn node(site: &PbsSite, host: &Host) -> Node {
    let mut node = Node {
        name: host.name.clone(),
        gpus: host.gpus,
        is_up: host.up,
        state: state(site, host),
        ..Node::default()
    };
    let add = |set: GpuSet, more: GpuSet| GpuSet(set.0 | more.0);
    for (_, vnode) in site.nodes.vnodes_of(host).filter(|(_, v)| v.gpus.all > 0) {
        let (all, free) = vnode.gpu_sets("");
        node.used = add(node.used, all.minus(free));
        if vnode.out {
            node.out = add(node.out, all);
        }
        if vnode.up && host.up && !vnode.is_in_parts() {
            node.free = add(node.free, free);
        }
    }
    node.more = (host.gpus > 0).then(|| vnodes(site, host));
    node
}

/// The state of the host's own vnode; where it has none, of the others, each once.
fn state(site: &PbsSite, host: &Host) -> String {
    let vnodes = || site.nodes.vnodes_of(host).map(|(_, vnode)| vnode);
    if let Some(own) = vnodes().find(|vnode| vnode.name == host.name) {
        return own.state.clone();
    }
    let mut states: Vec<&str> = vnodes().map(|vnode| &vnode.state[..]).collect();
    states.sort_unstable();
    states.dedup();
    states.join("+")
}

/// The vnodes with GPUs, as a table and as JSON.
fn vnodes(site: &PbsSite, host: &Host) -> (String, serde_json::Value) {
    let mut table = Table::new(&[
        "VNODE", "GPU", "STATE", "JOBS", "LEAF", "NVLINK", "NUMA", "UUID",
    ]);
    let mut rows = Vec::new();
    // A GPU that is divided is a vnode too, which gives away slices.
    let shown = |vnode: &Vnode| vnode.gpus.all > 0 || vnode.resource(UUID).is_some();
    for (_, vnode) in site.nodes.vnodes_of(host).filter(|(_, v)| shown(v)) {
        let of = |name| vnode.resource(name).unwrap_or_default().to_owned();
        let own = gpus(vnode);
        table.row([
            vnode.name.clone(),
            own.to_string(),
            vnode.state.clone(),
            vnode.jobs.join(","),
            of(LEAF),
            of(NVLINK),
            of(NUMA),
            of(UUID),
        ]);
        rows.push(json!({
            "vnode": vnode.name,
            "gpus": own.iter().collect::<Vec<_>>(),
            "state": vnode.state,
            "sharing": vnode.sharing,
            "jobs": vnode.jobs,
            "comment": vnode.comment,
            "leaf": of(LEAF),
            "nvlink": of(NVLINK),
            "numa": of(NUMA),
            "uuid": of(UUID),
        }));
    }
    (table.render(), rows.into())
}
