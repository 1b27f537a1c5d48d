//! A cluster of PBS for `gpuos topo`: hosts by their vnodes.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use gpuos_host::Machine;
use gpuos_host::pbs::Pbs;
use gpuos_pbs::hook::resources::{LEAF, NVLINK};
use gpuos_pbs::published::Group;
use gpuos_pbs::state::Site as PbsSite;
use gpuos_pbs::state::nodes::Host;
use serde_json::json;

use super::{Node, Site};
use crate::pbs_planner::keep::Keeper;
use crate::table::Table;

/// What a node type that was made of a node's facts says of where they are from: with Slurm these files.
const OF_FILES: &str = "slurm.conf and gres.conf";

/// By pbs_server's vnodes, what gpuosd shows there, and gpuos.toml, as the planner has them.
pub fn site(machine: &dyn Machine, config: Option<&Path>) -> Result<Site> {
    let mut site = Pbs::find(machine)?.site(machine, config)?;
    // What is reserved for a job that is next is the planner's to give.
    Keeper::find(machine)?.own(machine, &mut site);
    for node in &mut site.cluster.nodes {
        if let Some(own) = node.node_type.as_mut().filter(|t| t.source == OF_FILES) {
            let own = Arc::make_mut(own);
            own.source = "PBS's vnodes (ngpus, gpuos_host, gpuos_nvlink)".into();
            // Nobody has said how fast links are.
            (own.nvlink_gbps, own.pcie_gbps, own.socket_gbps) = (0.0, 0.0, 0.0);
        }
    }
    let hosts = site.nodes.hosts.iter();
    let nodes = hosts.zip(&site.cluster.nodes).map(|(host, known)| {
        let stated = known.node_type.as_ref();
        let is_stated = stated.is_some_and(|t| site.config.states(&host.name, t));
        Node {
            links: (!is_stated).then(|| links(&site, host)),
            ..node(&site, host)
        }
    });
    let nodes = nodes.collect();
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

fn node(site: &PbsSite, host: &Host) -> Node {
    Node {
        name: host.name.clone(),
        gpus: host.gpus,
        used: host.present.minus(host.free),
        out: host.out,
        free: site.nodes.open(host),
        is_up: host.up,
        state: state(site, host),
        more: (host.gpus > 0).then(|| vnodes(site, host)),
        ..Node::default()
    }
}

/// What is known of a host's links where gpuos.toml does not describe it: sets of GPUs, without any figure.
fn links(site: &PbsSite, host: &Host) -> String {
    let sets = |what: &str, groups: &[Group]| {
        let set = |group: &Group| format!("{what} {}: GPU {}\n", group.name, group.gpus);
        groups.iter().map(set).collect::<String>()
    };
    let mut text = match &host.shown {
        Some(shown) => sets("NVLink", &shown.links) + &sets("NUMA node", &shown.numa),
        None => String::new(),
    };
    let vnodes = site.nodes.vnodes_of(host).map(|(_, vnode)| vnode);
    let together = vnodes.filter_map(|vnode| vnode.resource(NVLINK)).next();
    if let (false, Some(set)) = (text.contains("NVLink"), together) {
        text += &format!("NVLink {set}: all GPUs\n");
    }
    match &text[..] {
        "" => "What links its GPUs is not known: gpuosd shows nothing of it here (gpuos_host), and gpuos.toml names no type of it.\n".into(),
        _ => text,
    }
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

/// The vnodes, as a table and as JSON.
fn vnodes(site: &PbsSite, host: &Host) -> (String, serde_json::Value) {
    let mut table = Table::new(&[
        "VNODE", "GPUS", "USED", "CPUS", "USED", "STATE", "JOBS", "LEAF",
    ]);
    let mut rows = Vec::new();
    for (_, vnode) in site.nodes.vnodes_of(host) {
        let of = |name| vnode.resource(name).unwrap_or_default().to_owned();
        table.row([
            vnode.name.clone(),
            vnode.gpus.all.to_string(),
            vnode.gpus.used.to_string(),
            vnode.cpus.all.to_string(),
            vnode.cpus.used.to_string(),
            vnode.state.clone(),
            vnode.jobs.join(","),
            of(LEAF),
        ]);
        rows.push(json!({
            "vnode": vnode.name,
            "ngpus": vnode.gpus.all,
            "ngpus_assigned": vnode.gpus.used,
            "ngpus_of_site": vnode.site_gpus,
            "ncpus": vnode.cpus.all,
            "ncpus_assigned": vnode.cpus.used,
            "state": vnode.state,
            "sharing": vnode.sharing,
            "jobs": vnode.jobs,
            "comment": vnode.comment,
            "leaf": of(LEAF),
            "nvlink": of(NVLINK),
        }));
    }
    (table.render(), rows.into())
}
