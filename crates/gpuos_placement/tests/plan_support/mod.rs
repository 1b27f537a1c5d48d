//! Node types, clusters and requests for the planner's tests.
#![allow(dead_code, reason = "each test uses its part")]

pub mod brute;
pub mod pass;

use std::sync::Arc;

use gpuos_model::cluster::{Cluster, Fabric, FabricLevel, Link, NO_DOMAIN, Nic, Node, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::frag::{Expected, Share};
use gpuos_placement::plan::{GpuShape, NodeState, Request, TopologyRequest};

/// A node type with a link for each pair of GPUs, on two sockets.
pub fn node_type(name: &str, gpus: usize, link: impl Fn(usize, usize) -> Link) -> NodeType {
    let mut links = vec![Link::Same; gpus * gpus];
    for a in 0..gpus {
        for b in 0..gpus {
            if a != b {
                links[a * gpus + b] = link(a.min(b), a.max(b));
            }
        }
    }
    NodeType {
        name: name.into(),
        gpu: name.into(),
        gres_type: String::new(),
        gpus,
        links,
        numa: (0..gpus).map(|g| (g * 2 / gpus.max(1)) as u16).collect(),
        nics: Vec::new(),
        nvlink_gbps: 20.0,
        pcie_gbps: 24.0,
        socket_gbps: 10.0,
        nvswitch: false,
        sockets: 2,
        cores_per_socket: 32,
        memory_mib: 1 << 20,
        gpu_memory_mib: 80 << 10,
        figures: Default::default(),
        source: "test".into(),
    }
}

/// A link by PCIe: the same socket or the other one.
fn by_socket(a: usize, b: usize) -> Link {
    if a / 4 == b / 4 {
        Link::Node
    } else {
        Link::Sys
    }
}

/// 8 GPUs behind NVSwitch, as in DGX A100 and H100.
pub fn nvswitch() -> NodeType {
    let mut nvswitch = node_type("nvswitch", 8, |_, _| Link::Nv(12));
    nvswitch.nvswitch = true;
    nvswitch.nics = (0..8)
        .map(|nic| Nic {
            name: format!("mlx5_{nic}"),
            numa: nic / 4,
            rail: nic,
            gbps: 25.0,
            links: (0..8)
                .map(|gpu| if gpu == nic { Link::Pix } else { Link::Sys })
                .collect(),
        })
        .collect();
    nvswitch
}

/// The hybrid cube mesh of DGX-1V, as `nvidia-smi topo -m` shows it.
pub fn cube_mesh() -> NodeType {
    const NV2: [(usize, usize); 8] = [
        (0, 3),
        (0, 4),
        (1, 2),
        (1, 5),
        (2, 3),
        (4, 7),
        (5, 6),
        (6, 7),
    ];
    const NV1: [(usize, usize); 8] = [
        (0, 1),
        (0, 2),
        (1, 3),
        (2, 6),
        (3, 7),
        (4, 5),
        (4, 6),
        (5, 7),
    ];
    node_type("cube-mesh", 8, |a, b| {
        if NV2.contains(&(a, b)) {
            Link::Nv(2)
        } else if NV1.contains(&(a, b)) {
            Link::Nv(1)
        } else {
            by_socket(a, b)
        }
    })
}

/// 8 GPUs in 4 NVLink pairs.
pub fn pairs() -> NodeType {
    node_type("pairs", 8, |a, b| {
        if a / 2 == b / 2 {
            Link::Nv(4)
        } else {
            by_socket(a, b)
        }
    })
}

/// 8 GPUs without NVLink on two sockets.
pub fn pcie() -> NodeType {
    node_type("pcie", 8, by_socket)
}

/// 8 GPUs without NVLink: pairs behind one PCIe switch, two switches behind each root.
pub fn switches() -> NodeType {
    node_type("switches", 8, |a, b| {
        if a / 2 == b / 2 {
            Link::Pix
        } else if a / 4 == b / 4 {
            Link::Pxb
        } else {
            Link::Sys
        }
    })
}

/// 8 GPUs in 2 quads with NVLink between all pairs.
pub fn quads() -> NodeType {
    node_type("quads", 8, |a, b| {
        if a / 4 == b / 4 {
            Link::Nv(4)
        } else {
            Link::Sys
        }
    })
}

/// No pattern: bridges in odd places and sockets that cross them.
pub fn irregular() -> NodeType {
    node_type("irregular", 8, |a, b| match (a * 7 + b * 3) % 6 {
        0 => Link::Nv(3),
        1 => Link::Nv(1),
        2 => Link::Pix,
        3 => Link::Phb,
        4 => Link::Node,
        _ => Link::Sys,
    })
}

/// Nodes `n0`, `n1`, … of the given types and a fabric of (name, domain of each node) levels.
pub fn cluster(types: &[Arc<NodeType>], levels: &[(&str, Vec<u32>)]) -> Cluster {
    let nodes = types.iter().enumerate().map(|(i, t)| Node {
        name: format!("n{i}"),
        node_type: Some(t.clone()),
    });
    let level = |(name, of): &(&str, Vec<u32>)| {
        let most = of.iter().filter(|&&d| d != NO_DOMAIN).max();
        FabricLevel {
            name: name.to_string(),
            domains: (0..most.map_or(0, |m| m + 1))
                .map(|d| format!("{name}{d}"))
                .collect(),
            domain_of: of.clone(),
            gbps: 0.0,
        }
    };
    Cluster {
        nodes: nodes.collect(),
        fabric: Fabric {
            levels: levels.iter().map(level).collect(),
        },
    }
}

/// `nodes` nodes of one type in leaves of `leaf` nodes and spines of `spine` leaves.
pub fn tree(node_type: NodeType, nodes: u32, leaf: u32, spine: u32) -> Cluster {
    let one = Arc::new(node_type);
    let types = vec![one; nodes as usize];
    let leaves = (0..nodes).map(|n| n / leaf).collect();
    let spines = (0..nodes).map(|n| n / leaf / spine).collect();
    cluster(&types, &[("leaf", leaves), ("spine", spines)])
}

/// All nodes idle.
pub fn idle(cluster: &Cluster) -> Vec<NodeState> {
    let state = |node: &Node| {
        let all = GpuSet::first(node.node_type.as_ref().map_or(0, |t| t.gpus));
        NodeState {
            candidate: true,
            present: all,
            free: all,
            free_cpus: u32::MAX,
            free_memory_mib: u64::MAX,
            affinity: 0,
            penalty: 0,
            until: 0,
        }
    };
    cluster.nodes.iter().map(state).collect()
}

/// A request for `nodes` nodes with this shape.
pub fn request(nodes: u32, gpus: GpuShape) -> Request {
    Request::new(nodes, nodes, gpus)
}

/// The request with a level that must or should be reached.
pub fn wish(mut request: Request, level: &str, required: bool) -> Request {
    request.topology = Some(TopologyRequest {
        level: level.into(),
        required,
    });
    request
}

/// A mix of jobs of many sizes, for nodes of 64 CPUs and 1 TiB.
pub fn mix(salt: u32, types: usize) -> Expected {
    let class = |nth: u32| {
        let odd = (salt ^ nth.wrapping_mul(0x9E37_79B9)).rotate_left(nth + 3) >> 4;
        let share = Share {
            gpus: (1 + odd % 8) as u8,
            cpus: odd >> 4 & 31,
            memory_gib: odd >> 9 & 255,
            types: u64::from(odd >> 17 & 3),
        };
        (share, 1 + (odd >> 20 & 63))
    };
    Expected {
        classes: (0..1 + salt % 12).map(class).collect(),
        nodes: vec![(64, 1 << 20); types],
    }
}
