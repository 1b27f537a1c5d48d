//! Nodes that are short of host memory come after others for jobs that may need some, and no job waits for that.

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{Choice, Criterion, GpuShape, NodeState};
use proptest::prelude::*;

use crate::plan_held::{case, planned, planner};
use crate::plan_support::{idle, request, wish};

fn short(states: &mut [NodeState], nodes: &[usize]) {
    nodes.iter().for_each(|node| states[*node].add_rule());
}

#[test]
fn a_job_goes_around_nodes_that_are_short_while_others_have_room() {
    let (mut planner, mut states) = planner();
    let one = request(1, GpuShape::PerNode(8));
    assert_eq!(planned(&mut planner, &states, &one).0, [0]);
    short(&mut states, &[0, 1, 3, 4, 5]);
    assert_eq!(
        planned(&mut planner, &states, &one),
        (vec![2], Criterion::Penalty)
    );
    let mut states = idle(planner.cluster());
    short(&mut states, &[0, 1]);
    // Breaking up an idle node is the lesser evil.
    states[1].free = GpuSet(0xf);
    let half = request(1, GpuShape::PerNode(4));
    assert_eq!(planned(&mut planner, &states, &half).0, [2]);
    // Where all others are full it starts there.
    for state in &mut states[2..] {
        state.free = GpuSet::EMPTY;
    }
    assert_eq!(planned(&mut planner, &states, &one).0, [0]);
    assert_eq!(planned(&mut planner, &states, &half).0, [1]);
}

#[test]
fn the_leaf_comes_before_it_and_it_counts_as_a_rule_does() {
    let (mut planner, mut states) = planner();
    let gang = request(3, GpuShape::PerNode(8));
    short(&mut states, &[0]);
    assert_eq!(planned(&mut planner, &states, &gang).0, [3, 4, 5]);
    states[5].free = GpuSet::EMPTY;
    for asked in [gang.clone(), wish(gang, "leaf", true)] {
        assert_eq!(planned(&mut planner, &states, &asked).0, [0, 1, 2]);
    }
    // A node from which a rule would rather keep the job is as good as one that is short, and both together are worse.
    let mut states = idle(planner.cluster());
    for state in &mut states[..5] {
        state.set_rules(1);
    }
    short(&mut states, &[0, 5]);
    let one = request(1, GpuShape::PerNode(8));
    assert_eq!(planned(&mut planner, &states, &one).0, [1]);
    assert_eq!([0, 1, 5].map(|at: usize| states[at].rules()), [2, 1, 1]);
    for _ in 0..20 {
        states[5].add_rule();
    }
    states[5].set_cost(3);
    assert_eq!((states[5].rules(), states[5].cost()), (15, 3));
}

proptest! {
    /// Whichever are short: the same jobs start, as close together, and none on a worse node than it would have had.
    #[test]
    fn with_nodes_that_are_short_and_without_the_same_jobs_start(
        case in case(), nodes in prop::collection::vec(any::<bool>(), 16),
    ) {
        let mut with = case.states.clone();
        let marked = with.iter_mut().zip(&nodes).filter(|(_, short)| **short);
        marked.for_each(|(state, _)| state.add_rule());
        if let Some([bare, told]) = case.chosen(&with) && case.is_on_one_node() {
            let against = |choice: &Choice| with[choice.nodes[0].node as usize].rules();
            prop_assert_eq!(bare.bus_gbps, told.bus_gbps);
            prop_assert!(against(&told) <= against(&bare), "{:?} for {:?}", told, bare);
        }
    }
}
