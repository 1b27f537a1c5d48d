//! The choice by the mix of jobs that was learned.

use gpuos_model::cluster::{Link, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_types;
use gpuos_model::rng::Rng;
use gpuos_placement::frag::{Expected, Learner, Share};
use gpuos_placement::plan::{Choice, Criterion, GpuShape, NodeState, Placement, Planner, Request};

use crate::plan_support;
use crate::plan_support::*;

const WHOLE: (u32, u64) = (64, 1 << 20);

fn share(gpus: u8, cpus: u32) -> Share {
    Share {
        gpus,
        cpus,
        memory_gib: 0,
        types: 0,
    }
}

fn expects(classes: &[(Share, u32)]) -> Expected {
    Expected {
        classes: classes.to_vec(),
        nodes: vec![WHOLE],
    }
}

fn learned(node_type: NodeType, nodes: u32, expected: Expected) -> Planner {
    let mut planner = Planner::new(tree(node_type, nodes, nodes, 1));
    planner.learn(expected);
    assert!(planner.work(usize::MAX));
    planner
}

fn node(free: u64, cpus: u32) -> NodeState {
    NodeState {
        candidate: true,
        present: GpuSet::first(8),
        free: GpuSet(free),
        free_cpus: cpus,
        free_memory_mib: u64::MAX,
        ..NodeState::default()
    }
}

fn needs(gpus: u32, cpus: u32) -> Request {
    Request {
        cpus_per_node: cpus,
        ..request(1, GpuShape::PerNode(gpus))
    }
}

/// Jobs that need few cores go where cores are nearly gone, and leave the others their cores; the
/// figure that goes by GPUs alone cannot see it.
#[test]
fn cores_that_others_need_are_spared() {
    let mix = expects(&[(share(1, 16), 1), (share(1, 1), 1)]);
    let mut planner = learned(nvswitch(), 2, mix);
    let states = [node(0b11, 32), node(0b11, 16)];
    let choice = planner.plan(&states, &needs(1, 1), 0).unwrap().clone();
    assert_eq!((choice.nodes[0].node, choice.decided), (1, Criterion::Mix));
    let best_fit = Request {
        placement: Placement::BestFit,
        ..needs(1, 1)
    };
    assert_eq!(
        planner.plan(&states, &best_fit, 0).unwrap().nodes[0].node,
        0
    );
    planner.unlearn();
    assert_eq!(
        planner.plan(&states, &needs(1, 1), 0).unwrap().nodes[0].node,
        0
    );
}

/// A node that is whole stays whole for the jobs that take all of it, when there are such jobs.
#[test]
fn whole_nodes_are_kept_for_those_who_need_them() {
    let states = [node(0xff, 64), node(0x0f, 32)];
    let mut planner = learned(
        nvswitch(),
        2,
        expects(&[(share(1, 4), 9), (share(8, 32), 1)]),
    );
    let choice = planner.plan(&states, &needs(1, 4), 0).unwrap();
    assert_eq!((choice.nodes[0].node, choice.decided), (1, Criterion::Mix));
    let mut planner = learned(nvswitch(), 2, expects(&[(share(1, 4), 1)]));
    let choice = planner.plan(&states, &needs(1, 4), 0).unwrap();
    assert_eq!(
        (choice.nodes[0].node, choice.decided),
        (0, Criterion::Index)
    );
}

/// What a node is worth: all sizes count, and one that finds no room any more is a loss.
#[test]
fn values_count_what_the_mix_can_use() {
    let planner = learned(pairs(), 1, expects(&[(share(1, 4), 1), (share(2, 8), 1)]));
    let of = |free: u64, cpus| planner.idle_value(0, GpuSet(free), cpus, u64::MAX).unwrap();
    assert_eq!(of(0, 64), 0);
    assert_eq!(of(0b11, 3), 0);
    // Two GPUs of one pair are worth more than of two, and a pair without cores for it less.
    assert!(of(0b0011, 64) > of(0b0101, 64));
    assert!(of(0b0011, 64) > of(0b0011, 4));
    assert_eq!(of(0b0101, 64), of(0b1010, 64));
    // More of anything is never worth less.
    for free in 0..256u64 {
        for gpu in 0..8 {
            assert!(
                of(free | 1 << gpu, 40) >= of(free & !(1 << gpu), 40),
                "{free:b}"
            );
        }
        assert!(of(free, 40) >= of(free, 12));
    }
    // Unknown CPUs are all that a node has.
    assert_eq!(of(0xff, u32::MAX), of(0xff, 64));
}

/// On the node types with NVLink, in every state and under many mixes with a job of two GPUs or
/// more: a job of one GPU leaves linked pairs whole while a GPU without a free partner is there.
#[test]
fn a_pair_is_not_broken_while_an_odd_gpu_is_free() {
    let mut rng = Rng::new(11);
    let mut looked = 0;
    for of in node_types::builtin().into_iter().chain([pairs()]) {
        if of.gpus > 8 {
            continue;
        }
        let linked = |a: usize, b: usize| a != b && matches!(of.link(a, b), Link::Nv(_));
        // By set: GPUs that have no free partner.
        let odd: Vec<u64> = (0..1u64 << of.gpus)
            .map(|free| {
                let alone = |&gpu: &usize| !GpuSet(free).iter().any(|other| linked(gpu, other));
                let gpus = GpuSet(free).iter().filter(alone);
                gpus.fold(0, |set, gpu| set | 1 << gpu)
            })
            .collect();
        if (1..odd.len()).all(|free| [0, free as u64].contains(&odd[free])) {
            continue;
        }
        let mut planner = Planner::new(tree(of.clone(), 1, 1, 1));
        for round in 0..60 {
            let sizes = [1, 2, 4, 8]
                .into_iter()
                .filter(|&size| usize::from(size) <= of.gpus);
            let mut classes = Vec::new();
            for gpus in sizes {
                let weight = 1 << rng.below(12);
                if rng.below(3) > 0 || gpus == 2 << (round % 2) {
                    classes.push((share(gpus, 0), weight as u32));
                }
            }
            planner.learn(expects(&classes));
            planner.work(usize::MAX);
            for free in 1..1u64 << of.gpus {
                let state = NodeState {
                    present: GpuSet::first(of.gpus),
                    ..node(free, u32::MAX)
                };
                let choice = planner.plan(&[state], &needs(1, 0), 0).unwrap();
                let taken = choice.nodes[0].gpus.0;
                let odd = odd[free as usize];
                assert!(
                    odd == 0 || taken & odd != 0,
                    "{}: {free:b} {taken:b} {classes:?}",
                    of.name
                );
                looked += u32::from(odd != 0);
            }
        }
    }
    assert!(looked > 10_000, "{looked}");
}

fn place(choice: &Choice) -> (u32, GpuSet) {
    (choice.nodes[0].node, choice.nodes[0].gpus)
}

/// Scores that are kept, few nodes compared one by one and the next best ones all follow the
/// same order, which is that of the loss on each node alone.
#[test]
fn all_ways_to_the_best_node_agree() {
    let mut rng = Rng::new(5);
    for (of, nodes) in [(nvswitch(), 300u32), (pairs(), 200), (nvswitch(), 20)] {
        let cluster = cluster(&[std::sync::Arc::new(of)], &[]);
        let of = cluster.nodes[0].node_type.clone().unwrap();
        let cluster = plan_support::cluster(&vec![of; nodes as usize], &[]);
        let mut planner = Planner::new(cluster.clone());
        let mut states = vec![node(0xff, 64); nodes as usize];
        for round in 0..60u32 {
            if round % 20 == 0 {
                planner.learn(mix(7 + round * 31, 1));
                // In pieces, while the old values are in use.
                while !planner.work(5000) {}
            }
            for _ in 0..rng.below(40) {
                let at = rng.below(u64::from(nodes)) as usize;
                states[at].free = GpuSet(rng.below(256));
                states[at].free_cpus = rng.below(65) as u32;
            }
            let wanted = needs(1 + rng.below(3) as u32, rng.below(3) as u32 * 4);
            let best = planner.plan(&states, &wanted, 0).unwrap().clone();
            let mut fresh = Planner::new(cluster.clone());
            fresh.learn(planner.learned().unwrap().clone());
            fresh.work(usize::MAX);
            assert_eq!(
                fresh.plan(&states, &wanted, 0).unwrap(),
                &best,
                "round {round}"
            );
            // Alone, then in order.
            let mut ranked = Vec::new();
            for at in 0..nodes {
                let mut only = vec![0u64; nodes.div_ceil(64) as usize];
                only[at as usize / 64] |= 1 << (at % 64);
                if let Ok(choice) = planner.decide(&wanted, Some(&only), 0) {
                    let bus = (choice.bus_gbps * 100.0) as i64;
                    let step = (choice.usability_lost * 1000.0).round() as u32 / 100;
                    ranked.push(((-bus, step, at), place(choice)));
                }
            }
            ranked.sort();
            assert_eq!(ranked[0].1, place(&best), "round {round}");
            assert_eq!(best.feasible_domains, ranked.len() as u32);
            for skip in [1, ranked.len() / 2, ranked.len() - 1] {
                let next = planner.decide(&wanted, None, skip as u32).unwrap();
                // Links in all are not in the answer: only where they cannot differ.
                if matches!(wanted.gpus, GpuShape::PerNode(1 | 2)) {
                    assert_eq!(place(next), ranked[skip].1, "round {round}, skip {skip}");
                }
            }
        }
    }
}

#[test]
fn a_learner_says_when_it_has_something_new() {
    let mut learner = Learner::new();
    learner.arrives(share(0, 9), 1);
    for _ in 0..15 {
        learner.arrives(share(1, 4), 1);
        assert!(!learner.due());
    }
    learner.arrives(share(8, 64), 4);
    assert!(learner.due());
    let expected = learner.expected(vec![WHOLE]);
    assert_eq!(expected.classes.len(), 2);
    // The gang counts by its 32 GPUs.
    assert_eq!(expected.sizes(), [(8, 68), (1, 32)]);
    for _ in 0..15 {
        learner.arrives(share(1, 4), 1);
        assert!(!learner.due());
    }
    learner.arrives(share(1, 4), 1);
    assert!(learner.due());
    // Bounded, whatever comes.
    for cpus in 0..10_000 {
        learner.arrives(share(1, 1000 + cpus), 1);
        learner.arrives(share(2, 7), 1);
    }
    let expected = learner.expected(vec![WHOLE]);
    assert!(expected.classes.len() <= 96);
    assert_eq!(expected.classes[0].0, share(2, 7));
}

/// More forms of jobs than figures are kept of, in turns: each gets the place that a planner gives it
/// which has seen no other.
#[test]
fn forms_do_not_go_by_the_figures_of_others() {
    let mix = || Expected {
        classes: vec![(share(1, 1), 2), (share(1, 4), 1), (share(4, 6), 1)],
        nodes: vec![(16, 0)],
    };
    let fresh = || {
        let mut planner = learned(nvswitch(), 100, mix());
        for at in 0..100 {
            let free = GpuSet::first(4 + at as usize % 5);
            planner.update(at, node(free.0, 8 + at * 7 % 9));
        }
        planner
    };
    let mut kept = fresh();
    for turn in 0..2 {
        for form in 0..24 {
            let job = needs(1 + form % 4, form / 4);
            let alone = fresh().decide(&job, None, 0).map(|c| c.nodes.clone());
            let among = kept.decide(&job, None, 0).map(|c| c.nodes.clone());
            assert_eq!(among, alone, "form {form}, turn {turn}");
        }
    }
}
