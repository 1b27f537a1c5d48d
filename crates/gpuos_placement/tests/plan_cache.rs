//! What a planner keeps from one decision to the next makes no difference to any choice.

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{NodeState, Planner, Request};
use proptest::prelude::*;

use crate::plan_events::*;
use crate::plan_support::*;

/// A request of a form that ranks are kept for, more often than not.
fn usual(request: Request, plain: bool) -> Request {
    match plain {
        true => Request {
            required_nodes: Vec::new(),
            until: 0,
            ..request
        },
        false => request,
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn kept_ranks_make_no_difference(
        nodes in prop::collection::vec((0usize..3, 0u32..44), 8..180),
        levels in 0usize..5,
        (islands, domains_for_all) in (any::<bool>(), any::<bool>()),
        learned in proptest::option::of(any::<u32>()),
        forms in prop::collection::vec((any_request(), prop::bool::weighted(0.8)), 1..8),
        steps in prop::collection::vec(
            (prop::collection::vec((0usize..180, state()), 0..30), any::<[u64; 3]>(), 0u32..8),
            2..8,
        ),
    ) {
        let mut nodes = nodes;
        if domains_for_all {
            nodes.iter_mut().for_each(|(_, place)| *place = (*place).max(1));
        }
        let mut cluster = build(&nodes, levels);
        if let Some(narrowest) = cluster.fabric.levels.first_mut().filter(|_| islands) {
            narrowest.name = "nvlink".into();
        }
        let forms: Vec<Request> =
            forms.into_iter().map(|(request, plain)| usual(request, plain)).collect();
        let mut planner = Planner::new(cluster.clone());
        planner.keep_ranks(true);
        let mut plain = Planner::new(cluster);
        plain.keep_ranks(false);
        for (number, (events, bitmap, kind)) in steps.iter().enumerate() {
            // Now and then everything changes at once.
            let all = (*kind == 7).then_some(0..nodes.len());
            let all = all.into_iter().flatten().zip(events.iter().cycle());
            let all: Vec<_> = all.map(|(node, (_, state))| (node, *state)).collect();
            for (node, state) in events.iter().chain(&all) {
                planner.update(*node as u32, *state);
                plain.update(*node as u32, *state);
            }
            if let Some(salt) = learned.filter(|_| number == 1 || number == 5) {
                let seen: std::collections::BTreeSet<usize> = nodes.iter().map(|n| n.0).collect();
                for planner in [&mut planner, &mut plain] {
                    for number in 0..seen.len() {
                        let gpus = nth_kind(&nodes, number).gpus;
                        planner.set_mask_values(number, &values(gpus, salt)).unwrap();
                    }
                    planner.learn(few_cpus(mix(salt.wrapping_add(number as u32), seen.len())));
                    prop_assert!(planner.work(usize::MAX));
                }
            }
            let within = (*kind == 3).then_some(bitmap.as_slice());
            for request in forms.iter().chain(&forms) {
                for skip in [0, 1] {
                    let got = planner.decide(request, within, skip).cloned();
                    let want = plain.decide(request, within, skip).cloned();
                    prop_assert_eq!(got, want, "step {}, skip {} of {:?}", number, skip, request);
                }
            }
        }
    }
}

/// More forms than are kept, and more changes than the planner remembers, on a cluster that is
/// large enough to keep ranks by itself.
#[test]
fn many_forms_and_many_changes_make_no_difference() {
    let cluster = tree(pairs(), 600, 10, 4);
    let states = idle(&cluster);
    let (mut planner, mut plain) = (Planner::new(cluster.clone()), Planner::new(cluster));
    plain.keep_ranks(false);
    for planner in [&mut planner, &mut plain] {
        planner.sync(&states);
        planner.learn(mix(7, 1));
        assert!(planner.work(usize::MAX));
    }
    let form = |nth: u32| {
        let nodes = if nth.is_multiple_of(2) {
            1
        } else {
            1 + nth % 12
        };
        let mut form = request(nodes, gpuos_placement::plan::GpuShape::PerNode(1 + nth % 8));
        form.cpus_per_node = nth / 3;
        form
    };
    let forms: Vec<Request> = (0..120).map(form).collect();
    let mut random = 1u64;
    for step in 0..900usize {
        for _ in 0..[1, 3, 900][(step % 100 == 99) as usize + step.is_multiple_of(7) as usize] {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let node = (random >> 33) as u32 % 600;
            let state = NodeState {
                free: GpuSet(random >> 45 & 0xff),
                free_cpus: (random >> 55) as u32 % 64,
                ..states[0]
            };
            planner.update(node, state);
            plain.update(node, state);
        }
        // A few come often, all of them now and then.
        let number = if step.is_multiple_of(3) {
            step / 3 % forms.len()
        } else {
            step % 20
        };
        let got = planner.decide(&forms[number], None, 0).cloned();
        let want = plain.decide(&forms[number], None, 0).cloned();
        assert_eq!(got, want, "step {step}, form {number}");
    }
}
