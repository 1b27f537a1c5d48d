//! The planner that is kept current by events answers as one that was just made, and as a plain
//! pass over all nodes.

use gpuos_model::cluster::Link;
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{Criterion, GpuShape, NodeState, Placement, Planner, Request};
use proptest::prelude::*;

use crate::plan_events::*;
use crate::plan_support::brute::Brute;
use crate::plan_support::pass::Pass;
use crate::plan_support::*;

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
            // Under a learned mix idle nodes make their type less scarce, also those that this job may not use: to a planner
            // that is given the job's nodes alone other types are scarce.
            let scarce = *restricted && planner.learned().is_some();
            for skip in [0, 1, 2, 5] {
                let got = planner.decide(request, within, skip).cloned();
                let want = match scarce {
                    true => {
                        fresh.sync(&states);
                        fresh.decide(request, within, skip).cloned()
                    }
                    false => fresh.plan(&offered, request, skip).cloned(),
                };
                prop_assert_eq!(&got, &want, "skip {} of {:?}", skip, request);
                let got = planner.foresee(request, within, skip).cloned();
                let want = match scarce {
                    true => fresh.foresee(request, within, skip).cloned(),
                    false => fresh.future(&offered, request, skip).cloned(),
                };
                prop_assert_eq!(got, want);
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
