//! Jobs with a choice stay off the node types that others depend on.

use std::sync::Arc;

use gpuos_model::cluster::{Cluster, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::rng::Rng;
use gpuos_placement::frag::{Expected, Share};
use gpuos_placement::plan::{Choice, Criterion, GpuShape, NodeState, Planner, Request};

use crate::plan_support::*;

/// A cluster whose first nodes are of a type of their own.
fn cluster_of(rare: usize, common: usize) -> Cluster {
    let named = |name: &str| {
        Arc::new(NodeType {
            name: name.into(),
            ..nvswitch()
        })
    };
    let (first, second) = (named("rare"), named("common"));
    let mut types = vec![first; rare];
    types.extend(vec![second; common]);
    cluster(&types, &[])
}

fn node(free: u64) -> NodeState {
    NodeState {
        candidate: true,
        present: GpuSet::first(8),
        free: GpuSet(free),
        free_cpus: 64,
        free_memory_mib: 1 << 20,
        ..NodeState::default()
    }
}

/// One part of the jobs runs anywhere, the other on the types of a mask.
fn mix_of(anywhere: u32, picky: u32, types: u64) -> Expected {
    let share = |types| Share {
        gpus: 1,
        cpus: 4,
        memory_gib: 0,
        types,
    };
    Expected {
        classes: vec![(share(0), anywhere), (share(types), picky)],
        nodes: vec![(64, 1 << 20); 2],
    }
}

fn one_gpu() -> Request {
    Request {
        cpus_per_node: 4,
        ..request(1, GpuShape::PerNode(1))
    }
}

fn learned(cluster: Cluster, expected: Expected) -> Planner {
    let mut planner = Planner::new(cluster);
    planner.learn(expected);
    assert!(planner.work(usize::MAX));
    planner
}

fn node_of(choice: &Choice) -> usize {
    choice.nodes[0].node as usize
}

#[test]
fn the_type_that_others_name_is_left_to_them() {
    // Few nodes are compared one by one, many by bitmaps.
    for common in [6, 120] {
        let states = vec![node(0xff); 2 + common];
        let mut planner = learned(cluster_of(2, common), mix_of(40_000, 20_000, 1));
        let choice = planner.plan(&states, &one_gpu(), 0).unwrap();
        assert!(node_of(choice) >= 2, "{choice:?}");
        let rank = planner.plan(&states, &one_gpu(), 3).unwrap();
        assert!(node_of(rank) >= 2, "the fourth best: {rank:?}");

        // Nobody has to wait for it: where nothing else is free, or allowed, it is taken.
        let mut full = states.clone();
        full[2..].fill(node(0));
        assert!(node_of(planner.plan(&full, &one_gpu(), 0).unwrap()) < 2);
        planner.sync(&states);
        let choice = planner.decide(&one_gpu(), Some(&[0b11]), 0).unwrap();
        assert!(node_of(choice) < 2);

        // Named by nobody, or by few where there are many, it is the first node as any other.
        let mut planner = learned(cluster_of(2, common), mix_of(40_000, 20_000, 0));
        assert_eq!(node_of(planner.plan(&states, &one_gpu(), 0).unwrap()), 0);
        let mut planner = learned(cluster_of(common, 2), mix_of(60_000, 600, 1));
        assert_eq!(node_of(planner.plan(&states, &one_gpu(), 0).unwrap()), 0);
    }
}

/// Where a GPU of the type that others name is left over, it is used up before a whole node is
/// broken; as that type runs out, it is kept though nothing else has changed.
#[test]
fn what_is_nearly_used_up_is_kept() {
    let mut mix = mix_of(40_000, 8000, 1);
    let whole = Share {
        gpus: 8,
        ..mix.classes[0].0
    };
    mix.classes.push((whole, 12_000));
    let mut planner = learned(cluster_of(40, 80), mix);
    let mut states = vec![node(0xff); 120];
    states[7] = node(1);
    let first = node_of(planner.plan(&states, &one_gpu(), 0).unwrap());
    assert_eq!(first, 7);
    states[..7].fill(node(0));
    states[8..40].fill(node(0));
    let then = node_of(planner.plan(&states, &one_gpu(), 0).unwrap());
    assert!(then >= 40, "{then}");
}

/// The second best of all is the best of all but the best: one is looked up by bitmaps or among
/// few, the other in a list of all.
#[test]
fn all_ways_to_the_next_node_agree() {
    let mut rng = Rng::new(11);
    let mut paid = 0;
    for (rare, common) in [(30usize, 90usize), (5, 12), (64, 64)] {
        let nodes = rare + common;
        let mut planner = Planner::new(cluster_of(rare, common));
        let mut states = vec![node(0xff); nodes];
        for round in 0..150u32 {
            if round % 30 == 0 {
                let weight = rng.below(20_000) as u32;
                planner.learn(mix_of(40_000, weight, 1 + rng.below(3)));
                planner.work(usize::MAX);
            }
            for _ in 0..rng.below(30) {
                states[rng.below(nodes as u64) as usize] = node(rng.below(256));
            }
            planner.sync(&states);
            let Ok(best) = planner.decide(&one_gpu(), None, 0) else {
                continue;
            };
            let best = best.clone();
            let mut others = vec![u64::MAX; nodes.div_ceil(64)];
            others[node_of(&best) / 64] &= !(1 << (node_of(&best) % 64));
            let next = planner.decide(&one_gpu(), None, 1).ok().map(node_of);
            let rest = planner.decide(&one_gpu(), Some(&others), 0).ok();
            assert_eq!(rest.map(node_of), next, "round {round}");
            paid += u32::from(node_of(&best) >= rare && best.decided == Criterion::Mix);
        }
    }
    assert!(paid > 20, "{paid}");
}
