//! What users see of the planner: where jobs go, and why they wait.

mod plan_support;

use gpuos_core::gpuset::GpuSet;
use gpuos_core::plan::{Choice, GpuShape, NodeState, Planner, Request, Unit, Wait};
use plan_support::*;

fn plan(planner: &mut Planner, state: &[NodeState], request: &Request) -> Choice {
    match planner.plan(state, request, 0) {
        Ok(choice) => choice.clone(),
        Err(wait) => panic!("no choice: {wait:?}"),
    }
}

fn nodes(choice: &Choice) -> Vec<u32> {
    choice.nodes.iter().map(|c| c.node).collect()
}

fn take(state: &mut NodeState, mask: u64) {
    state.free = state.free.minus(GpuSet(mask));
}

#[test]
fn two_gpus_of_a_pair_linked_node_are_a_pair() {
    let cluster = tree(pairs(), 1, 1, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[0], 0b0000_0001);
    let choice = plan(&mut planner, &state, &request(1, GpuShape::PerNode(2)));
    assert_eq!(choice.nodes[0].gpus, GpuSet(0b0000_1100));
    assert_eq!(choice.reached, 0);
    assert_eq!(choice.bus_gbps, 80.0);
}

#[test]
fn four_gpus_of_a_pair_linked_node_are_two_pairs_of_one_socket() {
    let cluster = tree(pairs(), 1, 1, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[0], 0b0000_0001);
    let choice = plan(&mut planner, &state, &request(1, GpuShape::PerNode(4)));
    assert_eq!(choice.nodes[0].gpus, GpuSet(0b1111_0000));
    assert_eq!(choice.reached, 1);
}

#[test]
fn one_gpu_goes_where_it_breaks_no_pair() {
    let cluster = tree(pairs(), 3, 3, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[1], 0b0001_0000);
    let one = request(1, GpuShape::PerNode(1));
    let choice = plan(&mut planner, &state, &one);
    assert_eq!(
        (nodes(&choice), choice.nodes[0].gpus),
        (vec![1], GpuSet(0b0010_0000))
    );
}

#[test]
fn a_gang_lands_in_the_one_leaf_with_room_though_lower_nodes_are_free() {
    let cluster = tree(nvswitch(), 40, 10, 2);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    // Only leaf 2 has eight whole nodes; elsewhere seven each.
    for node in [0, 5, 9, 11, 12, 13, 30, 31, 32] {
        take(&mut state[node], 1);
    }
    let gang = request(8, GpuShape::PerNode(8));
    let choice = plan(&mut planner, &state, &gang);
    assert_eq!(nodes(&choice), (20..28).collect::<Vec<_>>());
    assert_eq!((choice.reached, choice.domain), (2, Some(2)));
    assert_eq!(choice.feasible_nodes, 31);
    assert_eq!(choice.feasible_domains, 1);
    assert_eq!(choice.bus_gbps, 25.0);
}

#[test]
fn a_gang_takes_the_leaf_that_it_fills_best() {
    let cluster = tree(nvswitch(), 32, 8, 2);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    for node in [16, 17, 18, 24] {
        take(&mut state[node], 0xff);
    }
    let choice = plan(&mut planner, &state, &request(5, GpuShape::PerNode(8)));
    assert_eq!(nodes(&choice), vec![19, 20, 21, 22, 23]);
}

#[test]
fn required_waits_where_preferred_goes_wider() {
    let cluster = tree(nvswitch(), 16, 8, 2);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    for node in [0, 1, 2, 8, 9] {
        take(&mut state[node], 0xf0);
    }
    let gang = request(8, GpuShape::PerNode(8));
    let wait = planner.plan(&state, &wish(gang.clone(), "leaf", true), 0);
    assert_eq!(
        wait.err(),
        Some(Wait::Level {
            level: "leaf".into(),
            best_domain: "leaf1".into(),
            unit: Unit::Nodes,
            have: 6,
            need: 8,
        })
    );
    let choice = plan(&mut planner, &state, &wish(gang, "leaf", false));
    assert_eq!((choice.reached, choice.domain), (3, Some(0)));
    // The larger leaf whole, the rest from the other.
    assert_eq!(nodes(&choice), vec![3, 4, 10, 11, 12, 13, 14, 15]);
}
