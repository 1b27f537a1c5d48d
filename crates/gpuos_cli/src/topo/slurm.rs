//! A cluster of Slurm for `gpuos topo`.

use std::path::Path;

use anyhow::Result;
use gpuos_host::Machine;
use gpuos_host::slurm::NodeRecord;
use gpuos_host::slurm::site::Site as SlurmSite;

use super::{Node, Site};

/// By slurmctld's records and gpuos.toml.
pub fn site(machine: &dyn Machine, config: Option<&Path>) -> Result<Site> {
    let site = SlurmSite::read(machine, config)?;
    Ok(Site {
        cluster_name: site.running.get("ClusterName").map(str::to_owned),
        manager: "Slurm",
        release: site.running.release().to_string(),
        machine_word: "node",
        nodes: site.nodes.iter().map(node).collect(),
        cluster: site.cluster,
        notes: site.notes,
        no_fabric: "describe it in gpuos.toml ([fabric]) or in Slurm's topology.conf",
        no_gpus: "has no GPU that Slurm knows of (Gres= in slurm.conf)",
    })
}

fn node(record: &NodeRecord) -> Node {
    Node {
        name: record.name.clone(),
        gpus: record.gpu_count(),
        used: record.gpus_used,
        out: record.gpus_out(),
        degraded: record.gpus_degraded(),
        free: record.gpus_free(None),
        is_up: record.is_up(),
        is_short_of_memory: record.is_short(),
        state: record.state_text(),
        ..Node::default()
    }
}
