//! The choice of GPUs inside a node by trying everything.

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuos_model::cluster::{Link, NodeType};

/// Ring, total, what stays usable, NUMA nodes, the set.
type Rank = (u64, u64, u64, Reverse<usize>, Reverse<u64>);

/// Answers of one node type, from the documented objective and nothing else.
pub struct Brute<'a> {
    node: &'a NodeType,
    pub rings: HashMap<u64, u64>,
    usable: HashMap<u64, u64>,
}

impl<'a> Brute<'a> {
    /// Without any answer yet: for nodes with too many sets to try all.
    pub fn lazy(node: &'a NodeType) -> Self {
        Brute {
            node,
            rings: HashMap::new(),
            usable: HashMap::new(),
        }
    }

    pub fn new(node: &'a NodeType) -> Self {
        let mut brute = Brute::lazy(node);
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

    /// Narrowest link of the best order of the set in a ring: all orders are tried, but for those
    /// that begin worse than the best one known.
    pub fn ring(&self, set: u64) -> u64 {
        fn walk(brute: &Brute, ends: (usize, usize), rest: u64, narrowest: u64, best: &mut u64) {
            let (first, at) = ends;
            if rest == 0 {
                *best = (*best).max(narrowest.min(brute.pair(at, first)));
                return;
            }
            for next in Brute::gpus(rest) {
                let narrowest = narrowest.min(brute.pair(at, next));
                if narrowest > *best {
                    walk(brute, (first, next), rest & !(1 << next), narrowest, best);
                }
            }
        }
        let first = set.trailing_zeros() as usize;
        let mut best = 0;
        if set.count_ones() > 1 {
            walk(self, (first, first), set & (set - 1), u64::MAX, &mut best);
        }
        best
    }

    pub fn total(&self, set: u64) -> u64 {
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
    pub fn usable(&mut self, free: u64) -> u64 {
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

    /// Takes these values of the free sets in place of its own.
    pub fn learn(&mut self, values: &[u32]) {
        let values = values.iter().enumerate();
        self.usable = values.map(|(set, &v)| (set as u64, u64::from(v))).collect();
    }

    pub fn best(&mut self, free: u64, count: u32, linked: bool) -> Option<u64> {
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

    pub fn linked(&self, set: u64) -> bool {
        let gpus = Self::gpus(set);
        gpus.iter().all(|&a| {
            gpus.iter()
                .all(|&b| a == b || matches!(self.node.link(a, b), Link::Nv(_)))
        })
    }
}
