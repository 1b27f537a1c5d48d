//! Choices as figures and tables, for `plan` and `why`.

use gpuos_model::cluster::{Cluster, Link, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::explain::level_reached;
use gpuos_placement::plan::{Choice, Unit, Wait};
use serde_json::{Value, json};

use crate::table::Table;

/// The kinds of link within a set of GPUs, widest first: `NV18`, `NV4+SYS`; `-` for one GPU.
pub fn links(node_type: Option<&NodeType>, gpus: GpuSet) -> String {
    let Some(t) = node_type else {
        return "?".into();
    };
    let members: Vec<usize> = gpus.iter().filter(|&gpu| gpu < t.gpus).collect();
    let mut found: Vec<Link> = Vec::new();
    for (nth, &a) in members.iter().enumerate() {
        for &b in &members[..nth] {
            let link = t.link(a, b);
            if !found.contains(&link) {
                found.push(link);
            }
        }
    }
    found.sort_by_key(|link| match link {
        Link::Same => (0, 0),
        Link::Nv(count) => (1, u8::MAX - count),
        Link::Pix => (2, 0),
        Link::Pxb => (3, 0),
        Link::Phb => (4, 0),
        Link::Node => (5, 0),
        Link::Sys => (6, 0),
    });
    if found.is_empty() {
        return "-".into();
    }
    found
        .iter()
        .map(Link::to_string)
        .collect::<Vec<_>>()
        .join("+")
}

/// The nodes of a choice with their GPUs and the links among these.
pub fn table(choice: &Choice, cluster: &Cluster) -> String {
    let mut table = Table::new(&["NODE", "TYPE", "GPUS", "INDICES", "LINKS"]);
    for chosen in &choice.nodes {
        let Some(node) = cluster.nodes.get(chosen.node as usize) else {
            continue;
        };
        let t = node.node_type.as_deref();
        let (count, indices) = match chosen.gpus.len() {
            0 => ("as Slurm picks".to_string(), "-".to_string()),
            n => (n.to_string(), chosen.gpus.to_string()),
        };
        table.row([
            node.name.clone(),
            t.map_or("-", |t| &t.name).to_string(),
            count,
            indices,
            links(t, chosen.gpus),
        ]);
    }
    table.render()
}

/// A choice as JSON.
pub fn choice_json(choice: &Choice, cluster: &Cluster) -> Value {
    let (level, domain) = level_reached(choice, cluster);
    let nodes: Vec<Value> = choice
        .nodes
        .iter()
        .filter_map(|chosen| {
            let node = cluster.nodes.get(chosen.node as usize)?;
            Some(json!({
                "node": node.name,
                "gpus": chosen.gpus.iter().collect::<Vec<_>>(),
                "links": links(node.node_type.as_deref(), chosen.gpus),
            }))
        })
        .collect();
    json!({
        "level": level,
        "domain": domain,
        "bus_gbps": choice.bus_gbps,
        "usability_lost_gpus": choice.usability_lost,
        "feasible_nodes": choice.feasible_nodes,
        "feasible_domains": choice.feasible_domains,
        "nodes": nodes,
    })
}

/// The reason of a wait as JSON.
pub fn wait_json(wait: &Wait) -> Value {
    match wait {
        Wait::Capacity {
            feasible_nodes,
            needed_nodes,
            free_gpus,
            needed_gpus,
        } => json!({
            "kind": "capacity",
            "feasible_nodes": feasible_nodes, "needed_nodes": needed_nodes,
            "free_gpus": free_gpus, "needed_gpus": needed_gpus,
        }),
        Wait::Level {
            level,
            best_domain,
            unit,
            have,
            need,
        } => json!({
            "kind": "level", "level": level, "best_domain": best_domain,
            "unit": match unit { Unit::Nodes => "nodes", Unit::Gpus => "gpus" },
            "have": have, "need": need,
        }),
        Wait::UnknownLevel { level, known } => {
            json!({ "kind": "unknown_level", "level": level, "known": known })
        }
        Wait::Never { why } => json!({ "kind": "never", "why": why.to_string() }),
    }
}
