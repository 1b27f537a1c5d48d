//! Where GPUs are: to each other, to CPUs and to memory.

use std::ffi::{c_uint, c_ulong};

use gpuos_model::cluster::Link;
use nvml::nvmlDevice_t;
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::session::answer;
use super::{Block, Out, Target, device_handle, gpu, node, nvml};
use crate::latency::Cost::{Cached, Driver};
use crate::model::Kind;

/// The PCIe path between two GPUs, whatever NVLinks there are.
fn ancestor(kind: &Kind, a: usize, b: usize) -> c_uint {
    let node_type = kind.node_type();
    match node_type.link(a, b) {
        Link::Same => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_INTERNAL,
        Link::Pix => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_SINGLE,
        Link::Pxb => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_MULTIPLE,
        Link::Phb => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE,
        Link::Node => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE,
        Link::Sys => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM,
        // The node type says nothing of PCIe then: an adapter that both reach through switches
        // only is behind the same switches.
        Link::Nv(_) => {
            let near = |gpu: usize, nic: &gpuos_model::cluster::Nic| {
                matches!(nic.links.get(gpu), Some(Link::Pix | Link::Pxb))
            };
            let shared = node_type
                .nics
                .iter()
                .any(|nic| near(a, nic) && near(b, nic));
            match (shared, node_type.numa[a] == node_type.numa[b]) {
                (true, _) => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_MULTIPLE,
                (_, true) => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE,
                _ => nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM,
            }
        }
    }
}

/// The CPUs near a GPU: cores of its NUMA node, and their second threads after all first ones.
fn near_cpus(kind: &Kind, gpu: usize) -> impl Fn(usize) -> bool + use<> {
    let node_type = kind.node_type();
    let per_node = usize::from(node_type.cores_per_socket);
    let cores = per_node * usize::from(node_type.sockets);
    let numa = usize::from(node_type.numa[gpu]);
    move |cpu| cpu < 2 * cores && cpu % cores / per_node == numa
}

const BITS: usize = c_ulong::BITS as usize;

/// Writes a set of numbers as a bitmap of `words` words.
fn bitmap(words: c_uint, out: &Block<c_ulong>, holds: impl Fn(usize) -> bool) -> Answer<()> {
    if words == 0 {
        return Err(code::INVALID);
    }
    for word in 0..words as usize {
        let bits = (0..BITS).filter(|bit| holds(word * BITS + bit));
        out.put(word, bits.fold(0, |set, bit| set | 1 << bit))?;
    }
    Ok(())
}

fn cpu_affinity(device: nvmlDevice_t, words: c_uint, out: &Block<c_ulong>) -> Answer<()> {
    let near = gpu(device, Cached, |view| Ok(near_cpus(view.kind, view.index)))?;
    bitmap(words, out, near)
}

nvml! {
    fn nvmlDeviceGetTopologyCommonAncestor(
        first: nvmlDevice_t,
        second: nvmlDevice_t,
        out: Out<c_uint>,
    ) {
        let other = gpu(second, Cached, |view| Ok(view.index))?;
        answer(first, &out, Driver, |view| Ok(ancestor(view.kind, view.index, other)))
    }
    fn nvmlDeviceGetTopologyNearestGpus(
        device: nvmlDevice_t,
        level: c_uint,
        count: Out<c_uint>,
        out: Block<nvmlDevice_t>,
    ) {
        let near = gpu(device, Driver, |view| {
            let all = (0..view.node.gpus().len()).filter(|&peer| peer != view.index);
            let at = all.filter(|&peer| ancestor(view.kind, view.index, peer) == level);
            Ok(at.map(|peer| device_handle(Target::Gpu(peer))).collect::<Vec<_>>())
        })?;
        fill(&count, &out, &near)
    }
    fn nvmlSystemGetTopologyGpuSet(
        cpu: c_uint,
        count: Out<c_uint>,
        out: Block<nvmlDevice_t>,
    ) {
        let near = node(Driver, |node| {
            let kind = node.model();
            let all = 0..node.gpus().len();
            let here = all.filter(|&gpu| near_cpus(kind, gpu)(cpu as usize));
            Ok(here.map(|gpu| device_handle(Target::Gpu(gpu))).collect::<Vec<_>>())
        })?;
        fill(&count, &out, &near)
    }
    fn nvmlDeviceGetP2PStatus(
        first: nvmlDevice_t,
        second: nvmlDevice_t,
        index: c_uint,
        out: Out<c_uint>,
    ) {
        const OK: c_uint = nvml::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK;
        const NO: c_uint = nvml::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED;
        if index >= nvml::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_UNKNOWN {
            return Err(code::INVALID);
        }
        let (other, divided) = gpu(second, Cached, |view| Ok((view.index, view.gpu.mig_on())))?;
        answer(first, &out, Driver, |view| {
            let link = view.kind.node_type().link(view.index, other);
            let nvlink = matches!(link, Link::Nv(_))
                && (0..view.kind.links() as c_uint)
                    .any(|number| super::nvlink::is_up(&view, number) == Ok(true));
            // A divided GPU has no P2P; over PCIe atomics do not pass.
            Ok(match index {
                _ if divided || view.gpu.mig_on() => NO,
                nvml::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK
                | nvml::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_ATOMICS => {
                    if nvlink { OK } else { NO }
                }
                _ => OK,
            })
        })
    }
    fn nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, words: c_uint, out: Block<c_ulong>) {
        cpu_affinity(device, words, &out)
    }
    fn nvmlDeviceGetCpuAffinityWithinScope(
        device: nvmlDevice_t,
        words: c_uint,
        out: Block<c_ulong>,
        _scope: c_uint,
    ) {
        // Node types have one NUMA node for each socket: both scopes are the same.
        cpu_affinity(device, words, &out)
    }
    fn nvmlDeviceGetMemoryAffinity(
        device: nvmlDevice_t,
        words: c_uint,
        out: Block<c_ulong>,
        _scope: c_uint,
    ) {
        let numa = gpu(device, Cached, |view| {
            Ok(usize::from(view.kind.node_type().numa[view.index]))
        })?;
        bitmap(words, &out, |node| node == numa)
    }
    fn nvmlDeviceGetNumaNodeId(device: nvmlDevice_t, _out: Out<c_uint>) {
        // For systems whose GPUs are NUMA nodes themselves.
        gpu(device, Cached, |_| Err(code::UNSUPPORTED))
    }
}

/// These lists take what fits; a null buffer asks for the number.
fn fill(count: &Out<c_uint>, out: &Block<nvmlDevice_t>, all: &[nvmlDevice_t]) -> Answer<()> {
    let room = count.get()? as usize;
    count.set(all.len() as c_uint)?;
    if !out.is_null() {
        for (index, handle) in all.iter().take(room).enumerate() {
            out.put(index, *handle)?;
        }
    }
    Ok(())
}
