//! Clusters, states and requests drawn at random, for tests that compare one planner with another.
#![allow(dead_code, reason = "each test uses its part")]

use std::sync::Arc;

use gpuos_model::cluster::{Cluster, Link, NO_DOMAIN, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::frag::Expected;
use gpuos_placement::plan::{GpuShape, NodeState, Placement, Request};
use proptest::prelude::*;

use crate::plan_support::{cluster, node_type, request, wish};

/// Three small node types.
pub fn kinds() -> [NodeType; 3] {
    let paired = |a: usize, b: usize| match a / 2 == b / 2 {
        true => Link::Nv(4),
        false => Link::Sys,
    };
    let odd = |a: usize, b: usize| match (a + b) % 3 {
        0 => Link::Nv(2),
        1 => Link::Pix,
        _ => Link::Node,
    };
    [
        node_type("switched-4", 4, |_, _| Link::Nv(12)),
        node_type("pairs-4", 4, paired),
        node_type("odd-5", 5, odd),
    ]
}

/// Kind and place of each node; place 0 is outside of the fabric. Up to four levels.
pub fn build(nodes: &[(usize, u32)], levels: usize) -> Cluster {
    let types: Vec<Arc<NodeType>> = kinds().into_iter().map(Arc::new).collect();
    let of: Vec<_> = nodes.iter().map(|(kind, _)| types[*kind].clone()).collect();
    let names = ["leaf", "spine", "core", "hall"];
    let level = |level: usize| {
        let domain = |&(_, place): &(usize, u32)| match place {
            0 => NO_DOMAIN,
            place => (place - 1) >> level,
        };
        (names[level], nodes.iter().map(domain).collect())
    };
    let levels: Vec<(&str, Vec<u32>)> = (0..levels).map(level).collect();
    cluster(&of, &levels)
}

/// The state of a node.
pub fn state() -> impl Strategy<Value = NodeState> {
    let masks = (0u64..32, prop_oneof![4 => Just(31u64), 1 => 0u64..32]);
    let rest = (
        0u32..40,
        prop_oneof![3 => Just(0u16), 1 => 0u16..3],
        prop_oneof![3 => Just(0u16), 1 => 0u16..3, 1 => (0u16..3).prop_map(|steps| steps << 12)],
        prop_oneof![1 => Just(0u32), 3 => 1u32..200],
    );
    (masks, rest, prop::bool::weighted(0.9)).prop_map(
        |((free, present), (cpus, affinity, penalty, until), candidate)| NodeState {
            candidate,
            present: GpuSet(present),
            free: GpuSet(free),
            free_cpus: if cpus < 12 { cpus } else { u32::MAX },
            free_memory_mib: if cpus == 39 { 5 } else { u64::MAX },
            affinity,
            penalty,
            until,
        },
    )
}

/// A rule.
pub fn rule() -> impl Strategy<Value = Placement> {
    prop_oneof![
        Just(Placement::Default),
        Just(Placement::BestFit),
        Just(Placement::Frag),
        Just(Placement::Backfill),
        Just(Placement::FirstFit),
        Just(Placement::Pack),
        Just(Placement::Spread),
        Just(Placement::Affinity(vec!["a".into()])),
        Just(Placement::AntiAffinity(vec!["a".into()])),
    ]
}

/// A request of any form.
pub fn any_request() -> impl Strategy<Value = Request> {
    let shape = prop_oneof![
        (1u32..6).prop_map(GpuShape::PerNode),
        (1u32..24).prop_map(GpuShape::Total),
        (1u32..4, 1u32..7).prop_map(|(per_task, tasks)| GpuShape::PerTask { per_task, tasks }),
        (1u32..3).prop_map(|per_socket| GpuShape::PerSocket {
            per_socket,
            sockets: 1
        }),
    ];
    let level = prop::sample::select(vec!["", "", "node", "nvlink", "leaf", "spine", "any"]);
    let needs = (0u32..8, 0u32..4, prop::sample::select(vec![0u64, 0, 6]));
    let named = prop::collection::btree_set(0u32..8, 0..2);
    (
        (1u32..7, 0u32..4, shape, rule()),
        (needs, prop::bool::weighted(0.2), named),
        (level, any::<bool>()),
    )
        .prop_map(
            |((min, more, gpus, rule), (needs, whole, named), (level, required))| {
                let mut request = request(min, gpus);
                request.max_nodes = min + more;
                request.placement = rule;
                request.until = needs.0 * 25;
                (request.cpus_per_node, request.cpus_per_gpu) = (needs.0, needs.1);
                request.memory_mib_per_node = needs.2;
                request.whole_nodes = whole;
                request.required_nodes = named.into_iter().collect();
                match level {
                    "" => request,
                    level => wish(request, level, required),
                }
            },
        )
}

/// What later jobs could do with a free set, as some mix might have it.
pub fn values(gpus: usize, salt: u32) -> Vec<u32> {
    let value = |set: u32| set.count_ones() * 700 + (set.wrapping_mul(salt | 1) >> 3) % 300;
    (0..1u32 << gpus).map(value).collect()
}

/// The same on nodes as small as those of the states here: the tables grow with the CPUs.
pub fn few_cpus(mut mix: Expected) -> Expected {
    for (share, _) in &mut mix.classes {
        share.cpus %= 8;
    }
    for node in &mut mix.nodes {
        node.0 = 12;
    }
    mix
}

/// So many cases with `$GPUOS_LONG` (`make random`), a third of them in the daily run.
pub fn cases(cases: u32) -> ProptestConfig {
    let daily = std::env::var_os("GPUOS_LONG").is_none();
    ProptestConfig {
        cases: if daily { cases / 3 } else { cases },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// The planner numbers types by their first nodes.
pub fn nth_kind(nodes: &[(usize, u32)], number: usize) -> NodeType {
    let mut seen: Vec<usize> = Vec::new();
    for (kind, _) in nodes {
        if !seen.contains(kind) {
            seen.push(*kind);
        }
    }
    kinds()[seen[number]].clone()
}
