//! The choice of GPUs inside one node.
//!
//! For a set of free GPUs and a number `k`, the best `k` GPUs are those with
//!
//! 1. the highest *ring*: the best narrowest link that a ring over all of them can have (for two
//!    GPUs their link, for one GPU 0);
//! 2. then the highest *total*: the sum of the bandwidths of all pairs;
//! 3. then the highest *usability* of the GPUs that stay free (see [`GpuTable::usable`]);
//! 4. then the fewest NUMA nodes;
//! 5. then the smallest set as a binary number (its highest GPU index is lowest).
//!
//! Up to [`EXACT_GPUS`] GPUs this is exact, for any link matrix, from tables over all sets of
//! GPUs of the node type. Larger nodes are handled in [`super::large`].

use super::large;
use super::links::{nvlinked, pair_units};
use crate::gpuset::GpuSet;
use crate::model::NodeType;

/// Up to this many GPUs per node the choice is exact.
pub const EXACT_GPUS: usize = 16;
/// Up to this many GPUs per node all answers are computed when the planner is made.
const EAGER_GPUS: usize = 8;
/// Usability is counted in thousandths of a GPU.
pub const MILLI: u32 = 1000;

/// The best set for one question, and its figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pick {
    /// The GPUs.
    pub set: GpuSet,
    /// Narrowest link of its best ring, in hundredths of GB/s.
    pub ring: u32,
    /// Sum of the bandwidths of all its pairs, in hundredths of GB/s.
    pub total: u32,
    /// Usability that the free set loses, in thousandths of a GPU.
    pub lost: u32,
}

/// What the planner knows about the GPUs of one node type.
#[derive(Debug)]
pub struct GpuTable {
    /// Number of GPUs, and the set of all of them.
    pub gpus: usize,
    pub all: GpuSet,
    /// Bandwidth of each pair: `pairs[a * gpus + b]`.
    pub pairs: Vec<u32>,
    /// GPUs that each GPU has NVLinks to.
    pub nvlink: Vec<u64>,
    /// Sizes of the typical mix of jobs: 1, 2, 4, 8 and the whole node.
    pub sizes: Vec<usize>,
    numa: Vec<u8>,
    /// By set of GPUs; empty above [`EXACT_GPUS`].
    ring: Vec<u32>,
    total: Vec<u32>,
    usable: Vec<u32>,
    /// Answers by free set and number of GPUs; 0 = not computed yet.
    best: Vec<u16>,
    /// The same among sets with NVLink between all pairs; empty when that makes no difference.
    best_linked: Vec<u16>,
    /// Largest sets with NVLink between all pairs.
    pub islands: Vec<GpuSet>,
    /// Instead of the tables above [`EXACT_GPUS`].
    pub rates: large::Rates,
}

impl GpuTable {
    /// Computes the tables of a node type.
    pub fn new(node_type: &NodeType) -> GpuTable {
        let gpus = node_type.gpus.min(crate::gpuset::MAX_GPUS);
        let mut pairs = vec![0; gpus * gpus];
        let mut nvlink = vec![0u64; gpus];
        for a in 0..gpus {
            for b in (0..gpus).filter(|&b| b != a) {
                pairs[a * gpus + b] = pair_units(node_type, a, b);
                if nvlinked(node_type, a, b) {
                    nvlink[a] |= 1 << b;
                }
            }
        }
        let mut sizes: Vec<usize> = [1, 2, 4, 8].into_iter().filter(|&s| s < gpus).collect();
        sizes.extend((gpus > 0).then_some(gpus));
        let mut ids: Vec<u16> = node_type.numa.clone();
        ids.sort_unstable();
        ids.dedup();
        let numa = (0..gpus)
            .map(|g| {
                let id = node_type.numa.get(g).copied().unwrap_or(0);
                ids.iter().position(|&i| i == id).unwrap_or(0).min(63) as u8
            })
            .collect();
        let mut table = GpuTable {
            gpus,
            all: GpuSet::first(gpus),
            pairs,
            nvlink,
            sizes,
            numa,
            ring: Vec::new(),
            total: Vec::new(),
            usable: Vec::new(),
            best: Vec::new(),
            best_linked: Vec::new(),
            islands: Vec::new(),
            rates: large::Rates::default(),
        };
        table.islands = islands(&table);
        if gpus <= EXACT_GPUS {
            table.ring = rings(&table);
            table.total = totals(&table);
            table.usable = usabilities(&table);
            table.fill();
        } else {
            table.rates = large::Rates::new(gpus, &table.pairs, &table.sizes);
        }
        table
    }

    fn fill(&mut self) {
        let slots = (1usize << self.gpus) * (self.gpus + 1);
        self.best = vec![0; slots];
        if !self.linked(self.all) && self.nvlink.iter().any(|&n| n != 0) {
            self.best_linked = vec![0; slots];
        }
        if self.gpus > EAGER_GPUS {
            return;
        }
        for free in 1..1u64 << self.gpus {
            for count in 1..=free.count_ones() {
                self.best(GpuSet(free), count as usize, false);
                self.best(GpuSet(free), count as usize, true);
            }
        }
    }

    /// Whether all pairs of the set have NVLink; true for a single GPU.
    pub fn linked(&self, set: GpuSet) -> bool {
        set.iter()
            .all(|gpu| set.0 & !(1 << gpu) & !self.nvlink[gpu] == 0)
    }

    /// Narrowest link of the best ring over the set, in hundredths of GB/s; 0 for one GPU.
    pub fn ring(&self, set: GpuSet) -> u32 {
        match self.ring.get(set.0 as usize) {
            Some(&ring) => ring,
            None => large::ring(self, set),
        }
    }

    /// Sum of the bandwidths of all pairs of the set, in hundredths of GB/s.
    pub fn total(&self, set: GpuSet) -> u32 {
        match self.total.get(set.0 as usize) {
            Some(&total) => total,
            None => large::total(self, set),
        }
    }

    /// What a free set is worth for the next jobs, in thousandths of a GPU.
    ///
    /// For each size of the typical mix (1, 2, 4, 8 GPUs and the whole node, equally likely): the
    /// GPUs that jobs of that size could take from the set without sharing, each job counted by
    /// its size times its ring over the best ring that this size has on the empty node. The
    /// value is the mean over the sizes.
    pub fn usable(&self, free: GpuSet) -> u32 {
        match self.usable.get(free.0 as usize) {
            Some(&usable) => usable,
            None => large::usable(self, free),
        }
    }

    /// Number of NUMA nodes that the set touches.
    pub fn numa_nodes(&self, set: GpuSet) -> u32 {
        let touched = set.iter().fold(0u64, |acc, g| acc | 1 << self.numa[g]);
        touched.count_ones()
    }

    /// The figures of taking `set` out of `free`.
    pub fn figures(&self, free: GpuSet, set: GpuSet) -> Pick {
        Pick {
            set,
            ring: self.ring(set),
            total: self.total(set),
            lost: self
                .usable(free)
                .saturating_sub(self.usable(free.minus(set))),
        }
    }

    /// The best `count` GPUs of `free`; with `linked`, among sets with NVLink between all pairs.
    pub fn best(&mut self, free: GpuSet, count: usize, linked: bool) -> Option<Pick> {
        let free = free.and(self.all);
        if count == 0 || count > free.len() {
            return None;
        }
        if self.gpus > EXACT_GPUS {
            return large::best(self, free, count, linked);
        }
        let linked = linked && count > 1;
        let slot = free.0 as usize * (self.gpus + 1) + count;
        if linked && self.best_linked.is_empty() {
            // Either every set is linked, or none is.
            return self.linked(free).then(|| self.best(free, count, false))?;
        }
        let known = if linked {
            &self.best_linked
        } else {
            &self.best
        }[slot];
        let set = if known != 0 {
            GpuSet(u64::from(known))
        } else {
            let set = self.search(free, count, linked)?;
            if linked {
                self.best_linked[slot] = set.0 as u16;
            } else {
                self.best[slot] = set.0 as u16;
            }
            set
        };
        Some(self.figures(free, set))
    }

    fn search(&self, free: GpuSet, count: usize, linked: bool) -> Option<GpuSet> {
        let mut best: Option<((u32, u32, u32, u32), GpuSet)> = None;
        for_each_subset(free, count, |set| {
            if linked && !self.linked(set) {
                return;
            }
            let key = (
                self.ring(set),
                self.total(set),
                self.usable(free.minus(set)),
                u32::MAX - self.numa_nodes(set),
            );
            // Sets come in ascending order: the first of equals is the smallest.
            if best.is_none_or(|(known, _)| key > known) {
                best = Some((key, set));
            }
        });
        best.map(|(_, set)| set)
    }
}

/// Calls `visit` with every subset of `of` that has `count` members, ascending as numbers.
pub fn for_each_subset(of: GpuSet, count: usize, mut visit: impl FnMut(GpuSet)) {
    let mut bits = [0u64; crate::gpuset::MAX_GPUS];
    let mut len = 0;
    for gpu in of.iter() {
        bits[len] = 1 << gpu;
        len += 1;
    }
    if count > len || count == 0 || len > 32 {
        return;
    }
    // Over positions in `bits`: the next larger number with as many ones.
    let mut rank = (1u64 << count) - 1;
    while rank < 1 << len {
        let mut set = 0;
        let mut rest = rank;
        while rest != 0 {
            set |= bits[rest.trailing_zeros() as usize];
            rest &= rest - 1;
        }
        visit(GpuSet(set));
        let low = rank & rank.wrapping_neg();
        let high = rank + low;
        rank = high | (((high ^ rank) / low) >> 2);
    }
}

/// Best narrowest link of a ring over each set. For each bandwidth from the highest down, the
/// sets that have a ring of such links: paths are grown from the lowest member of a set, and
/// kept as the set of GPUs where one can end.
fn rings(table: &GpuTable) -> Vec<u32> {
    let n = table.gpus;
    let mut ring = vec![0u32; 1 << n];
    let mut levels: Vec<u32> = table.pairs.iter().copied().filter(|&p| p > 0).collect();
    levels.sort_unstable();
    levels.dedup();
    let mut ends = vec![0u16; 1 << n];
    for &level in levels.iter().rev() {
        let near: Vec<u16> = (0..n)
            .map(|a| {
                (0..n)
                    .filter(|&b| table.pairs[a * n + b] >= level)
                    .fold(0, |acc, b| acc | 1 << b)
            })
            .collect();
        for set in 1usize..1 << n {
            let first = set.trailing_zeros() as usize;
            let mut rest = set & (set - 1);
            if rest == 0 {
                ends[set] = set as u16;
                continue;
            }
            let mut at = 0;
            while rest != 0 {
                let gpu = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                if ends[set & !(1 << gpu)] & near[gpu] != 0 {
                    at |= 1 << gpu;
                }
            }
            ends[set] = at;
            if ring[set] == 0 && at & near[first] != 0 {
                ring[set] = level;
            }
        }
    }
    ring
}

fn totals(table: &GpuTable) -> Vec<u32> {
    let mut total = vec![0u32; 1 << table.gpus];
    for set in 1usize..1 << table.gpus {
        let first = set.trailing_zeros() as usize;
        let rest = set & (set - 1);
        let links: u32 = GpuSet(rest as u64)
            .iter()
            .map(|gpu| table.pairs[first * table.gpus + gpu])
            .sum();
        total[set] = total[rest] + links;
    }
    total
}

fn usabilities(table: &GpuTable) -> Vec<u32> {
    let n = table.gpus;
    let mut sum = vec![0u32; 1 << n];
    let mut packed = vec![0u32; 1 << n];
    for &size in &table.sizes {
        let rings = || (1usize..1 << n).filter(|set| set.count_ones() as usize == size);
        let best = rings().map(|set| table.ring[set]).max().unwrap_or(0);
        let even = rings().all(|set| table.ring[set] == best);
        for set in 1usize..1 << n {
            packed[set] = if even {
                let jobs = set.count_ones() as usize / size;
                (jobs * size) as u32 * MILLI
            } else {
                let low = set & set.wrapping_neg();
                let rest = set ^ low;
                // Either the lowest GPU stays unused, or it is in one job with others.
                let mut most = packed[rest];
                for_each_subset(GpuSet(rest as u64), size - 1, |others| {
                    let job = others.0 as usize | low;
                    let worth = worth(size, table.ring[job], best);
                    most = most.max(worth + packed[set ^ job]);
                });
                most
            };
            sum[set] += packed[set];
        }
    }
    for value in &mut sum {
        *value /= table.sizes.len().max(1) as u32;
    }
    sum
}

/// What a job of `size` GPUs with this ring counts, in thousandths of a GPU.
pub fn worth(size: usize, ring: u32, best: u32) -> u32 {
    let full = size as u64 * u64::from(MILLI);
    (full * u64::from(ring))
        .checked_div(u64::from(best))
        .unwrap_or(full) as u32
}

/// The largest sets with NVLink between all pairs, at most 64 of them, ascending. A GPU without
/// NVLink is in none.
fn islands(table: &GpuTable) -> Vec<GpuSet> {
    fn grow(near: &[u64], set: u64, mut open: u64, mut done: u64, found: &mut Vec<GpuSet>) {
        if open == 0 && done == 0 && set.count_ones() > 1 {
            found.push(GpuSet(set));
        }
        // Members linked to all that is open are tried together with it: skip its neighbours.
        let pivot = (open | done).trailing_zeros() as usize;
        let mut tries = if open | done == 0 {
            0
        } else {
            open & !near[pivot]
        };
        while tries != 0 && found.len() < 64 {
            let gpu = tries.trailing_zeros() as usize;
            tries &= tries - 1;
            grow(
                near,
                set | 1 << gpu,
                open & near[gpu],
                done & near[gpu],
                found,
            );
            open &= !(1 << gpu);
            done |= 1 << gpu;
        }
    }
    let mut found = Vec::new();
    grow(&table.nvlink, 0, table.all.0, 0, &mut found);
    found.sort_unstable();
    found
}
