//! The planner that is kept current by events answers as one that was just made, and as a plain
//! pass over all nodes.

mod plan_support;

use std::sync::Arc;

use gpuos_core::frag::Expected;
use gpuos_core::gpuset::GpuSet;
use gpuos_core::model::{Cluster, Link, NO_DOMAIN, NodeType};
use gpuos_core::plan::{Criterion, GpuShape, NodeState, Placement, Planner, Request};
use plan_support::brute::Brute;
use plan_support::pass::Pass;
use plan_support::*;
use proptest::prelude::*;

fn kinds() -> [NodeType; 3] {
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
fn build(nodes: &[(usize, u32)], levels: usize) -> Cluster {
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

fn state() -> impl Strategy<Value = NodeState> {
    let masks = (0u64..32, prop_oneof![4 => Just(31u64), 1 => 0u64..32]);
    let rest = (
        0u32..40,
        prop_oneof![3 => Just(0u16), 1 => 0u16..3],
        prop_oneof![3 => Just(0u16), 1 => 0u16..3],
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

fn rule() -> impl Strategy<Value = Placement> {
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

fn any_request() -> impl Strategy<Value = Request> {
    let shape = prop_oneof![
        (1u32..6).prop_map(GpuShape::PerNode),
        (1u32..24).prop_map(GpuShape::Total),
        (1u32..4, 1u32..7).prop_map(|(per_task, tasks)| GpuShape::PerTask { per_task, tasks }),
        (1u32..3).prop_map(GpuShape::PerSocket),
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
fn values(gpus: usize, salt: u32) -> Vec<u32> {
    let value = |set: u32| set.count_ones() * 700 + (set.wrapping_mul(salt | 1) >> 3) % 300;
    (0..1u32 << gpus).map(value).collect()
}

/// The same on nodes as small as those of the states here: the tables grow with the CPUs.
fn few_cpus(mut mix: Expected) -> Expected {
    for (share, _) in &mut mix.classes {
        share.cpus %= 8;
    }
    for node in &mut mix.nodes {
        node.0 = 12;
    }
    mix
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn events_leave_what_a_fresh_planner_sees(
        nodes in prop::collection::vec((0usize..3, 0u32..12), 8..90),
        levels in 0usize..5,
        learned in proptest::option::of(any::<u32>()),
        steps in prop::collection::vec(
            (prop::collection::vec((0usize..90, state()), 1..40), any_request(), any::<[u64; 2]>(), any::<bool>()),
            1..8,
        ),
    ) {
        let mut planner = Planner::new(build(&nodes, levels));
        let mut states = vec![NodeState::default(); nodes.len()];
        for (step, (events, request, bitmap, restricted)) in steps.iter().enumerate() {
            for (node, state) in events {
                planner.update(*node as u32, *state);
                if let Some(known) = states.get_mut(*node) {
                    *known = *state;
                }
            }
            let mut fresh = Planner::new(build(&nodes, levels));
            // Values may come at any time.
            if let Some(salt) = learned.filter(|_| step > 0) {
                let salt = salt.wrapping_add(step as u32 / 3);
                let seen: std::collections::BTreeSet<usize> = nodes.iter().map(|n| n.0).collect();
                for planner in [&mut planner, &mut fresh] {
                    for number in 0..seen.len() {
                        let gpus = nth_kind(&nodes, number).gpus;
                        planner.set_mask_values(number, &values(gpus, salt)).unwrap();
                    }
                }
                // The values are the costly part: the one planner keeps them until the mix changes.
                let expected = few_cpus(mix(salt, seen.len()));
                for planner in [&mut planner, &mut fresh] {
                    if planner.learned() != Some(&expected) {
                        planner.learn(expected.clone());
                        prop_assert!(planner.work(usize::MAX));
                    }
                }
            }
            let mut offered = states.clone();
            if *restricted {
                for (node, state) in offered.iter_mut().enumerate() {
                    state.candidate &= bitmap[node / 64] >> (node % 64) & 1 == 1;
                }
            }
            let within = restricted.then_some(bitmap.as_slice());
            for skip in [0, 1, 2, 5] {
                let got = planner.decide(request, within, skip).cloned();
                let want = fresh.plan(&offered, request, skip).cloned();
                prop_assert_eq!(&got, &want, "skip {} of {:?}", skip, request);
                let got = planner.foresee(request, within, skip).cloned();
                prop_assert_eq!(got, fresh.future(&offered, request, skip).cloned());
            }
        }
    }

    #[test]
    fn decisions_are_those_of_a_plain_pass(
        nodes in prop::collection::vec((0usize..3, 0u32..12, state()), 2..24),
        levels in 0usize..4,
        rule in rule(),
        count in 1u32..=5,
        wanted in 2u32..6,
        learned in proptest::option::of(any::<u32>()),
        (cost_first, until) in (any::<bool>(), 0u32..250),
    ) {
        let places: Vec<_> = nodes.iter().map(|(kind, place, _)| (*kind, *place)).collect();
        let kind: Vec<usize> = nodes.iter().map(|(kind, ..)| *kind).collect();
        let types = kinds();
        let mut brutes: Vec<Brute> = types.iter().map(Brute::new).collect();
        let cluster = build(&places, levels);
        let mut planner = Planner::new(cluster.clone());
        if let Some(salt) = learned {
            for number in 0..3 {
                let Some(at) = (0..nodes.len()).find(|&n| {
                    let before: std::collections::BTreeSet<_> = kind[..n].iter().collect();
                    before.len() == number && !before.contains(&kind[n])
                }) else { continue };
                let table = values(types[kind[at]].gpus, salt);
                planner.set_mask_values(number, &table).unwrap();
                if rule != Placement::BestFit {
                    brutes[kind[at]].learn(&table);
                }
            }
        }
        let states: Vec<NodeState> = nodes
            .iter()
            .map(|(kind, _, state)| {
                let present = state.present.and(GpuSet::first(types[*kind].gpus));
                // CPUs and memory have tests of their own.
                NodeState { present, free: state.free.and(present), free_cpus: u32::MAX, free_memory_mib: u64::MAX, ..*state }
            })
            .collect();
        let pass = Pass { cluster: &cluster, states: &states, rule: &rule, kind: &kind, cost_first, until };
        let fits = pass.fits(&mut brutes, count);
        let mut one = request(1, GpuShape::PerNode(count));
        one.placement = rule.clone();
        one.cost_first = cost_first;
        one.until = until;
        let want = pass.singles(&fits);
        for (skip, want) in want.iter().enumerate() {
            let got = planner.plan(&states, &one, skip as u32).unwrap();
            prop_assert_eq!(&(got.nodes[0].node, got.nodes[0].gpus.0), want, "skip {}", skip);
            prop_assert_eq!(got.decided == Criterion::Only, skip + 1 == fits.len());
        }
        prop_assert!(planner.plan(&states, &one, want.len() as u32).is_err());

        let gang = Request { min_nodes: wanted, max_nodes: wanted, ..one };
        let got = planner.plan(&states, &gang, 0).ok();
        let got = got.map(|c| c.nodes.iter().map(|n| n.node).collect::<Vec<_>>());
        let want = pass.gang(&fits, wanted as usize);
        prop_assert_eq!(got, want.map(|(_, nodes)| nodes));
    }
}

/// The planner numbers types by their first nodes.
fn nth_kind(nodes: &[(usize, u32)], number: usize) -> NodeType {
    let mut seen: Vec<usize> = Vec::new();
    for (kind, _) in nodes {
        if !seen.contains(kind) {
            seen.push(*kind);
        }
    }
    kinds()[seen[number]].clone()
}

#[test]
fn a_table_of_values_must_fit_the_type() {
    let mut planner = Planner::new(tree(nvswitch(), 4, 2, 2));
    let why = planner.set_mask_values(1, &[]).unwrap_err();
    assert_eq!(why, "there is no node type number 1: the cluster has 1");
    let why = planner.set_mask_values(0, &[0; 16]).unwrap_err();
    assert_eq!(
        why,
        "a node type with 8 GPUs has 256 sets of them, and 16 values were given"
    );
    let mut large = Planner::new(tree(node_type("many", 17, |_, _| Link::Nv(1)), 1, 1, 1));
    assert!(
        large
            .set_mask_values(0, &[0; 4])
            .unwrap_err()
            .contains("16 GPUs")
    );
}

/// What told the choice from the next best one.
#[test]
fn a_choice_says_what_decided() {
    let cluster = tree(nvswitch(), 8, 4, 2);
    let mut states = idle(&cluster);
    let mut planner = Planner::new(cluster);
    let one = request(1, GpuShape::PerNode(1));
    let mut decided = |states: &[NodeState], request: &Request| {
        let choice = planner.plan(states, request, 0).unwrap();
        (choice.nodes[0].node, choice.decided)
    };
    assert_eq!(decided(&states, &one), (0, Criterion::Index));
    states[6].free = GpuSet(0);
    assert_eq!(decided(&states, &one), (4, Criterion::Index));
    states[5].free = GpuSet(0x3f);
    assert_eq!(decided(&states, &one), (5, Criterion::Usability));
    states[5].set_rules(1);
    // The whole nodes are better now; those of the leaf with fewer of them come first.
    assert_eq!(decided(&states, &one), (4, Criterion::Index));
    states[7].candidate = false;
    assert_eq!(decided(&states, &one), (4, Criterion::Surroundings));
    for state in &mut states[..4] {
        state.candidate = false;
    }
    assert_eq!(decided(&states, &one), (4, Criterion::Penalty));
    states[4].candidate = false;
    assert_eq!(decided(&states, &one), (5, Criterion::Only));
}
