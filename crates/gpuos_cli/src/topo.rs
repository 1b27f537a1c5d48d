//! `gpuos topo`: the fabric and what is free in it, or the links inside a node.
//!
//! [`slurm`] and [`pbs`] bring what a workload manager knows into the form that is shown here.

mod pbs;
mod slurm;

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use gpuos_host::Machine;
use gpuos_host::hardware::discover::described;
use gpuos_model::cluster::{Cluster, NO_DOMAIN};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::compress;
use gpuos_model::node_types;
use gpuos_workload::numbering::GpuNumbering;
use serde_json::{Value, json};

use crate::cli::{HardwareArgs, TopoArgs};
use crate::discover;
use crate::matrix;
use crate::reply::Reply;
use crate::table::{Table, count};

/// A cluster as its workload manager has it.
struct Site {
    /// Its name; `None`: nobody says.
    cluster_name: Option<String>,
    /// The workload manager.
    manager: &'static str,
    /// The manager's release.
    release: String,
    /// What the manager calls a machine.
    machine_word: &'static str,
    /// Node types and fabric; a node for each of `nodes`, by the same index.
    cluster: Cluster,
    /// Nodes.
    nodes: Vec<Node>,
    /// What is missed.
    notes: Vec<String>,
    /// Said where no fabric is known.
    no_fabric: &'static str,
    /// Said of a node without GPUs.
    no_gpus: &'static str,
}

/// A node, and how its GPUs are, by index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Node {
    name: String,
    gpus: usize,
    used: GpuSet,
    out: GpuSet,
    degraded: GpuSet,
    /// Free ones, if the node is up.
    free: GpuSet,
    is_up: bool,
    is_short_of_memory: bool,
    /// Its state in a word.
    state: String,
    /// What is said of its links in place of those of its type.
    links: Option<String>,
    /// What else is told of it alone: text and JSON.
    more: Option<(String, Value)>,
}

/// The answer. `pbs`: PBS is the workload manager.
pub fn run(
    machine: &dyn Machine,
    config: Option<&Path>,
    pbs: bool,
    args: &TopoArgs,
) -> Result<Reply> {
    if args.live {
        return live(machine, &args.hardware);
    }
    let site = || match pbs {
        true => pbs::site(machine, config),
        false => slurm::site(machine, config),
    };
    match (&args.node, &args.node_type) {
        (Some(name), _) => node(&site()?, name),
        (None, Some(name)) => node_type(machine, config, pbs, name),
        (None, None) => Ok(fabric(&site()?)),
    }
}

fn node(site: &Site, name: &str) -> Result<Reply> {
    let at = site
        .nodes
        .iter()
        .position(|node| node.name == name)
        .ok_or_else(|| {
            anyhow!(
                "no {} {name}: this cluster has {}",
                site.machine_word,
                names(site, 0..site.nodes.len())
            )
        })?;
    let Some(node_type) = &site.cluster.nodes[at].node_type else {
        bail!("{} {name} {}", site.machine_word, site.no_gpus);
    };
    let node = &site.nodes[at];
    let free = node.free;
    let kind = match &node_type.gpu[..] {
        "" => node_type.name.clone(),
        gpu => format!("{}, {gpu}", node_type.name),
    };
    let links = node.links.clone();
    let mut text = format!(
        "{name}: {kind}, {} of {} GPUs free ({free}), {}\n\n{}",
        free.len(),
        node_type.gpus,
        state(node),
        links.unwrap_or_else(|| matrix::text(node_type))
    );
    let mut json = json!({
        "node": name,
        "state": node.state,
        "out": node.out.iter().collect::<Vec<_>>(),
        "degraded": node.degraded.iter().collect::<Vec<_>>(),
        "short_of_memory": node.is_short_of_memory,
        "free": free.iter().collect::<Vec<_>>(),
        "type": matrix::json(node_type),
    });
    if let Some((told, vnodes)) = &node.more {
        text += &format!("\n{told}");
        json["vnodes"] = vnodes.clone();
    }
    Ok(Reply {
        schema: "gpuos.topo-node/1",
        json,
        text,
        yes: true,
    })
}

/// A node type needs no workload manager: gpuos.toml is read only where it is named, Slurm tells where it is, or it lies where it does with PBS.
fn node_type(machine: &dyn Machine, config: Option<&Path>, pbs: bool, name: &str) -> Result<Reply> {
    let known = match pbs {
        true => gpuos_host::pbs::config(machine, config)?,
        false => gpuos_host::slurm::site::config(machine, config)?,
    };
    let own = known.node_type(name);
    let found = own
        .map(|t| (*t).clone())
        .or_else(|| node_types::by_name(name));
    let Some(node_type) = found else {
        let known: Vec<String> = node_types::builtin().into_iter().map(|t| t.name).collect();
        bail!(
            "no node type {name}: gpuos has {}; others stand in gpuos.toml",
            known.join(", ")
        );
    };
    let text = format!(
        "{}: {}\n\n{}",
        node_type.name,
        node_type.gpu,
        matrix::text(&node_type)
    );
    let json = json!({ "node": null, "type": matrix::json(&node_type) });
    Ok(Reply {
        schema: "gpuos.topo-node/1",
        json,
        text,
        yes: true,
    })
}

/// The state of a node in a word, which of its GPUs are not as they should be, and whether it is short of host memory.
fn state(node: &Node) -> String {
    let mut text = node.state.clone();
    for (what, gpus) in [("out", node.out), ("degraded", node.degraded)] {
        if !gpus.is_empty() {
            text += &format!(", GPU {gpus} {what}");
        }
    }
    if node.is_short_of_memory {
        text += ", short of host memory";
    }
    text
}

/// The links of this machine, whatever Slurm and gpuos.toml say.
fn live(machine: &dyn Machine, args: &HardwareArgs) -> Result<Reply> {
    let (name, found) =
        discover::read_hardware(machine, args, &GpuNumbering::identity(), GpuSet::EMPTY)?;
    let node_type = described(&found)
        .ok_or_else(|| anyhow!("{name}: the driver's library shows no GPU that answers"))?;
    let mut text = format!(
        "{name}: {} x {}, driver {}\n\n{}",
        node_type.gpus,
        node_type.gpu,
        found.driver,
        matrix::text(&node_type)
    );
    for note in &found.notes {
        text += &format!("note: {note}\n");
    }
    Ok(Reply {
        schema: "gpuos.topo-node/1",
        json: json!({ "node": name, "type": matrix::json(&node_type) }),
        text,
        yes: true,
    })
}

/// Free GPUs that a job could get: those of nodes that are up.
fn free(site: &Site, at: usize) -> GpuSet {
    let node = &site.nodes[at];
    match node.is_up {
        true => node.free,
        false => GpuSet::EMPTY,
    }
}

fn names(site: &Site, nodes: impl IntoIterator<Item = usize>) -> String {
    compress(nodes.into_iter().map(|at| site.nodes[at].name.as_str()))
}

fn fabric(site: &Site) -> Reply {
    let all: Vec<usize> = (0..site.nodes.len()).collect();
    let mut table = Table::new(&[
        "FABRIC",
        "TYPE",
        "NODES",
        "GPUS",
        "FREE",
        "FREE INDICES",
        "STATE",
    ]);
    branch(site, site.cluster.fabric.levels.len(), &all, 0, &mut table);
    let sum = |f: &dyn Fn(usize) -> usize| all.iter().map(|&at| f(at)).sum::<usize>();
    let total = sum(&|at| site.nodes[at].gpus);
    let free_gpus = sum(&|at| free(site, at).len());
    let down = all.iter().filter(|&&at| !site.nodes[at].is_up).count();
    let mut text = format!(
        "Cluster {}, {} {}: {}, {}, {free_gpus} free{}\n\n{}",
        site.cluster_name.as_deref().unwrap_or("?"),
        site.manager,
        site.release,
        count(all.len(), site.machine_word),
        count(total, "GPU"),
        if down > 0 {
            format!(", {} out of service", count(down, site.machine_word))
        } else {
            String::new()
        },
        table.render()
    );
    if site.cluster.fabric.levels.is_empty() {
        text += &format!("\nNo fabric is known: {}.\n", site.no_fabric);
    }
    for note in &site.notes {
        text += &format!("\nnote: {note}\n");
    }
    let json = fabric_json(site, &all, total, free_gpus);
    Reply {
        schema: "gpuos.topo/1",
        json,
        text,
        yes: true,
    }
}

/// Adds the domains below level `level` that hold `nodes`, then their nodes.
fn branch(site: &Site, level: usize, nodes: &[usize], depth: usize, table: &mut Table) {
    let Some(below) = level.checked_sub(1) else {
        return leaves(site, nodes, depth, table);
    };
    let fabric = &site.cluster.fabric.levels[below];
    let domain = |at: usize| fabric.domain_of.get(at).copied().unwrap_or(NO_DOMAIN);
    let mut rest = nodes;
    // Domains in the order in which their first nodes stand, nodes in none at the end.
    let mut seen: Vec<u32> = Vec::new();
    for &at in rest {
        if domain(at) != NO_DOMAIN && !seen.contains(&domain(at)) {
            seen.push(domain(at));
        }
    }
    for id in seen {
        let inside: Vec<usize> = nodes
            .iter()
            .copied()
            .filter(|&at| domain(at) == id)
            .collect();
        let gpus: usize = inside.iter().map(|&at| site.nodes[at].gpus).sum();
        let free: usize = inside.iter().map(|&at| free(site, at).len()).sum();
        let name = fabric.domains.get(id as usize).map_or("?", String::as_str);
        table.row([
            format!("{}{} {name}", "  ".repeat(depth), fabric.name),
            String::new(),
            inside.len().to_string(),
            gpus.to_string(),
            free.to_string(),
            String::new(),
            String::new(),
        ]);
        branch(site, below, &inside, depth + 1, table);
    }
    let outside: Vec<usize> = rest
        .iter()
        .copied()
        .filter(|&at| domain(at) == NO_DOMAIN)
        .collect();
    rest = &outside;
    if !rest.is_empty() {
        branch(site, below, rest, depth, table);
    }
}

/// Adds nodes; neighbours that look alike share one line.
fn leaves(site: &Site, nodes: &[usize], depth: usize, table: &mut Table) {
    let look = |at: usize| {
        let node_type = site.cluster.nodes[at]
            .node_type
            .as_ref()
            .map(|t| t.name.clone());
        (
            node_type,
            site.nodes[at].gpus,
            free(site, at),
            state(&site.nodes[at]),
        )
    };
    let mut start = 0;
    while start < nodes.len() {
        let this = look(nodes[start]);
        let alike = nodes[start..]
            .iter()
            .take_while(|&&at| look(at) == this)
            .count();
        let group = &nodes[start..start + alike];
        let (node_type, gpus, free, state) = this;
        let each = if alike > 1 && gpus > 0 { " each" } else { "" };
        table.row([
            format!(
                "{}{}",
                "  ".repeat(depth),
                names(site, group.iter().copied())
            ),
            node_type.unwrap_or_else(|| "-".into()),
            alike.to_string(),
            (gpus * alike).to_string(),
            (free.len() * alike).to_string(),
            format!("{free}{each}"),
            state,
        ]);
        start += alike;
    }
}

fn fabric_json(site: &Site, all: &[usize], total: usize, free_gpus: usize) -> Value {
    let fabric = &site.cluster.fabric;
    let levels: Vec<Value> = fabric
        .levels
        .iter()
        .map(|level| {
            let domains: Vec<Value> = (0..)
                .zip(&level.domains)
                .map(|(id, name)| {
                    let inside = all
                        .iter()
                        .filter(|&&at| level.domain_of.get(at) == Some(&id));
                    let inside: Vec<&str> =
                        inside.map(|&at| site.nodes[at].name.as_str()).collect();
                    json!({ "name": name, "nodes": inside })
                })
                .collect();
            json!({ "name": level.name, "gbps": level.gbps, "domains": domains })
        })
        .collect();
    let nodes: Vec<Value> = all
        .iter()
        .map(|&at| {
            let node = &site.nodes[at];
            let node_type = site.cluster.nodes[at].node_type.as_deref();
            json!({
                "name": node.name,
                "type": node_type.map(|t| &t.name),
                "gres_type": node_type.map(|t| &t.gres_type),
                "gpus": node.gpus,
                "used": node.used.iter().collect::<Vec<_>>(),
                "out": node.out.iter().collect::<Vec<_>>(),
                "degraded": node.degraded.iter().collect::<Vec<_>>(),
                "short_of_memory": node.is_short_of_memory,
                "free": free(site, at).iter().collect::<Vec<_>>(),
                "up": node.is_up,
                "state": node.state,
            })
        })
        .collect();
    json!({
        "cluster": site.cluster_name,
        "release": site.release,
        "gpus": total,
        "free_gpus": free_gpus,
        "levels": levels,
        "nodes": nodes,
        "notes": site.notes,
    })
}
