//! Gangs that take a part of each node: the same GPUs, and so the same rails, wherever that costs
//! no bandwidth inside a node. Compared with all sets tried one by one.

use gpuos_model::cluster::{Link, Nic, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{GpuShape, NodeState, Planner};
use proptest::prelude::*;

use crate::plan_support::brute::Brute;
use crate::plan_support::*;

/// An adapter for each two GPUs.
fn railed(mut of: NodeType) -> NodeType {
    let near = |gpu, nic| match gpu / 2 == nic {
        true => Link::Pix,
        false => Link::Sys,
    };
    of.nics = (0..4)
        .map(|nic| Nic {
            name: format!("mlx5_{nic}"),
            numa: nic as u16 / 2,
            rail: nic as u16,
            gbps: 25.0,
            links: (0..8).map(|gpu| near(gpu, nic)).collect(),
        })
        .collect();
    of
}

/// What each node gives, by the rule and nothing else.
fn expected(brute: &mut Brute, free: &[u64], count: u32) -> Vec<u64> {
    let own: Vec<u64> = free
        .iter()
        .map(|&free| brute.best(free, count, false).unwrap())
        .collect();
    let gives = |brute: &Brute, node: usize, set: u64| {
        let links = |set| (brute.ring(set), brute.total(set));
        set & !free[node] == 0 && links(set) == links(own[node])
    };
    let mut best = None;
    for set in (1..256u64).filter(|set| set.count_ones() == count) {
        let nodes: Vec<usize> = (0..free.len()).filter(|&n| gives(brute, n, set)).collect();
        let lost: u64 = nodes
            .iter()
            .map(|&n| brute.usable(free[n]) - brute.usable(free[n] & !set))
            .sum();
        let key = (free.len() - nodes.len(), lost, set);
        if nodes.len() > 1 && best.is_none_or(|known| key < known) {
            best = Some(key);
        }
    }
    (0..free.len())
        .map(|node| match best {
            Some((_, _, set)) if gives(brute, node, set) => set,
            _ => own[node],
        })
        .collect()
}

fn gang(of: &NodeType, free: &[u64], count: u32) -> Vec<u64> {
    let nodes = free.len() as u32;
    let cluster = tree(of.clone(), nodes, nodes, 1);
    let mut states: Vec<NodeState> = idle(&cluster);
    for (state, &free) in states.iter_mut().zip(free) {
        state.free = GpuSet(free);
    }
    let mut planner = Planner::new(cluster);
    let request = request(nodes, GpuShape::PerNode(count));
    let choice = planner.plan(&states, &request, 0).unwrap();
    choice.nodes.iter().map(|node| node.gpus.0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_sets_are_those_that_most_nodes_can_give(
        kind in 0usize..4,
        free in prop::collection::vec(1u64..256, 2..6),
        count in 1u32..8,
    ) {
        let of = railed([nvswitch, pairs, quads, pcie][kind]());
        // Nodes with too few free GPUs have all.
        let free: Vec<u64> = free
            .iter()
            .map(|&free| if free.count_ones() < count { 255 } else { free })
            .collect();
        let want = expected(&mut Brute::new(&of), &free, count);
        prop_assert_eq!(gang(&of, &free, count), want);
    }
}

/// Two GPUs of each of three nodes, all on one pair and its adapter; a node that has no such pair
/// keeps the best that it has.
#[test]
fn parts_of_nodes_lie_on_one_rail() {
    let of = railed(pairs());
    let free = [0b0011_1100, 0b1100_1100, 0b0000_1111];
    assert_eq!(gang(&of, &free, 2), [0b1100; 3]);
    let free = [0b0011_1100, 0b1100_1100, 0b1100_0011];
    assert_eq!(gang(&of, &free, 2), [0b1100, 0b1100, 0b0000_0011]);
}
