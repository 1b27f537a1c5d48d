//! Gangs on clusters whose narrowest level is that of NVLink domains, and jobs that fill gaps until
//! others end.

use gpuos_model::cluster::{Cluster, Link};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{
    Choice, Criterion, GpuShape, NodeState, Placement, Planner, Request, quarters,
};
use proptest::prelude::*;

use crate::plan_support::*;

/// Racks of `rack` trays with 4 GPUs, `leaf` racks to a leaf.
fn racks(count: u32, rack: u32, leaf: u32) -> Cluster {
    let tray = std::sync::Arc::new(node_type("tray", 4, |_, _| Link::Nv(18)));
    let types: Vec<_> = (0..count * rack).map(|_| tray.clone()).collect();
    let domain = |nodes: u32| (0..count * rack).map(|n| n / nodes).collect();
    cluster(
        &types,
        &[("nvlink", domain(rack)), ("leaf", domain(rack * leaf))],
    )
}

/// The states when `free[r]` trays of rack `r` are idle and the others are full.
fn idle_in(cluster: &Cluster, rack: u32, free: &[u32]) -> Vec<NodeState> {
    let mut states = idle(cluster);
    for (node, state) in states.iter_mut().enumerate() {
        let node = node as u32;
        if node % rack >= free[(node / rack) as usize] {
            take(state, 0b1111);
        }
    }
    states
}

fn take(state: &mut NodeState, gpus: u64) {
    state.free = GpuSet(state.free.0 & !gpus);
}

fn touched(choice: &Choice, width: u32) -> usize {
    let mut racks: Vec<u32> = choice.nodes.iter().map(|at| at.node / width).collect();
    racks.dedup();
    racks.len()
}

fn gang(nodes: u32) -> Request {
    request(nodes, GpuShape::PerNode(4))
}

#[test]
fn fewer_nvlink_domains_come_before_one_leaf() {
    let cluster = racks(6, 6, 3);
    // The first leaf has room for six in three racks, the site has it in two.
    let states = idle_in(&cluster, 6, &[2, 2, 2, 4, 0, 2]);
    let mut planner = Planner::new(cluster.clone());
    let mut planned = |job: &Request, skip| planner.plan(&states, job, skip).unwrap().clone();
    let choice = planned(&gang(6), 0);
    assert_eq!(touched(&choice, 6), 2);
    assert_eq!(choice.reached, 3, "both racks lie in the second leaf");

    let states = idle_in(&cluster, 6, &[2, 2, 2, 4, 1, 0]);
    let mut planned = |job: &Request, skip| planner.plan(&states, job, skip).unwrap().clone();
    let choice = planned(&gang(6), 0);
    assert_eq!((touched(&choice, 6), choice.reached), (2, 4));
    // The leaf comes after it and after other nodes of the same racks.
    let choice = planned(&gang(6), 2);
    assert_eq!((touched(&choice, 6), choice.reached), (3, 3));
    // A job that asks for a leaf gets it, and so does one that takes what comes first.
    for job in [
        wish(gang(6), "leaf", false),
        wish(gang(6), "leaf", true),
        Request {
            placement: Placement::FirstFit,
            ..gang(6)
        },
    ] {
        assert_eq!(planned(&job, 0).reached, 3, "{job:?}");
    }
    let far = wish(gang(6), "any", false);
    assert_eq!(touched(&planned(&far, 0), 6), 2);
}

proptest! {
    #[test]
    fn a_gang_touches_as_few_nvlink_domains_as_there_can_be(
        free in prop::collection::vec(0u32..=6, 8),
        wanted in 2u32..=20,
    ) {
        let cluster = racks(8, 6, 3);
        let states = idle_in(&cluster, 6, &free);
        let mut planner = Planner::new(cluster);
        let got = planner.plan(&states, &gang(wanted), 0).ok().map(|choice| touched(choice, 6));
        let mut most = free.clone();
        most.sort_unstable_by(|a, b| b.cmp(a));
        let mut room = 0;
        let fewest = most.iter().position(|here| { room += here; room >= wanted });
        prop_assert_eq!(got, fewest.map(|last| last + 1));
    }
}

#[test]
fn backfill_takes_the_node_that_others_keep_for_as_long() {
    let cluster = tree(nvswitch(), 8, 4, 2);
    let mut planner = Planner::new(cluster.clone());
    let mut states = idle(&cluster);
    let hour = 3600;
    for (node, hours) in [(0, 1), (1, 30), (2, 9), (4, 40)] {
        take(&mut states[node], 0b1);
        states[node].until = quarters(hours * hour);
    }
    let mut job = request(1, GpuShape::PerNode(1));
    job.until = quarters(8 * hour);
    let mut planned = |states: &[NodeState], job: &Request| {
        let choice = planner.plan(states, job, 0).unwrap();
        (choice.nodes[0].node, choice.decided)
    };
    assert_eq!(planned(&states, &job), (0, Criterion::Index));
    job.placement = Placement::Backfill;
    // Node 1 is busy for longer still, and has the lower index than node 2.
    assert_eq!(planned(&states, &job), (1, Criterion::Index));
    states[2].until = quarters(2 * hour);
    assert_eq!(planned(&states, &job), (1, Criterion::Ends));
    // The leaf counts before it: node 4 is in another one.
    states[1].until = quarters(2 * hour);
    assert_eq!(planned(&states, &job), (0, Criterion::Index));
    // Without times it is the default rule.
    job.until = 0;
    states[1].until = quarters(30 * hour);
    assert_eq!(planned(&states, &job).0, 0);
}

#[test]
fn moments_are_quarters_of_an_hour_rounded_up() {
    let moments = [i64::MIN, 0, 1, 900, 901, 1_800_000_000, i64::MAX];
    assert_eq!(moments.map(quarters), [1, 1, 1, 1, 2, 2_000_000, u32::MAX]);
}
