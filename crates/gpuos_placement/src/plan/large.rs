//! GPUs of nodes with more than 16 of them: bounded work instead of tables.
//!
//! The figures keep their meaning but are estimates: a ring is taken to exist where every GPU
//! has two neighbours and all hang together; usability counts islands instead of packing sets;
//! and the best set is grown from each free GPU in turn. The work is bounded by the cube of the
//! number of GPUs.
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};

use super::gpus::{GpuTable, MILLI, job_value};

/// The different bandwidths of a node type, highest first, and who is joined at each.
#[derive(Debug, Default)]
pub struct Rates {
    steps: Vec<Step>,
    /// By size of the typical mix: the step at which the empty node has an island that large.
    island: Vec<usize>,
}

#[derive(Debug)]
struct Step {
    rate: u32,
    /// By GPU, the GPUs joined to it at this bandwidth or more.
    near: Vec<u64>,
}

impl Rates {
    /// Computes the steps of a node type with these pairs.
    pub fn new(gpus: usize, pairs: &[u32], sizes: &[usize]) -> Rates {
        let mut rates: Vec<u32> = pairs.iter().copied().filter(|&p| p > 0).collect();
        rates.sort_unstable_by(|a, b| b.cmp(a));
        rates.dedup();
        let near = |rate: u32, a: usize| {
            (0..gpus)
                .filter(|&b| pairs[a * gpus + b] >= rate)
                .fold(0, |acc, b| acc | 1 << b)
        };
        let steps: Vec<Step> = rates
            .iter()
            .map(|&rate| Step {
                rate,
                near: (0..gpus).map(|a| near(rate, a)).collect(),
            })
            .collect();
        let all = GpuSet::first(gpus);
        let holds = |step: &Step, size| all.iter().any(|g| step.reach(all, g).len() >= size);
        let island = sizes
            .iter()
            .map(|&size| {
                let step = steps.iter().position(|step| holds(step, size));
                step.unwrap_or(steps.len().saturating_sub(1))
            })
            .collect();
        Rates { steps, island }
    }
}

impl Step {
    /// The GPUs of `set` that `from` reaches at this bandwidth, itself included.
    fn reach(&self, set: GpuSet, from: usize) -> GpuSet {
        let mut seen = 1u64 << from;
        let mut edge = seen;
        while edge != 0 {
            let next = GpuSet(edge).iter().fold(0, |acc, g| acc | self.near[g]);
            edge = next & set.0 & !seen;
            seen |= edge;
        }
        GpuSet(seen)
    }

    fn has_ring(&self, set: GpuSet) -> bool {
        let neighbours = if set.len() == 2 { 1 } else { 2 };
        let Some(first) = set.iter().next() else {
            return false;
        };
        set.iter()
            .all(|g| (self.near[g] & set.0).count_ones() >= neighbours)
            && self.reach(set, first) == set
    }
}

/// See [`GpuTable::ring`].
pub fn ring(table: &GpuTable, set: GpuSet) -> u32 {
    if set.len() < 2 {
        return 0;
    }
    let step = table.rates.steps.iter().find(|step| step.has_ring(set));
    step.map_or(0, |step| step.rate)
}

/// See [`GpuTable::total`].
pub fn total(table: &GpuTable, set: GpuSet) -> u32 {
    let above = |a| set.iter().filter(move |&b| b > a);
    set.iter()
        .map(|a| {
            above(a)
                .map(|b| table.pairs[a * table.gpus + b])
                .sum::<u32>()
        })
        .sum()
}

/// See [`GpuTable::usable`].
pub fn usable(table: &GpuTable, free: GpuSet) -> u32 {
    let steps = &table.rates.steps;
    let lowest = steps.last().map_or(1, |step| step.rate);
    let mut sum = 0;
    for (&size, &island) in table.sizes.iter().zip(&table.rates.island) {
        let fits = free.len() / size * size;
        if size == 1 || steps.is_empty() {
            sum += fits as u32 * MILLI;
            continue;
        }
        let step = &steps[island];
        let mut rest = free;
        let mut good = 0;
        while let Some(gpu) = rest.iter().next() {
            let part = step.reach(rest, gpu);
            good += part.len() / size * size;
            rest = rest.minus(part);
        }
        sum += good as u32 * MILLI + job_value(fits - good, lowest, step.rate);
    }
    sum / table.sizes.len().max(1) as u32
}

/// See [`GpuTable::best_set`].
pub fn best(table: &GpuTable, free: GpuSet, count: usize, linked: bool) -> Option<GpuSet> {
    let mut best: Option<((u32, u32, u32, u32), GpuSet)> = None;
    for seed in free.iter() {
        let Some(set) = grow(table, free, seed, count, linked) else {
            continue;
        };
        if best.is_some_and(|(_, known)| known == set) {
            continue;
        }
        let key = (
            ring(table, set),
            total(table, set),
            usable(table, free.minus(set)),
            u32::MAX - table.numa_nodes(set),
        );
        if best.is_none_or(|(known, old)| key > known || key == known && set < old) {
            best = Some((key, set));
        }
    }
    best.map(|(_, set)| set)
}

/// Adds to `seed` the free GPU with the most bandwidth to the set, until it is large enough.
fn grow(table: &GpuTable, free: GpuSet, seed: usize, count: usize, linked: bool) -> Option<GpuSet> {
    let mut set = GpuSet::EMPTY.with(seed);
    let mut near = [0u32; MAX_GPUS];
    let mut last = seed;
    while set.len() < count {
        let mut next: Option<(u32, usize)> = None;
        for gpu in free.minus(set).iter() {
            near[gpu] += table.pairs[gpu * table.gpus + last];
            let joins = !linked || set.0 & !table.nvlink[gpu] == 0;
            if joins && next.is_none_or(|(most, _)| near[gpu] > most) {
                next = Some((near[gpu], gpu));
            }
        }
        last = next?.1;
        set = set.with(last);
    }
    Some(set)
}
