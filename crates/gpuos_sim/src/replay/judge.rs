//! The cluster of a replay, and the model by which places on it are judged.

use std::sync::Arc;

use gpuos_model::cluster::{Cluster, Fabric, FabricLevel, Node, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{GpuShape, NodeChoice, NodeState, Planner, Request};

/// What the links between leaves give of the rate inside one: a taper of 2 to 1.
const TAPER: f32 = 2.0;

/// Nodes `c1`, `c2`, … of one type, so many in a leaf, all under one spine.
pub fn cluster(nodes: usize, leaf: usize, node_type: &NodeType) -> Cluster {
    let adapter = node_type
        .nics
        .iter()
        .map(|nic| nic.gbps)
        .fold(0.0, f32::max);
    let node_type = Some(Arc::new(node_type.clone()));
    let level = |name: &str, width: usize, gbps: f32| FabricLevel {
        name: name.into(),
        domains: (0..nodes.div_ceil(width))
            .map(|at| format!("{name}{at}"))
            .collect(),
        domain_of: (0..nodes).map(|node| (node / width) as u32).collect(),
        gbps,
    };
    Cluster {
        nodes: (1..=nodes)
            .map(|node| Node {
                name: format!("c{node}"),
                node_type: node_type.clone(),
            })
            .collect(),
        fabric: Fabric {
            levels: vec![
                level("leaf", leaf, adapter),
                level("spine", nodes, adapter / TAPER),
            ],
        },
    }
}

/// The model by which places are judged; the same for both peers.
pub struct Judge {
    planner: Planner,
    state: Vec<NodeState>,
    leaf: usize,
    gpus: usize,
}

impl Judge {
    /// For nodes `c1`, `c2`, … of one type in leaves.
    pub fn new(nodes: usize, leaf: usize, node_type: &NodeType) -> Judge {
        let gpus = node_type.gpus;
        let state = NodeState {
            present: GpuSet::first(gpus),
            free_cpus: u32::MAX,
            free_memory_mib: u64::MAX,
            ..NodeState::default()
        };
        Judge {
            planner: Planner::new(cluster(nodes, leaf, node_type)),
            state: vec![state; nodes],
            leaf,
            gpus,
        }
    }

    /// The bandwidth of a ring over the GPUs of a job on `count` nodes with `per_node` of each, in GB/s:
    /// what the planner's model says of them when nothing else is free.
    pub fn ring_gbps(&mut self, count: u32, per_node: u32, nodes: &[NodeChoice]) -> f64 {
        for at in nodes {
            let state = &mut self.state[at.node as usize];
            (state.candidate, state.free) = (true, at.gpus);
        }
        let request = Request::new(count, count, GpuShape::PerNode(per_node));
        let choice = self.planner.plan(&self.state, &request, 0);
        for at in nodes {
            let state = &mut self.state[at.node as usize];
            (state.candidate, state.free) = (false, GpuSet::EMPTY);
        }
        choice.map_or(0.0, |choice| f64::from(choice.bus_gbps))
    }

    /// Number of leaves that the nodes lie in; nodes ascending.
    pub fn span(&self, nodes: &[NodeChoice]) -> usize {
        let mut leaves: Vec<usize> = nodes.iter().map(|n| n.node as usize / self.leaf).collect();
        leaves.dedup();
        leaves.len()
    }

    /// GPUs of the cluster.
    pub fn gpus(&self) -> u32 {
        (self.state.len() * self.gpus) as u32
    }
}
