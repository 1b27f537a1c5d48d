//! The bandwidth model: what one link, and one GPU towards the network, can carry.
//!
//! All comparisons are made in whole hundredths of GB/s, so that equal places compare equal on
//! every machine.
use gpuos_model::cluster::{Link, NodeType};
use gpuos_model::gpuset::GpuSet;

/// Units per GB/s.
pub const UNITS_PER_GBPS: f32 = 100.0;

/// Rate of one NVLink when the node type does not say: NCCL's figure for A100.
const NVLINK_GBPS: f32 = 20.0;
/// Rate of PCIe x16 when the node type does not say: NCCL's figure for Gen3.
const PCIE_GBPS: f32 = 12.0;
/// Rate between sockets when the node type does not say: NCCL's lowest figure.
const SOCKET_GBPS: f32 = 6.0;

/// Bandwidth between two GPUs of a node, per direction, in hundredths of GB/s.
///
/// `NV#` carries that many NVLinks; PIX the PCIe rate, PXB 95 %, PHB 90 % and NODE 85 % of it;
/// SYS the socket link's rate, at most 80 % of PCIe. The steps below PIX are not measured: they
/// only keep the order that `nvidia-smi topo -m` means. A rate of 0 in the node type takes the
/// lowest figure of NCCL for that kind of link.
pub fn pair_units(node_type: &NodeType, a: usize, b: usize) -> u32 {
    let known = |rate: f32, fallback: f32| if rate > 0.0 { rate } else { fallback };
    let pcie = known(node_type.pcie_gbps, PCIE_GBPS);
    let socket = known(node_type.socket_gbps, SOCKET_GBPS).min(0.8 * pcie);
    let gbps = match node_type.link(a, b) {
        Link::Same => return 0,
        Link::Nv(0) => socket,
        Link::Nv(links) => f32::from(links) * known(node_type.nvlink_gbps, NVLINK_GBPS),
        Link::Pix => pcie,
        Link::Pxb => 0.95 * pcie,
        Link::Phb => 0.90 * pcie,
        Link::Node => 0.85 * pcie,
        Link::Sys => socket,
    };
    // A link of 10 TB/s is past every machine; the bound keeps sums of all pairs in 32 bits.
    (gbps * UNITS_PER_GBPS).round().clamp(1.0, 1_000_000.0) as u32
}

/// Whether two GPUs of a node are joined by NVLink, direct or through NVSwitch.
pub fn nvlinked(node_type: &NodeType, a: usize, b: usize) -> bool {
    matches!(node_type.link(a, b), Link::Nv(n) if n > 0)
}

/// Bandwidth towards the network per GPU of `set`, in hundredths of GB/s: the adapters that are
/// nearest to any of its GPUs, shared by all of them. 0 when the node type names no adapter.
pub fn nic_units(node_type: &NodeType, set: GpuSet) -> u32 {
    if set.is_empty() {
        return 0;
    }
    let mut sum = 0.0;
    for nic in &node_type.nics {
        if set.iter().any(|gpu| node_type.is_nearest(nic, gpu)) {
            sum += nic.gbps.max(0.0);
        }
    }
    (sum * UNITS_PER_GBPS / set.len() as f32).clamp(0.0, 1_000_000.0) as u32
}

/// The largest sets with NVLink between all pairs, at most 64 of them, ascending. A GPU without
/// NVLink is in none.
pub fn islands(nvlink: &[u64], all: GpuSet) -> Vec<GpuSet> {
    fn grow(near: &[u64], set: u64, mut open: u64, mut done: u64, found: &mut Vec<GpuSet>) {
        if open == 0 && done == 0 && set.count_ones() > 1 {
            found.push(GpuSet(set));
        }
        // Members linked to all that is open are tried together with it: skip its neighbours.
        let pivot = (open | done).trailing_zeros() as usize;
        let mut tries = if open | done == 0 {
            0
        } else {
            open & !near[pivot]
        };
        while tries != 0 && found.len() < 64 {
            let gpu = tries.trailing_zeros() as usize;
            tries &= tries - 1;
            grow(
                near,
                set | 1 << gpu,
                open & near[gpu],
                done & near[gpu],
                found,
            );
            open &= !(1 << gpu);
            done |= 1 << gpu;
        }
    }
    let mut found = Vec::new();
    grow(nvlink, 0, all.0, 0, &mut found);
    found.sort_unstable();
    found
}
