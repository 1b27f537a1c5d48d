//! Node types by name, with a sentence for an unknown one.

use gpuos_config::gpuos_toml::Config;
use gpuos_model::cluster::NodeType;
use gpuos_model::node_types;

use crate::error::LabError;
use crate::spec::LabSpec;

/// Sockets, cores per socket and memory of the nodes without GPUs.
const CPU_NODE: (u16, u16, u64) = (2, 8, 65_536);

/// The node type of this name: `cpu`, one of the lab's gpuos.toml, or a shipped one.
pub(crate) fn find(spec: &LabSpec, name: &str) -> Result<NodeType, LabError> {
    if name == "cpu" {
        return Ok(cpu());
    }
    // A broken gpuos.toml may be what the lab is for: then only shipped types are known.
    let own = spec.gpuos_toml.as_deref();
    let own = own.and_then(|text| Config::parse(text, "gpuos.toml").ok());
    if let Some(found) = own.and_then(|config| config.node_type(name)) {
        return Ok((*found).clone());
    }
    node_types::by_name(name).ok_or_else(|| {
        let known: Vec<String> = node_types::builtin().into_iter().map(|t| t.name).collect();
        LabError::Spec(format!(
            "node type {name:?}: give {}, cpu, or one of the lab's gpuos.toml",
            known.join(", ")
        ))
    })
}

/// The node type of each node with a slurmd, and of the cloud nodes if there are any.
pub(crate) fn all(spec: &LabSpec) -> Result<Vec<NodeType>, LabError> {
    let mut names = vec![&spec.node_type];
    names.extend(spec.more_nodes.iter().map(|group| &group.node_type));
    names.into_iter().map(|name| find(spec, name)).collect()
}

fn cpu() -> NodeType {
    let (sockets, cores_per_socket, memory_mib) = CPU_NODE;
    NodeType {
        name: "cpu".to_string(),
        gpu: String::new(),
        gres_type: String::new(),
        gpus: 0,
        links: Vec::new(),
        numa: Vec::new(),
        nics: Vec::new(),
        nvlink_gbps: 0.0,
        pcie_gbps: 0.0,
        socket_gbps: 0.0,
        nvswitch: false,
        sockets,
        cores_per_socket,
        memory_mib,
        gpu_memory_mib: 0,
        figures: Default::default(),
        source: "made up for labs".to_string(),
    }
}
