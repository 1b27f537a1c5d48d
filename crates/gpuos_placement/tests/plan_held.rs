//! Nodes that hold a job's checkpoints come first among equally good ones, and never before what lasts for the run.

use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_types;
use gpuos_placement::held::spared;
use gpuos_placement::plan::{Choice, Criterion, GpuShape, NodeState, Planner, Request};
use proptest::prelude::*;

use crate::plan_events::{build, rule, state};
use crate::plan_support::{idle, request, tree, wish};

fn hold(states: &mut [NodeState], nodes: &[usize]) {
    for (node, state) in states.iter_mut().enumerate() {
        let gib = if nodes.contains(&node) { 40 } else { 0 };
        state.set_spares(spared(gib, 40, 1024));
    }
}

pub fn nodes(choice: &Choice) -> Vec<u32> {
    choice.nodes.iter().map(|one| one.node).collect()
}

/// Six nodes in two leaves of three, in one spine.
pub fn planner() -> (Planner, Vec<NodeState>) {
    let dgx = node_types::by_name("dgx-h100").unwrap();
    let cluster = tree(dgx.clone(), 6, 3, 2);
    let states = idle(&cluster);
    (Planner::new(cluster), states)
}

pub fn planned(
    planner: &mut Planner,
    states: &[NodeState],
    asked: &Request,
) -> (Vec<u32>, Criterion) {
    let choice = planner.plan(states, asked, 0).unwrap();
    (nodes(choice), choice.decided)
}

#[test]
fn a_job_comes_back_to_where_its_data_is() {
    let (mut planner, mut states) = planner();
    let gang = request(3, GpuShape::PerNode(8));
    assert_eq!(planned(&mut planner, &states, &gang).0, [0, 1, 2]);
    hold(&mut states, &[3, 4, 5]);
    assert_eq!(
        planned(&mut planner, &states, &gang),
        (vec![3, 4, 5], Criterion::Fetch)
    );
    let one = request(1, GpuShape::PerNode(1));
    // The next best place is as good.
    assert_eq!(
        planned(&mut planner, &states, &one),
        (vec![3], Criterion::Index)
    );
    hold(&mut states, &[4]);
    assert_eq!(
        planned(&mut planner, &states, &one),
        (vec![4], Criterion::Fetch)
    );
    hold(&mut states, &[3, 4, 5]);
    // A holder is gone: the others, and the next node.
    states[4].candidate = false;
    let two = request(2, GpuShape::PerNode(8));
    assert_eq!(
        planned(&mut planner, &states, &two),
        (vec![3, 5], Criterion::Fetch)
    );
}

#[test]
fn it_breaks_up_an_idle_node_for_it_and_takes_the_fuller_of_two_that_hold_as_much() {
    let (mut planner, mut states) = planner();
    states[0].free = GpuSet(0xf);
    let one = request(1, GpuShape::PerNode(4));
    assert_eq!(planned(&mut planner, &states, &one).0, [0]);
    hold(&mut states, &[4, 5]);
    states[5].free = GpuSet(0xf);
    assert_eq!(planned(&mut planner, &states, &one).0, [5]);
}

#[test]
fn the_leaf_comes_before_the_data() {
    let (mut planner, mut states) = planner();
    // Two of its nodes are busy: with the third the gang would lie in two leaves.
    hold(&mut states, &[3, 4, 5]);
    states[3].free = GpuSet::EMPTY;
    states[4].free = GpuSet::EMPTY;
    let gang = request(2, GpuShape::PerNode(8));
    for asked in [
        gang.clone(),
        wish(gang.clone(), "leaf", true),
        wish(gang, "leaf", false),
    ] {
        let (nodes, _) = planned(&mut planner, &states, &asked);
        assert!(nodes.iter().all(|node| *node < 3), "{nodes:?}");
    }
    // Where it has to be two leaves, the one whose nodes hold most is taken whole.
    let mut states = idle(planner.cluster());
    hold(&mut states, &[2, 3, 4, 5]);
    let wide = request(4, GpuShape::PerNode(8));
    assert_eq!(planned(&mut planner, &states, &wide).0, [2, 3, 4, 5]);
}

#[test]
fn rules_and_worth_come_before_the_data() {
    let (mut planner, mut states) = planner();
    hold(&mut states, &[5]);
    states[5].set_rules(1);
    let one = request(1, GpuShape::PerNode(8));
    assert_eq!(planned(&mut planner, &states, &one).0, [0]);
    states[5].set_rules(0);
    states[5].set_cost(1);
    assert_eq!(planned(&mut planner, &states, &one).0, [0]);
    states[5].set_cost(0);
    assert_eq!(planned(&mut planner, &states, &one).0, [5]);
    let all = (states[5].rules(), states[5].cost(), states[5].spares());
    assert_eq!(all, (0, 0, 6));
    states[4].set_rules(9);
    states[4].set_cost(200);
    assert_eq!((states[4].rules(), states[4].cost()), (9, 200));
    assert_eq!(states[4].spares(), 0);
}

/// A job that asks for a place among random nodes.
#[derive(Clone, Debug)]
pub struct Case {
    places: Vec<(usize, u32)>,
    levels: usize,
    /// The nodes, as they are without any hint.
    pub states: Vec<NodeState>,
    /// What it asks for.
    pub request: Request,
}

/// Any of them.
pub fn case() -> impl Strategy<Value = Case> {
    let nodes = prop::collection::vec((0usize..3, 0u32..12, state()), 2..16);
    let shape = prop_oneof![
        (1u32..5).prop_map(GpuShape::PerNode),
        (1u32..12).prop_map(GpuShape::Total),
    ];
    let counts = (1u32..5, 0u32..2, any::<bool>());
    let all = (nodes, 0usize..4, rule(), shape, counts);
    all.prop_map(|(nodes, levels, rule, shape, (fewest, more, cost_first))| {
        let mut states: Vec<NodeState> = nodes.iter().map(|(.., state)| *state).collect();
        states.iter_mut().for_each(|state| state.set_spares(0));
        Case {
            places: nodes
                .iter()
                .map(|(kind, place, _)| (*kind, *place))
                .collect(),
            levels,
            states,
            request: Request {
                placement: rule,
                cost_first,
                ..Request::new(fewest, fewest + more, shape)
            },
        }
    })
}

impl Case {
    /// What is chosen without hints and with them, where there is a place: then there is one with them, too, for as many nodes, out of as many.
    pub fn chosen(&self, with: &[NodeState]) -> Option<[Choice; 2]> {
        let mut planner = Planner::new(build(&self.places, self.levels));
        let mut plan = |states: &[NodeState]| planner.plan(states, &self.request, 0).cloned();
        let (bare, told) = (plan(&self.states), plan(with));
        assert_eq!(bare.is_ok(), told.is_ok());
        let both = [bare.ok()?, told.ok()?];
        let [bare, told] = both.each_ref().map(|choice| {
            let count = choice.nodes.len();
            (count, choice.feasible_nodes, choice.feasible_domains)
        });
        assert_eq!(bare, told);
        Some(both)
    }

    /// Whether it has one node: what is shared out over nodes and domains of its own accord is only looked at as far as it is one figure.
    pub fn is_on_one_node(&self) -> bool {
        self.request.max_nodes == 1
    }
}

proptest! {
    /// Whatever lies where: the same jobs start, as close together, with as much bandwidth and as few rules against them.
    #[test]
    fn with_data_and_without_it_the_same_jobs_start_as_well(
        case in case(), held in prop::collection::vec(0u32..9, 16),
    ) {
        let mut with = case.states.clone();
        for (state, gib) in with.iter_mut().zip(&held) {
            state.set_spares(spared(*gib, 9, 100));
        }
        if let Some([bare, told]) = case.chosen(&with) && case.is_on_one_node() {
            let against = |choice: &Choice, of: fn(&NodeState) -> u8| of(&case.states[choice.nodes[0].node as usize]);
            prop_assert_eq!(against(&bare, NodeState::rules), against(&told, NodeState::rules));
            prop_assert_eq!(bare.bus_gbps, told.bus_gbps);
        }
    }
}
