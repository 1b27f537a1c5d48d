//! Clusters, states and requests that the benchmarks and the instruction counts have in common.
//! Everything is the same in every run.
#![allow(dead_code, reason = "each program uses its part")]

use gpuos_model::cluster::{Cluster, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::frag::{Expected, Share};
use gpuos_placement::plan::{GpuShape, Planner, Request};

#[path = "../../tests/plan_support/mod.rs"]
pub mod support;

use support::{cluster, idle, request, wish};

/// Marsaglia's xorshift64.
pub struct Random(pub u64);

impl Random {
    /// A number below `most`.
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % most
    }
}

/// `nodes` nodes of one type under so many levels: leaves of 32 nodes, then eight of the narrower
/// domains in each wider one.
pub fn levels(node_type: NodeType, nodes: u32, levels: usize) -> Cluster {
    let names = ["leaf", "spine", "core", "hall"];
    let one = std::sync::Arc::new(node_type);
    let types = vec![one; nodes as usize];
    let mut of: Vec<(&str, Vec<u32>)> = Vec::new();
    let mut size = 32;
    for name in names.iter().take(levels) {
        of.push((name, (0..nodes).map(|n| n / size).collect()));
        size *= 8;
    }
    cluster(&types, &of)
}

/// How full a cluster is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// So many of a hundred GPUs are busy: whole nodes, and a few that are broken into.
    Percent(u64),
    /// Every GPU is free or busy at random, half and half.
    Fragmented,
}

impl Fill {
    /// What is free on one node of 8 GPUs.
    pub fn free(self, random: &mut Random) -> GpuSet {
        match self {
            Fill::Percent(0) => GpuSet(0xff),
            Fill::Percent(busy) => match (random.below(100) < busy, random.below(10)) {
                (true, 0) => GpuSet(1 << random.below(8)),
                (true, _) => GpuSet::EMPTY,
                (false, 0..3) => GpuSet(random.below(255) + 1),
                (false, _) => GpuSet(0xff),
            },
            Fill::Fragmented => GpuSet(random.below(256)),
        }
    }
}

/// A planner whose cluster is that full.
pub fn planner(cluster: Cluster, fill: Fill, random: &mut Random) -> Planner {
    let states = idle(&cluster);
    let mut planner = Planner::new(cluster);
    for (node, mut state) in states.into_iter().enumerate() {
        state.free = fill.free(random);
        planner.update(node as u32, state);
    }
    planner
}

/// The mix of jobs that is learned: by GPUs, 40 % jobs of 1, 10 of 2, 20 of 4 and 30 of 8, each with 4,
/// 6 or 8 CPUs a GPU and 0, 32 or 64 GiB, on nodes of 64 CPUs and 1 TiB.
pub fn mix() -> Expected {
    let classes = [(1, 40), (2, 10), (4, 20), (8, 30)].into_iter();
    let classes = classes.flat_map(|(gpus, weight)| {
        let share = move |nth: u32| Share {
            gpus,
            cpus: u32::from(gpus) * (4 + nth % 3 * 2),
            memory_gib: nth / 3 * 32,
            types: 0,
        };
        (0..9).map(move |nth| (share(nth), weight))
    });
    Expected {
        classes: classes.collect(),
        nodes: vec![(64, 1 << 20)],
    }
}

/// Tells a planner the mix.
pub fn learn(planner: &mut Planner) {
    planner.learn(mix());
    planner.work(usize::MAX);
}

/// One event: a node's free GPUs are drawn anew.
pub fn event(planner: &mut Planner, fill: Fill, random: &mut Random) {
    let node = random.below(planner.cluster().nodes.len() as u64) as u32;
    let Some(mut state) = planner.state(node).copied() else {
        return;
    };
    state.free = fill.free(random);
    planner.update(node, state);
}

/// The requests that are measured, with a name each.
pub fn requests() -> Vec<(&'static str, Request)> {
    let total = |gpus: u32| {
        let mut total = request(1, GpuShape::Total(gpus));
        total.max_nodes = gpus;
        total
    };
    vec![
        ("1 GPU", request(1, GpuShape::PerNode(1))),
        ("2 GPUs", request(1, GpuShape::PerNode(2))),
        ("4 GPUs", request(1, GpuShape::PerNode(4))),
        ("8 GPUs, 2 x 4", request(2, GpuShape::PerNode(4))),
        ("64 GPUs, 8 x 8", request(8, GpuShape::PerNode(8))),
        ("512 GPUs, 64 x 8", request(64, GpuShape::PerNode(8))),
        ("64 GPUs, 32 x 2", request(32, GpuShape::PerNode(2))),
        (
            "64 GPUs, 8 x 8, leaf required",
            wish(request(8, GpuShape::PerNode(8)), "leaf", true),
        ),
        ("64 GPUs in all", total(64)),
        ("512 GPUs in all", total(512)),
    ]
}
