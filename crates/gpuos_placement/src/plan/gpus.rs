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
//! GPUs of the node type: sets of one size stand sorted by ring and total, so that the first one
//! that is free has the best links, and only its equals are compared further. Each answer is kept.
//! Larger nodes are handled in [`super::large`].
use std::collections::HashMap;

use gpuos_model::cluster::NodeType;
use gpuos_model::gpuset::GpuSet;

use super::large;
use super::links::{self, nvlinked, pair_units};

/// Up to this many GPUs per node the choice is exact.
pub const EXACT_GPUS: usize = 16;
/// Up to this many GPUs per node all answers are computed when the planner is made.
const EAGER_GPUS: usize = 8;

/// Which figure says what free GPUs are worth to the next jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueModel {
    /// [`GpuTable::usable`]'s own: five sizes, equally likely.
    Even,
    /// The values set by [`GpuTable::learn`]; where there are none, `Even`.
    Learned,
}

/// Values of all sets of GPUs by one figure, and the best sets by it.
#[derive(Debug, Default)]
struct Answers {
    /// By set; empty when there is no such figure.
    value: Vec<u32>,
    /// By free set and number of GPUs; 0 = not computed yet.
    best: Vec<u16>,
    /// The same among sets with NVLink between all pairs; empty when that makes no difference.
    linked: Vec<u16>,
}
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
    /// By [`ValueModel`].
    answers: [Answers; 2],
    /// All sets by size, and within a size those with the best links first; where each size ends.
    sorted: Vec<u16>,
    ends: Vec<usize>,
    /// By free set, up to [`EAGER_GPUS`]: the lowest set that any request finds just as good.
    alike: Vec<u8>,
    /// Whether all pairs have the same link.
    uniform: bool,
    /// Largest sets with NVLink between all pairs.
    pub islands: Vec<GpuSet>,
    /// Instead of the tables above [`EXACT_GPUS`].
    pub rates: large::Rates,
}

impl GpuTable {
    /// Computes the tables of a node type.
    pub fn new(node_type: &NodeType) -> GpuTable {
        let gpus = node_type.gpus.min(gpuos_model::gpuset::MAX_GPUS);
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
            answers: Default::default(),
            sorted: Vec::new(),
            ends: Vec::new(),
            alike: Vec::new(),
            uniform: false,
            islands: Vec::new(),
            rates: large::Rates::default(),
        };
        table.islands = links::islands(&table.nvlink, table.all);
        let links = || (0..gpus * gpus).filter(|at| at / gpus != at % gpus);
        table.uniform = links().all(|at| {
            let (a, b) = (at / gpus, at % gpus);
            table.pairs[at] == table.pairs[1]
                && table.nvlink[a] >> b & 1 == table.nvlink[0] >> 1 & 1
        });
        if gpus <= EXACT_GPUS {
            table.ring = rings(&table);
            table.total = totals(&table);
            table.sort();
            table.answers[0].value = usabilities(&table);
            table.forget();
        } else {
            table.rates = large::Rates::new(gpus, &table.pairs, &table.sizes);
        }
        table
    }

    /// Takes the values of the free sets, by set, as the figure [`ValueModel::Learned`].
    ///
    /// Errors: a sentence, when the node type has too many GPUs for such a table or it has not
    /// one value for each set.
    pub fn learn(&mut self, values: &[u32]) -> Result<(), String> {
        if self.gpus > EXACT_GPUS {
            return Err(format!(
                "values by set of GPUs are for nodes of up to {EXACT_GPUS} GPUs; these have {}",
                self.gpus
            ));
        }
        if values.len() != 1 << self.gpus {
            return Err(format!(
                "a node type with {} GPUs has {} sets of them, and {} values were given",
                self.gpus,
                1u32 << self.gpus,
                values.len()
            ));
        }
        self.answers[1].value.clear();
        self.answers[1].value.extend_from_slice(values);
        self.forget();
        Ok(())
    }

    /// Whether values were learned.
    pub fn has_learned(&self) -> bool {
        !self.answers[1].value.is_empty()
    }

    /// Forgets the answers; those of small nodes are computed anew at once.
    fn forget(&mut self) {
        let slots = (1usize << self.gpus) * (self.gpus + 1);
        let matters = !self.linked(self.all) && self.nvlink.iter().any(|&n| n != 0);
        for answers in &mut self.answers {
            if answers.value.is_empty() {
                continue;
            }
            answers.best = vec![0; slots];
            answers.linked = vec![0; if matters { slots } else { 0 }];
        }
        if self.gpus > EAGER_GPUS {
            return;
        }
        let mut first_of: HashMap<Vec<u32>, u8> = HashMap::new();
        self.alike = vec![0; 1 << self.gpus];
        for free in 0..1u64 << self.gpus {
            let mut figures = vec![free.count_ones(), u32::from(self.linked(GpuSet(free)))];
            for count in 1..=free.count_ones() as usize {
                for linked in [false, true] {
                    for worth in [ValueModel::Even, ValueModel::Learned] {
                        let pick = self.best(GpuSet(free), count, linked, worth);
                        let pick = pick.map(|p| [p.ring, p.total, p.lost]);
                        figures.extend(pick.unwrap_or([u32::MAX; 3]));
                    }
                }
            }
            self.alike[free as usize] = *first_of.entry(figures).or_insert(free as u8);
        }
    }

    /// A set of GPUs of which every request gets as much as of `free`: same links, same values,
    /// only other GPUs. Equal sets stand for nodes that are alike.
    pub fn alike(&self, free: GpuSet) -> GpuSet {
        match self.alike.get(free.0 as usize) {
            Some(&set) => GpuSet(u64::from(set)),
            None if self.uniform && !self.has_learned() => GpuSet::first(free.len()),
            None => free,
        }
    }

    /// Most kinds of free sets that [`GpuTable::alike`] tells apart, as far as that is known.
    pub fn kinds(&self) -> usize {
        let own = |(at, set): &(usize, &u8)| *at == usize::from(**set);
        match self.alike.is_empty() {
            true => 64,
            false => self.alike.iter().enumerate().filter(own).count(),
        }
    }

    fn sort(&mut self) {
        self.sorted = (1..1u32 << self.gpus).map(|set| set as u16).collect();
        let (ring, total) = (&self.ring, &self.total);
        self.sorted.sort_unstable_by_key(|&set| {
            let at = usize::from(set);
            (
                set.count_ones(),
                u32::MAX - ring[at],
                u32::MAX - total[at],
                set,
            )
        });
        let up_to = |size: u32| self.sorted.partition_point(|set| set.count_ones() <= size);
        self.ends = (0..=self.gpus as u32).map(up_to).collect();
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
    ///
    /// Values that were learned take the place of this figure where `worth` asks for them.
    pub fn usable(&self, free: GpuSet, worth: ValueModel) -> u32 {
        match self.answers[self.figure(worth)].value.get(free.0 as usize) {
            Some(&usable) => usable,
            None => large::usable(self, free),
        }
    }

    fn figure(&self, worth: ValueModel) -> usize {
        usize::from(worth == ValueModel::Learned && self.has_learned())
    }

    /// Number of NUMA nodes that the set touches.
    pub fn numa_nodes(&self, set: GpuSet) -> u32 {
        let touched = set.iter().fold(0u64, |acc, g| acc | 1 << self.numa[g]);
        touched.count_ones()
    }

    /// The figures of taking `set` out of `free`.
    pub fn figures(&self, free: GpuSet, set: GpuSet, worth: ValueModel) -> Pick {
        let rest = self.usable(free.minus(set), worth);
        Pick {
            set,
            ring: self.ring(set),
            total: self.total(set),
            lost: self.usable(free, worth).saturating_sub(rest),
        }
    }

    /// The best `count` GPUs of `free`; with `linked`, among sets with NVLink between all pairs.
    pub fn best(
        &mut self,
        free: GpuSet,
        count: usize,
        linked: bool,
        worth: ValueModel,
    ) -> Option<Pick> {
        let set = self.best_set(free, count, linked, worth)?;
        Some(self.figures(free.and(self.all), set, worth))
    }

    /// The GPUs that [`GpuTable::best`] takes.
    pub fn best_set(
        &mut self,
        free: GpuSet,
        count: usize,
        linked: bool,
        worth: ValueModel,
    ) -> Option<GpuSet> {
        let free = free.and(self.all);
        if count == 0 || count > free.len() {
            return None;
        }
        if self.gpus > EXACT_GPUS {
            return large::best(self, free, count, linked);
        }
        let linked = linked && count > 1;
        let slot = free.0 as usize * (self.gpus + 1) + count;
        let answers = &self.answers[self.figure(worth)];
        if linked && answers.linked.is_empty() {
            // Either every set is linked, or none is.
            return match self.linked(free) {
                true => self.best_set(free, count, false, worth),
                false => None,
            };
        }
        let known = if linked {
            &answers.linked
        } else {
            &answers.best
        }[slot];
        if known != 0 {
            return Some(GpuSet(u64::from(known)));
        }
        self.find_set(free, count, linked, worth)
    }

    /// Looks for the best set for the first time, and keeps it.
    #[cold]
    #[inline(never)]
    fn find_set(
        &mut self,
        free: GpuSet,
        count: usize,
        linked: bool,
        worth: ValueModel,
    ) -> Option<GpuSet> {
        let set = self.search(free, count, linked, worth)?;
        let figure = self.figure(worth);
        let slot = free.0 as usize * (self.gpus + 1) + count;
        let answers = &mut self.answers[figure];
        if linked {
            answers.linked[slot] = set.0 as u16;
        } else {
            answers.best[slot] = set.0 as u16;
        }
        Some(set)
    }

    fn search(
        &self,
        free: GpuSet,
        count: usize,
        linked: bool,
        worth: ValueModel,
    ) -> Option<GpuSet> {
        let mut best: Option<((u32, u32), GpuSet)> = None;
        self.for_each_best(free, count, linked, |set| {
            let usable = self.usable(free.minus(set), worth);
            let key = (usable, u32::MAX - self.numa_nodes(set));
            // Equal sets come in ascending order: the first of equals is the smallest.
            if best.is_none_or(|(known, _)| key > known) {
                best = Some((key, set));
            }
        });
        best.map(|(_, set)| set)
    }

    /// Calls `visit` with all sets of `count` free GPUs that have the best links, ascending; with
    /// `linked`, among those with NVLink between all pairs. None above [`EXACT_GPUS`].
    pub fn for_each_best(
        &self,
        free: GpuSet,
        count: usize,
        linked: bool,
        mut visit: impl FnMut(GpuSet),
    ) {
        if count == 0 || count >= self.ends.len() {
            return;
        }
        let sets = &self.sorted[self.ends[count - 1]..self.ends[count]];
        let mut links = None;
        for set in sets.iter().map(|&set| GpuSet(u64::from(set))) {
            if !set.minus(free).is_empty() {
                continue;
            }
            let mine = (self.ring(set), self.total(set));
            // Worse links follow from here on.
            if links.is_some_and(|links| links != mine) {
                break;
            }
            if !linked || self.linked(set) {
                links = Some(mine);
                visit(set);
            }
        }
    }
}

impl GpuTable {
    /// Calls `visit` with those sets of [`GpuTable::for_each_best`] that leave the most GPUs with
    /// an NVLink to another one: a job of one GPU breaks no pair while an odd GPU is free.
    pub fn for_each_kind(
        &self,
        free: GpuSet,
        count: usize,
        linked: bool,
        mut visit: impl FnMut(GpuSet),
    ) {
        let joined = |set: GpuSet| {
            let rest = free.minus(set);
            let gpus = rest.iter().filter(|&gpu| self.nvlink[gpu] & rest.0 != 0);
            gpus.count()
        };
        let mut most = 0;
        self.for_each_best(free, count, linked, |set| most = most.max(joined(set)));
        self.for_each_best(free, count, linked, |set| {
            if joined(set) == most {
                visit(set);
            }
        });
    }
}

/// Calls `visit` with every subset of `of` that has `count` members, ascending as numbers.
pub fn for_each_subset(of: GpuSet, count: usize, mut visit: impl FnMut(GpuSet)) {
    let mut bits = [0u64; gpuos_model::gpuset::MAX_GPUS];
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
            let jobs = set.count_ones() as usize / size;
            packed[set] = if even {
                (jobs * size) as u32 * MILLI
            } else if jobs == 0 {
                0
            } else if set.count_ones() as usize == size {
                job_value(size, table.ring[set], best)
            } else if jobs == 1 {
                // One job, which leaves at least one GPU out.
                let without = |gpu: usize| packed[set & !(1 << gpu)];
                GpuSet(set as u64).iter().map(without).max().unwrap_or(0)
            } else {
                let low = set & set.wrapping_neg();
                let rest = set ^ low;
                // Either the lowest GPU stays unused, or it is in one job with others.
                let mut most = packed[rest];
                for_each_subset(GpuSet(rest as u64), size - 1, |others| {
                    let job = others.0 as usize | low;
                    let worth = job_value(size, table.ring[job], best);
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
pub fn job_value(size: usize, ring: u32, best: u32) -> u32 {
    let full = size as u64 * u64::from(MILLI);
    (full * u64::from(ring))
        .checked_div(u64::from(best))
        .unwrap_or(full) as u32
}
