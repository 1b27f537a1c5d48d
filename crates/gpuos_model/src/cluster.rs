//! The typed model of a cluster: node types, nodes and the fabric between them.
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::figures::Figures;

/// How two GPUs of one node reach each other, in the terms of `nvidia-smi topo -m`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Link {
    /// The GPU itself (`X`).
    Same,
    /// A bonded set of that many NVLinks (`NV#`), direct or through NVSwitch.
    Nv(u8),
    /// At most one PCIe bridge (`PIX`).
    Pix,
    /// Several PCIe bridges, not the host bridge (`PXB`).
    Pxb,
    /// The PCIe host bridge of one NUMA node (`PHB`).
    Phb,
    /// PCIe and the interconnect between host bridges of a NUMA node (`NODE`).
    Node,
    /// PCIe and the interconnect between NUMA nodes (`SYS`).
    Sys,
}

/// Writes the link as `nvidia-smi topo -m` does: `X`, `NV18`, `PIX`, …
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Link::Nv(count) => return f.pad(&format!("NV{count}")),
            Link::Same => "X",
            Link::Pix => "PIX",
            Link::Pxb => "PXB",
            Link::Phb => "PHB",
            Link::Node => "NODE",
            Link::Sys => "SYS",
        };
        f.pad(word)
    }
}

/// Reads what [`Link`] displays as, in any case; 1 to 64 NVLinks. The error says nothing:
/// callers know where the word stood.
impl FromStr for Link {
    type Err = ();

    fn from_str(word: &str) -> Result<Link, ()> {
        let word = word.to_ascii_uppercase();
        let fixed = [
            Link::Same,
            Link::Pix,
            Link::Pxb,
            Link::Phb,
            Link::Node,
            Link::Sys,
        ];
        if let Some(link) = fixed.into_iter().find(|link| link.to_string() == word) {
            return Ok(link);
        }
        let digits = word
            .strip_prefix("NV")
            .filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
        let count = digits
            .and_then(|d| d.parse().ok())
            .filter(|n| (1..=64).contains(n));
        count.map(Link::Nv).ok_or(())
    }
}

/// A network adapter of a node, and the GPUs nearest to it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Nic {
    /// Device name, for example `mlx5_0`.
    pub name: String,
    /// NUMA node that it hangs on.
    pub numa: u16,
    /// Rail, that is the index of its leaf switch on rail-optimised fabrics.
    pub rail: u16,
    /// Bandwidth per direction in GB/s.
    pub gbps: f32,
    /// Link to each GPU, by GPU index.
    pub links: Vec<Link>,
}

impl Nic {
    /// How far the adapter is from a GPU, in the order of `nvidia-smi topo -m`; last where no link is known.
    fn distance(&self, gpu: usize) -> u8 {
        match self.links.get(gpu) {
            Some(Link::Same | Link::Nv(_)) => 0,
            Some(Link::Pix) => 1,
            Some(Link::Pxb) => 2,
            Some(Link::Phb) => 3,
            Some(Link::Node) => 4,
            Some(Link::Sys) => 5,
            None => 6,
        }
    }
}

/// What all nodes of one kind have in common.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeType {
    /// Name in gpuos.toml, for example `dgx-h100`.
    pub name: String,
    /// GPU model as a person writes it, for example `NVIDIA H100 SXM5 80GB`.
    pub gpu: String,
    /// GRES type in slurm.conf, for example `h100`; empty when it has none.
    pub gres_type: String,
    /// Number of GPUs; at most [`crate::gpuset::MAX_GPUS`].
    pub gpus: usize,
    /// Link between GPUs `i` and `j`: `links[i * gpus + j]`, symmetric, diagonal [`Link::Same`].
    pub links: Vec<Link>,
    /// NUMA node of each GPU.
    pub numa: Vec<u16>,
    /// Network adapters.
    pub nics: Vec<Nic>,
    /// Bandwidth of one NVLink per direction in GB/s as NCCL models it (0 without NVLink).
    pub nvlink_gbps: f32,
    /// Bandwidth of a PCIe x16 link per direction in GB/s as NCCL models it.
    pub pcie_gbps: f32,
    /// Bandwidth between sockets per direction in GB/s.
    pub socket_gbps: f32,
    /// Whether the NVLinks go through NVSwitch (all pairs at full rate at once).
    pub nvswitch: bool,
    /// CPU sockets, and cores on each.
    pub sockets: u16,
    /// CPU cores per socket.
    pub cores_per_socket: u16,
    /// Host memory in MiB.
    pub memory_mib: u64,
    /// Memory of one GPU in MiB.
    pub gpu_memory_mib: u64,
    /// What one GPU can do and takes, for the cost model.
    pub figures: Figures,
    /// Where the figures come from.
    pub source: String,
}

impl NodeType {
    /// Link between two GPUs. Panics on indices past [`NodeType::gpus`].
    pub fn link(&self, a: usize, b: usize) -> Link {
        self.links[a * self.gpus + b]
    }

    /// Whether no adapter of the node is nearer to the GPU than `nic` is.
    pub fn is_nearest(&self, nic: &Nic, gpu: usize) -> bool {
        let mine = nic.distance(gpu);
        self.nics.iter().all(|other| mine <= other.distance(gpu))
    }
}

/// One node of the cluster.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// Node name as Slurm knows it.
    pub name: String,
    /// Its type. Nodes without GPUs, or of no known type, have `None`: plans avoid them.
    pub node_type: Option<Arc<NodeType>>,
}

/// A domain id that says: this node is in no domain of that level.
pub const NO_DOMAIN: u32 = u32::MAX;

/// One level of the fabric above the node, for example all leaf switches.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FabricLevel {
    /// Name of the level, lower case: `nvlink`, `leaf`, `spine`, `core`, `block`, …
    pub name: String,
    /// Names of its domains (switches), by domain id.
    pub domains: Vec<String>,
    /// Domain of each node, by node index, or [`NO_DOMAIN`].
    pub domain_of: Vec<u32>,
    /// Bandwidth per direction in GB/s that one GPU can expect between nodes of one domain
    /// of this level; 0 = unknown (the NIC's rate counts).
    pub gbps: f32,
}

/// The fabric between the nodes: levels from the narrowest to the widest. Domains of a level
/// lie inside domains of the next one. Nodes in no common domain reach each other at the
/// level `any`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Fabric {
    /// From the narrowest (an NVLink domain across nodes, then leaf switches) to the widest.
    pub levels: Vec<FabricLevel>,
}

/// A cluster as the planner sees it. Index of a node = its index in Slurm's node table.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cluster {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The fabric between them; may have no level at all.
    pub fabric: Fabric,
}
