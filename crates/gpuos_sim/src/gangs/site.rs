//! The clusters that the gangs are placed on.

use std::sync::Arc;

use gpuos_model::cluster::{Cluster, Fabric, FabricLevel, Node};
use gpuos_model::node_types::by_name;

/// Bandwidth towards the network of one GPU, GB/s: one NDR adapter, as NCCL counts it.
const NIC_GBPS: f32 = 50.0;
/// NVLink of the fifth generation between trays, GB/s for one GPU, as NCCL counts it.
const NVL72_GBPS: f32 = 722.0;

/// Which cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SiteKind {
    /// 1,302 nodes of 8 GPUs (`dgx-h100`), 8 rails, leaves (scalable units) of 32 nodes.
    Rail8,
    /// 145 racks of 18 trays with 4 GPUs (`gb200-nvl72`), each rack one NVLink domain, leaves of
    /// 8 racks: 10,440 GPUs.
    Nvl72,
}

impl SiteKind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            SiteKind::Rail8 => "rail8",
            SiteKind::Nvl72 => "nvl72",
        }
    }

    /// The cluster of that name.
    pub fn by_name(name: &str) -> Option<SiteKind> {
        let all = [SiteKind::Rail8, SiteKind::Nvl72];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// A cluster and what its parts are called.
#[derive(Clone, Debug)]
pub struct Site {
    /// Which one.
    pub kind: SiteKind,
    /// The cluster as the planner sees it.
    pub cluster: Cluster,
    /// Ratio of the taper between leaves.
    pub taper: f32,
    /// Jobs of so many GPUs and more count as whole nodes when gangs are scaled: 8, the node of
    /// the trace, on every site, so that all sites run the same jobs.
    pub reference_node_gpus: u32,
}

impl Site {
    /// Makes a site with a number of nodes, `None` = its full size.
    ///
    /// The links between leaves are tapered 2 to 1: a GPU can expect half its adapter's rate
    /// there. `taper` is that ratio.
    pub fn new(kind: SiteKind, nodes: Option<u32>, taper: f32) -> Site {
        // By level: its name, nodes in a domain, GB/s.
        let wide = ("core", u32::MAX, NIC_GBPS / taper);
        let (node_type, size, levels) = match kind {
            SiteKind::Rail8 => ("dgx-h100", 1302, vec![("leaf", 32, NIC_GBPS), wide]),
            SiteKind::Nvl72 => (
                "gb200-nvl72",
                145 * 18,
                vec![("nvlink", 18, NVL72_GBPS), ("leaf", 8 * 18, NIC_GBPS), wide],
            ),
        };
        let size = nodes.unwrap_or(size).max(1);
        let node_type = by_name(node_type).map(Arc::new);
        let levels = levels.into_iter().map(|(name, width, gbps)| FabricLevel {
            name: name.into(),
            domains: (0..size.div_ceil(width))
                .map(|d| format!("{name}{d}"))
                .collect(),
            domain_of: (0..size).map(|node| node / width).collect(),
            gbps,
        });
        Site {
            kind,
            taper,
            cluster: Cluster {
                nodes: (0..size)
                    .map(|node| Node {
                        name: format!("n{node}"),
                        node_type: node_type.clone(),
                    })
                    .collect(),
                fabric: Fabric {
                    levels: levels.collect(),
                },
            },
            reference_node_gpus: 8,
        }
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.cluster.nodes.len() as u32
    }

    /// GPUs of each node.
    pub fn node_gpus(&self) -> u32 {
        let first = self.cluster.nodes.first();
        let node_type = first.and_then(|node| node.node_type.as_ref());
        node_type.map_or(1, |node_type| node_type.gpus as u32)
    }

    /// GPUs in all.
    pub fn gpus(&self) -> u32 {
        self.nodes() * self.node_gpus()
    }

    /// Index of a level by name.
    pub fn level(&self, name: &str) -> Option<usize> {
        let levels = &self.cluster.fabric.levels;
        levels.iter().position(|level| level.name == name)
    }
}
