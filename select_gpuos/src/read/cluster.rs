//! The cluster model: what Slurm knows of its nodes, joined with gpuos.toml and topology.conf.

use gpuos_config::gpuos_toml::Config;
use gpuos_model::cluster::{Cluster, Fabric};
use gpuos_model::node_types::NodeFacts;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::handles::Node;

use crate::abi::source::Source;
use crate::messages;
use crate::read::settings::Settings;

/// Builds the models of all nodes in Slurm's table, one for each topology and the cluster's own first; index = Slurm's index.
pub fn build(source: &Source<'_>, settings: &Settings) -> Result<Vec<Cluster>, String> {
    let facts = |index: usize| {
        let node = source.node(index)?;
        Some(facts_of(node, source.gpus(node)))
    };
    let facts = (0..source.nodes()).map(|index| facts(index).unwrap_or_default());
    let facts: Vec<NodeFacts> = facts.collect();
    let names: Vec<String> = facts.iter().map(|f| f.name.clone()).collect();
    let fabrics = fabrics(source, settings, &names);
    let all = |config: &Config| -> Result<Vec<Cluster>, _> {
        let clusters = (0..settings.views()).map(|view| config.cluster(&facts, fabrics.get(view)));
        clusters.collect()
    };
    all(&settings.config).or_else(|why| {
        // A rule that does not fit these nodes: the model from Slurm's own facts still steers rightly.
        let clusters = all(&Config::default()).map_err(|e| e.to_string())?;
        slurm_ffi::log::error(&messages::model_from_slurm(&why));
        Ok(clusters)
    })
}

/// The fabric of each topology, with nodes where their own records put them.
fn fabrics(source: &Source<'_>, settings: &Settings, names: &[String]) -> Vec<Fabric> {
    let Some(found) = &settings.topologies else {
        return Vec::new();
    };
    let nodes = (0..source.nodes()).filter_map(|index| source.node(index));
    if nodes.clone().all(|node| node.topology().is_empty()) {
        return found.fabrics(names);
    }
    let mut topologies = found.clone();
    topologies.move_nodes(nodes.map(|node| (node.name(), node.topology())));
    topologies.fabrics(names)
}

fn facts_of(node: Node<'_>, gpus: Option<NodeGres<'_>>) -> NodeFacts {
    let mut facts = NodeFacts {
        name: node.name().to_owned(),
        sockets: node.sockets(),
        cores_per_socket: node.cores_per_socket(),
        ..NodeFacts::default()
    };
    let Some(gpus) = gpus else { return facts };
    let Some(bits) = gpus.bits() else {
        return facts;
    };
    facts.gpus = bits.len();
    let entries = gpus.topologies();
    facts.gres_type = (0..entries)
        .find_map(|t| gpus.topology_type(t))
        .or_else(|| gpus.only_type())
        .unwrap_or_default()
        .to_owned();
    let len = gpus.link_len();
    if len == facts.gpus && len > 0 {
        let matrix: Option<Vec<i32>> = (0..len * len)
            .map(|i| gpus.links(i / len, i % len))
            .collect();
        // A matrix without a single link says that nothing was detected, not that nothing is linked.
        facts.links = matrix.filter(|m| m.iter().any(|links| *links > 0));
    }
    let cores = usize::from(node.cores_per_socket()).max(1);
    let mut sockets = vec![0; facts.gpus];
    let mut known = 0;
    for entry in 0..entries {
        let (Some(devices), Some(near)) = (gpus.topology_bits(entry), gpus.topology_cores(entry))
        else {
            continue;
        };
        let Some(core) = near.iter().next() else {
            continue;
        };
        for gpu in devices.iter().take_while(|gpu| *gpu < facts.gpus) {
            sockets[gpu] = (core / cores) as u16;
            known += 1;
        }
    }
    facts.gpu_sockets = (known == facts.gpus).then_some(sockets);
    facts
}
