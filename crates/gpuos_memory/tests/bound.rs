//! The bound against all that could be done, and against each policy.

use std::collections::{BTreeSet, HashMap};

use gpuos_memory::bound;
use gpuos_memory::policy::{NAMES, named};
use gpuos_memory::replay::replay;
use gpuos_memory::trace::{Extent, Touch, Trace};
use proptest::prelude::*;

fn touches(extents: u32, most: usize) -> impl Strategy<Value = Vec<Touch>> {
    let touch = (0..8u8, 0..extents).prop_map(|(what, extent)| match what {
        0 => Touch::Free(Extent(extent)),
        1..4 => Touch::Write(Extent(extent)),
        _ => Touch::Read(Extent(extent)),
    });
    prop::collection::vec(touch, 0..most)
}

fn trace(touches: Vec<Touch>) -> Trace {
    Trace {
        extent_mib: 2,
        touches,
    }
}

/// The least number of fetches, by trying all choices at each touch.
fn least(trace: &Trace, capacity: usize) -> u64 {
    // What is in GPU memory, and the fewest fetches by which that was reached.
    let mut reached: HashMap<BTreeSet<u32>, u64> = HashMap::from([(BTreeSet::new(), 0)]);
    let mut known = BTreeSet::new();
    for touch in &trace.touches {
        let extent = touch.extent().0;
        let mut next: HashMap<BTreeSet<u32>, u64> = HashMap::new();
        let mut reach = |there: BTreeSet<u32>, fetches: u64| {
            let best = next.entry(there).or_insert(fetches);
            *best = fetches.min(*best);
        };
        let is_known = known.contains(&extent);
        for (there, fetches) in reached {
            if let Touch::Free(_) = touch {
                let mut there = there;
                there.remove(&extent);
                reach(there, fetches);
                continue;
            }
            if there.contains(&extent) {
                reach(there, fetches);
                continue;
            }
            let fetches = fetches + u64::from(is_known);
            reach(there.clone(), fetches);
            let mut with = there.clone();
            with.insert(extent);
            if there.len() < capacity {
                reach(with, fetches);
                continue;
            }
            for leaves in there {
                let mut with = with.clone();
                with.remove(&leaves);
                reach(with, fetches);
            }
        }
        reached = next;
        match touch {
            Touch::Free(_) => known.remove(&extent),
            _ => known.insert(extent),
        };
    }
    reached.into_values().min().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_bound_is_what_the_best_choices_reach(touches in touches(6, 24), capacity in 1usize..4) {
        let trace = trace(touches);
        prop_assert_eq!(bound::fetches(&trace, capacity), least(&trace, capacity));
    }

    #[test]
    fn every_policy_keeps_the_rules_and_none_is_below_the_bound(touches in touches(24, 600), capacity in 1usize..20) {
        let trace = trace(touches);
        let least = bound::fetches(&trace, capacity);
        for name in NAMES {
            let mut policy = named(name, capacity).expect("a policy");
            let moved = replay(&trace, capacity, policy.as_mut());
            let moved = moved.map_err(|broken| TestCaseError::fail(format!("{name}: {broken}")))?;
            prop_assert!(moved.fetched >= least, "{}: {} of {}", name, moved.fetched, least);
        }
    }
}
