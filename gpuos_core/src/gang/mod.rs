//! Group shapes of training jobs (`--gpuos-shape=tp8:pp4:dp16`): how ranks fall into groups, which
//! groups belong close together, and the order of ranks that keeps them there.
//!
//! A tensor-parallel group exchanges in every layer and belongs inside NVLink; context-parallel
//! groups beside it; the stages of a pipeline inside one leaf switch; data-parallel replicas may be
//! far apart. Expert-parallel groups are parts of the context- and data-parallel ones, as in
//! Megatron-LM, so they do not multiply the number of ranks.

mod ranks;
mod shape;

pub use ranks::{RankFile, Spans, gpu_order, spread};
pub use shape::{GroupKind, GroupShape, SHAPE_FORM};

use crate::gpuset::GpuSet;

/// The GPU indices that are free on every node: on a rail fabric a gang that takes the same ones
/// everywhere uses the same adapters, so that its rings never leave their rails.
pub fn aligned(free: impl IntoIterator<Item = GpuSet>) -> GpuSet {
    let mut free = free.into_iter();
    let first = free.next().unwrap_or_default();
    free.fold(first, GpuSet::and)
}

/// Deals data-parallel replicas of `nodes` nodes each to leaves with room for `rooms` nodes, so that
/// each replica, with its pipeline, lies whole in one leaf. Puts the replicas of each leaf into
/// `out`; false when they do not all fit. A leaf that holds all that is left with the least over is
/// taken first, else the one with the most room; of equals the first one.
pub fn deal(rooms: &[u32], nodes: u32, replicas: u32, out: &mut Vec<u32>) -> bool {
    out.clear();
    out.resize(rooms.len(), 0);
    let nodes = nodes.max(1);
    let mut left = replicas;
    while left > 0 {
        let room = |at: &usize| if out[*at] > 0 { 0 } else { rooms[*at] / nodes };
        let all = || (0..rooms.len()).filter(|at| room(at) > 0);
        let tight = all().filter(|at| room(at) >= left);
        let tight = tight.min_by_key(|&at| (rooms[at], at));
        let Some(at) = tight.or_else(|| all().max_by_key(|at| (room(at), usize::MAX - at))) else {
            return false;
        };
        let part = room(&at).min(left);
        out[at] = part;
        left -= part;
    }
    true
}

#[cfg(test)]
mod tests;
