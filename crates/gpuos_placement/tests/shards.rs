//! Which GPU a job with shards is offered: random nodes, held against what a site cares about and against a search of all GPUs.

use gpuos_model::gpu_index::GresGpu;
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::shards::{Candidate, Candidates, Entry, Needs, NodeState, Part};
use proptest::prelude::*;

/// A GPU: its shards, those in use, whether somebody has it whole, whether it is degraded and of the type asked for.
type Gpu = (u64, u64, bool, bool, bool);

#[derive(Clone, Debug)]
struct Case {
    gpus: Vec<Gpu>,
    count: u64,
}

impl Case {
    fn state(&self) -> NodeState {
        let set = |which: &dyn Fn(&Gpu) -> bool| {
            let all = self.gpus.iter().enumerate();
            all.filter(|(_, gpu)| which(gpu))
                .fold(0, |all, (at, _)| all | 1u64 << at)
        };
        NodeState {
            devices: self.gpus.len(),
            shard_devices: self.gpus.len(),
            allocated: set(&|gpu| gpu.2),
            shared: set(&|gpu| gpu.1 > 0),
            degraded: GpuSet(set(&|gpu| gpu.3)),
        }
    }

    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let all = self.gpus.iter().enumerate();
        all.map(|(at, gpu)| Entry {
            gpus: 1 << at,
            all: gpu.0,
            used: gpu.1,
            is_type: gpu.4,
        })
    }

    /// GPUs that could give the job its shards.
    fn able(&self) -> Vec<usize> {
        let able = |gpu: &Gpu| !gpu.2 && gpu.4 && gpu.0 - gpu.1 >= self.count;
        let all = self.gpus.iter().enumerate();
        all.filter(|(_, gpu)| able(gpu)).map(|(at, _)| at).collect()
    }

    fn best(&self) -> Option<Part> {
        self.state().best(self.entries(), self.count)
    }
}

fn case() -> impl Strategy<Value = Case> {
    let gpu = (
        1u64..9,
        0u64..9,
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.8),
    );
    let gpu = gpu.prop_map(|(all, used, whole, degraded, is_type)| {
        // Who has it whole shares it with nobody.
        let used = if whole {
            0
        } else {
            used.saturating_sub(3).min(all)
        };
        (all, used, whole, degraded, is_type)
    });
    (prop::collection::vec(gpu, 1..9), 1u64..5).prop_map(|(gpus, count)| Case { gpus, count })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_shard_is_of_a_gpu_that_nobody_has_whole(case in case()) {
        let able = case.able();
        match case.best() {
            Some(part) => {
                prop_assert!(able.contains(&part.gpu.index()), "{part:?}");
                let (_, used, _, degraded, _) = case.gpus[part.gpu.index()];
                prop_assert_eq!((part.idle, part.degraded), (used == 0, degraded));
            }
            // No job that a GPU could serve is refused.
            None => prop_assert!(able.is_empty(), "{able:?} could serve it"),
        }
    }

    #[test]
    fn shared_gpus_fill_before_idle_ones_and_degraded_ones_last(case in case()) {
        let Some(part) = case.best() else {
            return Ok(());
        };
        let chosen = case.gpus[part.gpu.index()];
        for at in case.able() {
            let other = case.gpus[at];
            prop_assert!(!chosen.3 || other.3, "a degraded GPU before GPU {}", at);
            if chosen.3 != other.3 {
                continue;
            }
            prop_assert!(chosen.1 > 0 || other.1 == 0, "an idle GPU before GPU {} that is shared", at);
            if chosen.1 > 0 && other.1 > 0 {
                prop_assert!(chosen.0 - chosen.1 <= other.0 - other.1, "GPU {} is fuller", at);
            }
        }
    }

    #[test]
    fn the_choice_does_not_hang_on_the_order_of_entries(case in case()) {
        let mut entries: Vec<Entry> = case.entries().collect();
        entries.reverse();
        let best = case.state().best(entries.into_iter(), case.count);
        prop_assert_eq!(best, case.best());
    }

    #[test]
    fn what_is_not_understood_is_left_to_slurm(case in case(), more in 1usize..3) {
        let state = case.state();
        let odd = NodeState { shard_devices: state.devices + more, ..state };
        prop_assert_eq!(odd.best(case.entries(), case.count), None);
        let many = NodeState { devices: 65, shard_devices: 65, ..state };
        prop_assert_eq!(many.best(case.entries(), case.count), None);
        // An entry of several GPUs, or of none.
        for gpus in [0, 0b11] {
            let entry = Entry { gpus, all: 9, used: 0, is_type: true };
            prop_assert_eq!(state.best([entry].into_iter(), 1), None);
        }
    }

    #[test]
    fn sets_of_nodes_have_those_that_are_named_and_the_best_others(
        nodes in prop::collection::vec((prop::bool::weighted(0.2), 0u64..3, case()), 0..12),
        (wanted, missing, most) in (1usize..6, prop::bool::weighted(0.2), 0usize..5),
    ) {
        let mut candidates = Candidates::default();
        for (node, (named, weight, case)) in nodes.iter().enumerate() {
            if let Some(part) = case.best() {
                candidates.push(Candidate { node, named: *named, weight: *weight, short: false, part });
            }
        }
        candidates.rank();
        let able = |node: &usize| nodes[*node].2.best().is_some();
        let all: Vec<usize> = (0..nodes.len()).filter(able).collect();
        let named: Vec<usize> = all.iter().copied().filter(|node| nodes[*node].0).collect();
        // One more node is named, and has no room.
        let needs = Needs { nodes: wanted, named: named.len() + usize::from(missing) };
        let Some(attempts) = candidates.attempts(needs, most) else {
            prop_assert!(missing || all.len() < wanted || named.len() > wanted);
            return Ok(());
        };
        prop_assert!(!missing && all.len() >= wanted);
        prop_assert!((1..=1 + most).contains(&attempts.count));
        let mut before: Vec<Vec<(usize, GresGpu)>> = Vec::new();
        for nth in 0..attempts.count {
            let set: Vec<_> = candidates.offered(attempts, nth).collect();
            prop_assert_eq!(set.len(), wanted);
            prop_assert!(named.iter().all(|node| set.iter().any(|one| one.0 == *node)));
            prop_assert!(!before.contains(&set), "the same set twice");
            for (node, gpu) in &set {
                let best = nodes[*node].2.best().map(|part| part.gpu);
                prop_assert_eq!(best, Some(*gpu));
            }
            before.push(set);
        }
        // The first set has the lightest nodes that are not named.
        let weights = |set: &[usize]| set.iter().map(|node| nodes[*node].1).max().unwrap_or(0);
        let first: Vec<usize> = before[0].iter().map(|one| one.0).filter(|node| !nodes[*node].0).collect();
        let left: Vec<usize> = all.iter().copied().filter(|node| !nodes[*node].0 && !first.contains(node)).collect();
        let lightest = left.iter().map(|node| nodes[*node].1).min().unwrap_or(u64::MAX);
        prop_assert!(weights(&first) <= lightest);
    }

    #[test]
    fn nodes_that_are_short_come_after_others_of_their_weight_and_are_offered_all_the_same(
        nodes in prop::collection::vec((prop::bool::weighted(0.2), 0u64..3, any::<bool>(), case()), 1..12),
    ) {
        let ranked = |with: bool| {
            let mut candidates = Candidates::default();
            for (node, (named, weight, short, case)) in nodes.iter().enumerate() {
                if let Some(part) = case.best() {
                    candidates.push(Candidate { node, named: *named, weight: *weight, short: with && *short, part });
                }
            }
            candidates.rank();
            let named = nodes.iter().filter(|(named, _, _, case)| *named && case.best().is_some()).count();
            let all = nodes.iter().filter(|node| node.3.best().is_some()).count();
            let attempts = candidates.attempts(Needs { nodes: all, named }, 0);
            attempts.map(|attempts| candidates.offered(attempts, 0).collect::<Vec<_>>()).unwrap_or_default()
        };
        let (bare, told) = (ranked(false), ranked(true));
        let sorted = |mut all: Vec<(usize, GresGpu)>| { all.sort_unstable(); all };
        prop_assert_eq!(sorted(bare.clone()), sorted(told.clone()));
        // What tells two of them apart before it, and it.
        let first = |node: usize| {
            let (named, weight, short, case) = &nodes[node];
            (!named, *weight, case.best().map(|part| part.degraded), *short)
        };
        prop_assert!(told.windows(2).all(|two| first(two[0].0) <= first(two[1].0)), "{:?}", told);
        // Among equals all is as it was.
        let alike = |list: &[(usize, GresGpu)], of: usize| -> Vec<usize> {
            list.iter().map(|one| one.0).filter(|node| first(*node) == first(of)).collect()
        };
        for (node, _) in &told {
            prop_assert_eq!(alike(&told, *node), alike(&bare, *node));
        }
    }
}
