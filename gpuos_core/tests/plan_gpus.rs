//! The choice of GPUs inside a node against brute force, for every set of free GPUs and every
//! size, on eight link matrices. The brute force is written from the documented objective: rings
//! by trying all orders, usability by trying all ways to put jobs on the free GPUs.

mod plan_support;

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuos_core::gpuset::GpuSet;
use gpuos_core::model::{Link, NodeType};
use gpuos_core::plan::{GpuShape, Planner};
use plan_support::*;
use proptest::prelude::*;

/// Ring, total, what stays usable, NUMA nodes, the set.
type Rank = (u64, u64, u64, Reverse<usize>, Reverse<u64>);

struct Brute<'a> {
    node: &'a NodeType,
    rings: HashMap<u64, u64>,
    usable: HashMap<u64, u64>,
}

impl<'a> Brute<'a> {
    fn new(node: &'a NodeType) -> Self {
        let mut brute = Brute {
            node,
            rings: HashMap::new(),
            usable: HashMap::new(),
        };
        for set in 1..1u64 << node.gpus {
            let ring = brute.ring(set);
            brute.rings.insert(set, ring);
        }
        brute
    }

    /// Hundredths of GB/s between two GPUs.
    fn pair(&self, a: usize, b: usize) -> u64 {
        let t = self.node;
        let gbps = match t.link(a, b) {
            Link::Same => 0.0,
            Link::Nv(n) => f32::from(n) * t.nvlink_gbps,
            Link::Pix => t.pcie_gbps,
            Link::Pxb => t.pcie_gbps * 0.95,
            Link::Phb => t.pcie_gbps * 0.90,
            Link::Node => t.pcie_gbps * 0.85,
            Link::Sys => t.socket_gbps.min(t.pcie_gbps * 0.80),
        };
        (f64::from(gbps) * 100.0).round() as u64
    }

    fn gpus(set: u64) -> Vec<usize> {
        (0..64).filter(|g| set >> g & 1 == 1).collect()
    }

    /// Narrowest link of the best order of the set in a ring.
    fn ring(&self, set: u64) -> u64 {
        fn walk(brute: &Brute, first: usize, at: usize, rest: &[usize], narrowest: u64) -> u64 {
            if rest.is_empty() {
                return narrowest.min(brute.pair(at, first));
            }
            let step = |i: usize| {
                let mut left = rest.to_vec();
                let next = left.remove(i);
                walk(
                    brute,
                    first,
                    next,
                    &left,
                    narrowest.min(brute.pair(at, next)),
                )
            };
            (0..rest.len()).map(step).max().unwrap()
        }
        let gpus = Self::gpus(set);
        match gpus.len() {
            1 => 0,
            _ => walk(self, gpus[0], gpus[0], &gpus[1..], u64::MAX),
        }
    }

    fn total(&self, set: u64) -> u64 {
        let gpus = Self::gpus(set);
        let above = |a: usize| {
            gpus.iter()
                .filter(move |&&b| b > a)
                .map(move |&b| self.pair(a, b))
        };
        gpus.iter().map(|&a| above(a).sum::<u64>()).sum()
    }

    /// Most that jobs of `size` GPUs are worth together on disjoint parts of `free`.
    fn packed(&self, free: u64, size: u32, best: u64, known: &mut HashMap<u64, u64>) -> u64 {
        if free.count_ones() < size {
            return 0;
        }
        if let Some(&value) = known.get(&free) {
            return value;
        }
        let mut most = 0;
        let mut job = free;
        while job != 0 {
            if job.count_ones() == size {
                let full = u64::from(size) * 1000;
                let share = full * self.rings[&job];
                let worth = share.checked_div(best).unwrap_or(full);
                most = most.max(worth + self.packed(free & !job, size, best, known));
            }
            job = (job - 1) & free;
        }
        known.insert(free, most);
        most
    }

    /// Thousandths of a GPU that the free set is worth to the next jobs.
    fn usable(&mut self, free: u64) -> u64 {
        if let Some(&value) = self.usable.get(&free) {
            return value;
        }
        let all = self.node.gpus as u32;
        let mut sizes: Vec<u32> = vec![1, 2, 4, 8, all];
        sizes.retain(|&s| s <= all);
        sizes.sort_unstable();
        sizes.dedup();
        let mut sum = 0;
        for &size in &sizes {
            let of_size = self
                .rings
                .iter()
                .filter(|(set, _)| set.count_ones() == size);
            let best = of_size.map(|(_, &ring)| ring).max().unwrap();
            sum += self.packed(free, size, best, &mut HashMap::new());
        }
        let value = sum / sizes.len() as u64;
        self.usable.insert(free, value);
        value
    }

    fn best(&mut self, free: u64, count: u32, linked: bool) -> Option<u64> {
        let mut best: Option<(Rank, u64)> = None;
        let mut set = free;
        while set != 0 {
            if set.count_ones() == count && (!linked || self.linked(set)) {
                let mut numa: Vec<u16> =
                    Self::gpus(set).iter().map(|&g| self.node.numa[g]).collect();
                numa.sort_unstable();
                numa.dedup();
                let key = (
                    self.rings[&set],
                    self.total(set),
                    self.usable(free & !set),
                    Reverse(numa.len()),
                    Reverse(set),
                );
                if best.is_none_or(|(known, _)| key > known) {
                    best = Some((key, set));
                }
            }
            set = (set - 1) & free;
        }
        best.map(|(_, set)| set)
    }

    fn linked(&self, set: u64) -> bool {
        let gpus = Self::gpus(set);
        gpus.iter().all(|&a| {
            gpus.iter()
                .all(|&b| a == b || matches!(self.node.link(a, b), Link::Nv(_)))
        })
    }
}

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
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_matrices_match_brute_force(kinds in prop::collection::vec(0u8..8, 15), gpus in 3usize..=6) {
        check_all(node_type("random", gpus, |a, b| match kinds[b * (b - 1) / 2 + a] {
            0 => Link::Pix,
            1 => Link::Pxb,
            2 => Link::Phb,
            3 => Link::Node,
            4 => Link::Sys,
            n => Link::Nv(n - 4),
        }));
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
