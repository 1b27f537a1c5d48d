//! From what was found to a node type.

use gpuos_model::cluster::{Link, Nic, NodeType};
use gpuos_model::node_types::builtin;

use super::sysfs::{Adapter, between};
use super::{NodeHardware, differences};

/// The shipped type that describes the node wholly.
pub fn shipped(found: &NodeType) -> Option<NodeType> {
    builtin()
        .into_iter()
        .find(|known| known.gpu == found.gpu && differences(known, found).is_empty())
}

/// The shipped type whose GPUs these are: with as many of them, if there is one.
pub(super) fn like(name: &str, gpus: usize) -> Option<NodeType> {
    let same: Vec<NodeType> = builtin()
        .into_iter()
        .filter(|known| known.gpu == name)
        .collect();
    let counted = same.iter().find(|known| known.gpus == gpus);
    counted.or(same.first()).cloned()
}

/// The node type that the hardware amounts to. What no part of it tells (rates, figures of the cost
/// model) is that of the shipped type with the same GPUs. `None` without GPUs.
pub fn described(found: &NodeHardware) -> Option<NodeType> {
    let first = found.gpus.first()?;
    let who = &first.identity;
    let gpus = found.gpus.len();
    let like = like(&who.name, gpus);
    let same = like.as_ref().filter(|like| like.gpus == gpus);
    let numa: Vec<u16> = found.gpus.iter().map(|gpu| gpu.numa()).collect();
    let known = found.cpus.sockets > 0;
    let sockets = match (known, &like) {
        (true, _) => found.cpus.sockets,
        (false, Some(like)) => like.sockets,
        (false, None) => numa.iter().max().map_or(1, |numa| numa + 1),
    };
    let gres_type = gres_type_of(&who.name, like.as_ref());
    let linked = found.links.iter().any(|link| matches!(link, Link::Nv(_)));
    let rate = like
        .as_ref()
        .map(|like| like.nvlink_gbps)
        .filter(|&rate| rate > 0.0);
    let nics = nics(found, &numa);
    Some(NodeType {
        name: format!("{gres_type}-x{gpus}"),
        gpu: who.name.clone(),
        gres_type,
        gpus,
        links: found.links.clone(),
        nics: match (nics.is_empty(), same) {
            // Adapters that sysfs does not show may be there all the same.
            (true, Some(same)) if !known => same.nics.clone(),
            _ => nics,
        },
        numa,
        nvlink_gbps: match linked {
            true => rate.unwrap_or_else(|| nvlink_gbps(first.nvlinks[0].version)),
            false => 0.0,
        },
        pcie_gbps: match &like {
            Some(like) => like.pcie_gbps,
            None => pcie_gbps(first.place.as_ref().and_then(|place| place.generation)),
        },
        socket_gbps: like.as_ref().map_or(10.0, |like| like.socket_gbps),
        nvswitch: linked && found.nvswitch,
        sockets,
        cores_per_socket: match (known, &like) {
            (true, _) => (found.cpus.cores / u32::from(sockets.max(1))).clamp(1, 4096) as u16,
            (false, like) => like.as_ref().map_or(1, |like| like.cores_per_socket),
        },
        memory_mib: match found.memory_mib {
            0 => same.map_or(0, |same| same.memory_mib),
            // Whole GiB, as gpuos.toml has them.
            mib => mib.div_ceil(1024) * 1024,
        },
        gpu_memory_mib: who.memory_mib,
        figures: like.as_ref().map(|like| like.figures).unwrap_or_default(),
        source: format!("gpuos discover, driver {}", found.driver),
    })
}

/// The adapters that serve GPUs: those nearer to one than its host bridge's others are, or all where none is.
/// Slow ones beside them are for storage and logins.
fn nics(found: &NodeHardware, numa: &[u16]) -> Vec<Nic> {
    let up = || {
        found
            .adapters
            .iter()
            .filter(|adapter| adapter.up && adapter.gbits > 0)
    };
    let links = |adapter: &Adapter| -> Vec<Link> {
        let each = found.gpus.iter().map(|gpu| match &gpu.place {
            Some(place) => between(place, &adapter.place),
            None => Link::Sys,
        });
        each.collect()
    };
    let near = |adapter: &&Adapter| links(adapter).into_iter().any(|link| rank(link) < 3);
    let mut chosen: Vec<&Adapter> = up().filter(near).collect();
    if chosen.is_empty() {
        chosen = up().collect();
    }
    let fastest = chosen
        .iter()
        .map(|adapter| adapter.gbits)
        .max()
        .unwrap_or(0);
    chosen.retain(|adapter| adapter.gbits * 2 >= fastest);
    let nic = |(rail, adapter): (u16, &&Adapter)| {
        let links = links(adapter);
        let own = adapter.place.numa.unwrap_or(0);
        let best = links
            .iter()
            .copied()
            .min_by_key(|link| rank(*link))
            .unwrap_or(Link::Sys);
        // gpuos.toml names the nearest GPUs; the others are reached through the NUMA nodes.
        let reach = |gpu: usize| match links[gpu] {
            link if link == best && rank(best) < 4 => link,
            _ if numa[gpu] == own => Link::Node,
            _ => Link::Sys,
        };
        Nic {
            name: adapter.name.clone(),
            numa: own,
            rail,
            gbps: (adapter.gbits as f32) / 8.0,
            links: (0..links.len()).map(reach).collect(),
        }
    };
    (0..).zip(&chosen).map(nic).collect()
}

/// Nearness in the order of `nvidia-smi topo -m`.
pub(super) fn rank(link: Link) -> u8 {
    match link {
        Link::Same | Link::Nv(_) => 0,
        Link::Pix => 1,
        Link::Pxb => 2,
        Link::Phb => 3,
        Link::Node => 4,
        Link::Sys => 5,
    }
}

/// NCCL's figure for one NVLink by generation, in GB/s.
fn nvlink_gbps(generation: Option<u32>) -> f32 {
    match generation {
        Some(5..) => 40.1,
        Some(4) => 20.6,
        _ => 20.0,
    }
}

/// NCCL's figure for PCIe x16 by generation, in GB/s.
fn pcie_gbps(generation: Option<u32>) -> f32 {
    match generation {
        Some(6..) => 96.0,
        Some(5) => 48.0,
        Some(3) => 12.0,
        Some(1 | 2) => 6.0,
        _ => 24.0,
    }
}

/// The GRES type of a GPU: that of the shipped type with it, else one made of its name.
pub(super) fn gres_type_of(name: &str, like: Option<&NodeType>) -> String {
    like.map_or_else(|| gres_type(name), |like| like.gres_type.clone())
}

/// A GRES type for a GPU that gpuos does not know: the word of its name with a number in it.
fn gres_type(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let words = || {
        name.split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
    };
    let digit = |word: &&str| word.bytes().any(|byte| byte.is_ascii_digit());
    let letter = |word: &&str| word.bytes().any(|byte| byte.is_ascii_alphabetic());
    let size = |word: &&str| word.ends_with("gb");
    let both = words().find(|word| digit(word) && letter(word) && !size(word));
    both.or_else(|| words().find(digit))
        .or_else(|| words().next_back())
        .unwrap_or("gpu")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::gres_type;

    #[test]
    fn gres_types_of_unknown_gpus() {
        for (name, word) in [
            ("NVIDIA A30", "a30"),
            ("Tesla V100-PCIE-32GB", "v100"),
            ("NVIDIA RTX 6000 Ada Generation", "6000"),
            ("NVIDIA TITAN V", "v"),
            ("", "gpu"),
        ] {
            assert_eq!(gres_type(name), word, "{name}");
        }
    }
}
