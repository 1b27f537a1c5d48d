//! What is kept for jobs that wait, against brute force.

use std::sync::Arc;

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{Coming, Ending, Foresight, NodeState, Planner, keep};
use proptest::prelude::*;

use crate::plan_support;
use crate::plan_support::nvswitch;

const GPUS: u32 = 8;

/// Nodes with some GPUs free, some of them no candidates, and jobs that give GPUs back.
fn cluster() -> impl Strategy<Value = (Vec<NodeState>, Vec<Ending>)> {
    let job = (0..20i64, 0..6u32, 1..=GPUS);
    (
        prop::collection::vec(any::<(bool, u8, u8)>(), 6),
        prop::collection::vec(job, 0..24),
    )
        .prop_map(|(nodes, jobs)| {
            let mut states: Vec<NodeState> = nodes
                .iter()
                .map(|&(candidate, lost, penalty)| NodeState {
                    candidate,
                    present: GpuSet::first(GPUS as usize),
                    // Some that are taken belong to no job that is known.
                    free: GpuSet::first(GPUS as usize - usize::from(lost % 4)),
                    penalty: u16::from(penalty % 2),
                    ..NodeState::default()
                })
                .collect();
            let mut endings = Vec::new();
            for (at, node, gpus) in jobs {
                let free = &mut states[node as usize].free;
                let gpus = gpus.min(free.len() as u32);
                if gpus > 0 {
                    *free = GpuSet::first(free.len() - gpus as usize);
                    endings.push(Ending { at, node, gpus });
                }
            }
            endings.sort_by_key(|ending| ending.at);
            (states, endings)
        })
}

/// GPUs of a node that no known job holds past a time.
fn free_at(state: &NodeState, endings: &[Ending], node: usize, at: i64) -> u32 {
    let held = endings
        .iter()
        .filter(|e| e.node as usize == node && e.at > at);
    GPUS.min(state.present.len() as u32) - held.map(|e| e.gpus).sum::<u32>()
}

proptest! {
    #[test]
    fn the_moment_is_the_earliest_and_the_busiest_are_kept(
        (states, endings) in cluster(),
        from in 0..20i64,
        nodes in 1..5u32,
        each in 1..=GPUS,
    ) {
        let able = |at: i64| -> Vec<Coming> {
            let candidates = states.iter().enumerate().filter(|(_, state)| state.candidate);
            let coming = candidates.map(|(node, state)| Coming {
                penalty: state.against(),
                now: state.free.len() as u32,
                then: free_at(state, &endings, node, at),
                node: node as u32,
            });
            coming.filter(|coming| coming.then >= each).collect()
        };
        let moments = std::iter::once(from).chain(endings.iter().map(|e| e.at).filter(|at| *at > from));
        let expected = moments.into_iter().find(|at| able(*at).len() >= nodes as usize);
        let mut foresight = Foresight::default();
        // The second time with buffers that were used.
        for _ in 0..2 {
            let found = foresight.find(&states, &endings, from, nodes, each);
            let found = found.map(|(at, kept)| (at, kept.to_vec()));
            prop_assert_eq!(found.as_ref().map(|(at, _)| *at), expected);
            let Some((at, kept)) = found else { continue };
            let mut best = able(at);
            best.sort();
            best.truncate(nodes as usize);
            best.sort_by_key(|coming| coming.node);
            prop_assert_eq!(kept, best);
        }
    }
}

#[test]
fn fewest_free_now_then_least_left_over() {
    let coming = |node, now, then| Coming {
        penalty: 0,
        now,
        then,
        node,
    };
    let all = [
        coming(0, 3, 4),
        coming(1, 0, 8),
        coming(2, 0, 4),
        coming(3, 0, 8),
    ];
    for (nodes, expected) in [
        (1, vec![2]),
        (2, vec![1, 2]),
        (3, vec![1, 2, 3]),
        (4, vec![0, 1, 2, 3]),
    ] {
        let mut able = all.to_vec();
        assert!(keep(&mut able, nodes));
        let kept: Vec<u32> = able.iter().map(|coming| coming.node).collect();
        assert_eq!(kept, expected);
    }
    assert!(!keep(&mut all.to_vec(), 5));
    assert!(!keep(&mut all.to_vec(), 0));
}

#[test]
fn what_nobody_is_known_to_hold_is_no_reason_to_wait() {
    // Two GPUs are taken, and no job is known to hold them.
    let state = NodeState {
        candidate: true,
        present: GpuSet::first(4),
        free: GpuSet::first(2),
        ..NodeState::default()
    };
    let mut foresight = Foresight::default();
    let (moment, kept) = foresight.find(&[state], &[], 7, 1, 4).expect("comes");
    assert_eq!((moment, kept[0].now, kept[0].then), (7, 2, 4));
    assert!(foresight.find(&[state], &[], 7, 1, 5).is_none());
    assert!(foresight.find(&[state], &[], 7, 2, 1).is_none());
}

#[test]
fn large_gangs_are_left_to_the_scheduler() {
    let leaves = |name| {
        let one = Arc::new(nvswitch());
        let nodes = vec![one; 64];
        let of = (0..64).map(|node| node / 16).collect();
        plan_support::cluster(&nodes, &[(name, of)])
    };
    let asked = |planner: &Planner| [1, 2, 4, 5, 16, 64].map(|nodes| planner.keeps_busiest(nodes));
    assert_eq!(
        asked(&Planner::new(leaves("leaf"))),
        [true, true, true, false, false, false]
    );
    assert_eq!(
        asked(&Planner::new(leaves("nvlink"))),
        [true, false, false, false, false, false]
    );
}
