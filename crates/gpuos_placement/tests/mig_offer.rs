//! Which nodes with placements a job with slices is offered.

use gpuos_model::gpu_index::{GresGpu, NvmlIndex, NvmlSet};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::mig::Pick;
use gpuos_placement::mig::offer::{
    Candidate, Candidates, Needs, Released, out_of_service, releases_of,
};
use proptest::prelude::*;

fn candidates(nodes: &[(bool, u64, u64, i64)]) -> Candidates {
    let mut all = Candidates::default();
    for (node, (named, weight, cost, at)) in nodes.iter().enumerate() {
        all.push(Candidate {
            node,
            named: *named,
            at: *at,
            weight: *weight,
            pick: Pick {
                bits: 1 << node,
                cost: *cost,
            },
        });
    }
    all.rank();
    all
}

fn nodes() -> impl Strategy<Value = Vec<(bool, u64, u64, i64)>> {
    let node = (prop::bool::weighted(0.2), 0u64..3, 0u64..4, Just(0i64));
    prop::collection::vec(node, 0..10)
}

fn indices<'a>(set: impl Iterator<Item = &'a Candidate>) -> Vec<usize> {
    set.map(|one| one.node).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_job_is_offered_all_nodes_with_room_before_it_waits(
        nodes in nodes(),
        (min, more, most) in (1usize..4, 0usize..3, 0usize..5),
    ) {
        let all = candidates(&nodes);
        let named: Vec<usize> = (0..nodes.len()).filter(|node| nodes[*node].0).collect();
        let needs = Needs { min, wanted: min + more, named: named.len() };
        prop_assert_eq!(all.serve(needs), nodes.len() >= min);
        let one_more = Needs { named: named.len() + 1, ..needs };
        prop_assert!(!all.serve(one_more));
        let mut seen = Vec::new();
        for tried in 0..=most {
            let (set, last) = all.offered(needs, tried, most);
            let set = indices(set);
            prop_assert!(named.iter().all(|node| set.contains(node)), "a named node is not offered");
            let mut once = set.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), set.len());
            if last {
                prop_assert_eq!(once.len(), nodes.len());
                return Ok(());
            }
            prop_assert_eq!(set.len(), needs.wanted.min(nodes.len()));
            prop_assert!(!seen.contains(&once), "the same set twice");
            // None that is left out is better than the first that is offered of those not named.
            if tried == 0 {
                let worth = |node: &usize| (nodes[*node].1, nodes[*node].2);
                let worst = set.iter().filter(|node| !nodes[**node].0).map(worth).max();
                let left = (0..nodes.len()).filter(|node| !set.contains(node));
                let best = left.map(|node| worth(&node)).min();
                prop_assert!(best.is_none_or(|best| worst <= Some(best)));
            }
            seen.push(once);
        }
        prop_assert!(false, "the last set is never offered");
    }

    #[test]
    fn what_is_free_first_comes_first(
        now in nodes(),
        later in prop::collection::vec((prop::bool::weighted(0.2), 0u64..3, 0u64..4, 1i64..9), 0..8),
        min in 1usize..4,
    ) {
        let mut all = candidates(&now);
        all.begin_later();
        for node in 0..now.len() + later.len() {
            prop_assert_eq!(all.fits_now(node), node < now.len());
        }
        for (at, (named, weight, cost, when)) in later.iter().enumerate() {
            let pick = Pick { bits: 1, cost: *cost };
            all.push(Candidate { node: now.len() + at, named: *named, at: *when, weight: *weight, pick });
        }
        all.rank();
        let named = all.named();
        let [few, most] = all.offered_later(Needs { min, wanted: min, named });
        prop_assert_eq!(most.len(), now.len() + later.len());
        prop_assert_eq!(few.len(), min.min(most.len()).max(named));
        let last = few.iter().filter(|one| !one.named).map(|one| one.at).max();
        let others = most[few.len()..].iter().map(|one| one.at).min();
        prop_assert!(others.is_none_or(|at| last <= Some(at)), "one that is free sooner is left out");
    }

    #[test]
    fn a_gpu_of_a_pool_is_out_by_either_number(
        (pool, switchable) in (0u64..256, 0u64..256),
        (pool_out, gres_out) in (any::<u8>(), any::<u8>()),
    ) {
        let (pool, switchable) = (GpuSet(pool), GpuSet(switchable & pool));
        let (pool_out, gres_out) = (GpuSet(pool_out.into()), GpuSet(gres_out.into()));
        // gres.conf has all but those that are in MIG mode for good.
        let fixed = pool.minus(switchable);
        let gres_of = |nvml: NvmlIndex| {
            let before = fixed.iter().filter(|gpu| *gpu < nvml.index()).count();
            switchable.contains(nvml.index()).then(|| GresGpu::new(nvml.index() - before)).flatten()
        };
        let out = out_of_service(NvmlSet(pool), NvmlSet(pool_out), gres_out, gres_of);
        let mut expected = Vec::new();
        for (nth, nvml) in pool.iter().enumerate() {
            let by_gres = (0..8).filter(|gpu| !fixed.contains(*gpu)).position(|gpu| gpu == nvml);
            let by_gres = by_gres.filter(|_| switchable.contains(nvml));
            if pool_out.contains(nvml) || by_gres.is_some_and(|gres| gres_out.contains(gres)) {
                expected.push(nth);
            }
        }
        prop_assert_eq!(out.0.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_given_back_is_found_by_node(ends in prop::collection::vec((0usize..6, 0i64..9, 0u64..9), 0..30)) {
        let mut all: Vec<Released> = ends.iter().map(|(node, at, bits)| Released { node: *node, at: *at, bits: *bits }).collect();
        all.sort_unstable();
        for node in 0..7 {
            let found: Vec<(i64, u64)> = releases_of(&all, node).collect();
            let mut expected: Vec<(i64, u64)> = ends.iter().filter(|one| one.0 == node).map(|one| (one.1, one.2)).collect();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
