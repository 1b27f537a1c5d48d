//! The choice of GPUs inside a node against brute force, for every set of free GPUs and every
//! size, on nine link matrices of 8 GPUs, and on random ones of 3 to 6 and of 9 to 16. The brute force is written from the documented objective: rings
//! by trying all orders, usability by trying all ways to put jobs on the free GPUs.

use gpuos_model::cluster::{Link, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{GpuShape, Planner};
use proptest::prelude::*;

use crate::plan_support::brute::Brute;
use crate::plan_support::*;

fn check(node: NodeType, free: u64, brute: &mut Brute, planner: &mut Planner) {
    let mut state = idle(planner.cluster());
    state[0].free = GpuSet(free);
    for count in 1..=free.count_ones() {
        let case = format!("{} free {} count {count}", node.name, GpuSet(free));
        let one = request(1, GpuShape::PerNode(count));
        let want = brute.best(free, count, false).unwrap();
        let got = planner.plan(&state, &one, 0).unwrap();
        assert_eq!(got.nodes[0].gpus, GpuSet(want), "{case}");
        assert_eq!(got.bus_gbps, brute.rings[&want] as f32 / 100.0, "{case}");
        let lost = brute.usable(free) - brute.usable(free & !want);
        assert_eq!(got.usability_lost, lost as f32 / 1000.0, "{case}");
        let nvlink = count > 1 && brute.linked(want);
        assert_eq!(got.reached, if nvlink { 0 } else { 1 }, "{case}");

        let joined = planner.plan(&state, &wish(one, "nvlink", true), 0).ok();
        let joined = joined.map(|choice| choice.nodes[0].gpus);
        assert_eq!(
            joined,
            brute.best(free, count, true).map(GpuSet),
            "{case}, NVLink required"
        );
    }
}

fn check_all(node: NodeType) {
    let mut planner = Planner::new(tree(node.clone(), 1, 1, 1));
    let mut brute = Brute::new(&node);
    for free in 1..1u64 << node.gpus {
        check(node.clone(), free, &mut brute, &mut planner);
    }
}

#[test]
fn nvswitch_nodes_match_brute_force() {
    check_all(nvswitch());
}

#[test]
fn cube_mesh_nodes_match_brute_force() {
    check_all(cube_mesh());
}

#[test]
fn pair_linked_nodes_match_brute_force() {
    check_all(pairs());
}

#[test]
fn pcie_nodes_match_brute_force() {
    check_all(pcie());
}

#[test]
fn pcie_switch_nodes_match_brute_force() {
    check_all(switches());
}

#[test]
fn quad_linked_nodes_match_brute_force() {
    check_all(quads());
}

#[test]
fn irregular_nodes_match_brute_force() {
    check_all(irregular());
}

/// A ring of NVLinks, as in machines whose GPUs are only linked to their neighbours.
#[test]
fn ring_linked_nodes_match_brute_force() {
    check_all(node_type("ring", 8, |a, b| match b - a {
        1 | 7 => Link::Nv(2),
        _ if a / 4 == b / 4 => Link::Node,
        _ => Link::Sys,
    }));
}

/// Five GPUs on one switch and three on another, with one bridge between them.
#[test]
fn uneven_islands_match_brute_force() {
    check_all(node_type("uneven", 8, |a, b| match (a, b) {
        (4, 5) => Link::Nv(1),
        _ if (a < 5) == (b < 5) => Link::Nv(6),
        _ => Link::Phb,
    }));
}

#[test]
fn small_nodes_match_brute_force() {
    for gpus in 1..=6 {
        check_all(node_type("small", gpus, |a, b| {
            if a / 3 == b / 3 {
                Link::Nv(2)
            } else {
                Link::Sys
            }
        }));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_matrices_match_brute_force(kinds in prop::collection::vec(0u8..8, 15), gpus in 3usize..=6) {
        check_all(node_type("random", gpus, |a, b| kind(kinds[b * (b - 1) / 2 + a])));
    }
}

/// The link for a number from 0 to 7.
fn kind(kind: u8) -> Link {
    match kind {
        0 => Link::Pix,
        1 => Link::Pxb,
        2 => Link::Phb,
        3 => Link::Node,
        4 => Link::Sys,
        n => Link::Nv(n - 4),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every figure, on nodes whose sets can all be looked at.
    #[test]
    fn nodes_with_nine_to_eleven_gpus_match_brute_force(
        kinds in prop::collection::vec(0u8..8, 55),
        gpus in 9usize..=11,
        masks in prop::collection::vec(1u64..2048, 6),
    ) {
        let node = node_type("wide", gpus, |a, b| kind(kinds[b * (b - 1) / 2 + a]));
        let mut planner = Planner::new(tree(node.clone(), 1, 1, 1));
        let mut brute = Brute::new(&node);
        for mask in masks {
            let free = mask & ((1 << gpus) - 1);
            check(node.clone(), free.max(1), &mut brute, &mut planner);
        }
    }

    /// The links, on nodes of up to 16: no free set has a better ring, nor more links at the same.
    #[test]
    fn nodes_with_twelve_to_sixteen_gpus_have_the_best_links(
        kinds in prop::collection::vec(0u8..8, 120),
        gpus in 12usize..=16,
        masks in prop::collection::vec(any::<[u16; 2]>(), 3),
    ) {
        let node = node_type("wide", gpus, |a, b| kind(kinds[b * (b - 1) / 2 + a]));
        let mut planner = Planner::new(tree(node.clone(), 1, 1, 1));
        let brute = Brute::lazy(&node);
        let mut state = idle(planner.cluster());
        for [a, b] in masks {
            // Half of the GPUs, so that all subsets can be tried.
            let free = u64::from(a & b) & ((1 << gpus) - 1);
            state[0].free = GpuSet(free);
            for count in 1..=free.count_ones() {
                let got = planner.plan(&state, &request(1, GpuShape::PerNode(count)), 0).unwrap();
                let got = got.nodes[0].gpus;
                prop_assert!(got.minus(GpuSet(free)).is_empty() && got.len() as u32 == count);
                let mut best = (0, 0);
                let mut set = free;
                while set != 0 {
                    if set.count_ones() == count {
                        best = best.max((brute.ring(set), brute.total(set)));
                    }
                    set = (set - 1) & free;
                }
                prop_assert_eq!((brute.ring(got.0), brute.total(got.0)), best);
            }
        }
    }
}

/// Twelve GPUs: the answers are searched when asked, not beforehand.
#[test]
fn nodes_with_twelve_gpus_are_exact_too() {
    let node = node_type("twelve", 12, |a, b| {
        match (a / 3 == b / 3, a / 6 == b / 6) {
            (true, _) => Link::Nv(2),
            (_, true) => Link::Pxb,
            _ => Link::Sys,
        }
    });
    let mut planner = Planner::new(tree(node, 1, 1, 1));
    let mut state = idle(planner.cluster());
    for (free, count, want) in [
        (0b111_111_111_111, 3, 0b000_000_000_111),
        (0b111_111_111_011, 3, 0b000_000_111_000),
        (0b111_111_011_011, 6, 0b111_111_000_000),
        (0b001_111_011_011, 2, 0b000_000_000_011),
        (0b101_111_000_111, 1, 0b000_000_000_001),
        (0b111_111_111_111, 9, 0b000_111_111_111),
    ] {
        state[0].free = GpuSet(free);
        // Twice: the second answer comes from the table.
        for _ in 0..2 {
            let one = request(1, GpuShape::PerNode(count));
            let got = planner.plan(&state, &one, 0).unwrap();
            assert_eq!(got.nodes[0].gpus, GpuSet(want), "free {}", GpuSet(free));
        }
    }
}

/// More GPUs than tables can hold: still whole islands, and never a GPU that is not free.
#[test]
fn nodes_with_many_gpus_keep_islands_together() {
    let node = node_type("many", 64, |a, b| {
        if a / 8 == b / 8 {
            Link::Nv(4)
        } else {
            Link::Sys
        }
    });
    let mut planner = Planner::new(tree(node, 1, 1, 1));
    let mut state = idle(planner.cluster());
    state[0].free = GpuSet(!0b1);
    for (count, want) in [(8, 0xff00), (1, 0b10), (7, 0xfe), (2, 0b110)] {
        let one = request(1, GpuShape::PerNode(count));
        let got = planner.plan(&state, &one, 0).unwrap();
        assert_eq!(got.nodes[0].gpus, GpuSet(want), "count {count}");
        assert_eq!(got.bus_gbps, if count == 1 { 0.0 } else { 80.0 });
    }
    let far = wish(request(1, GpuShape::PerNode(9)), "nvlink", true);
    assert!(planner.plan(&state, &far, 0).is_err());
}
