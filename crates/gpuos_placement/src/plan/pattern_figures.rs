//! What the GPUs of each pattern offer to a job on one node, kept from one decision to the next.
//!
//! The figures of all patterns for one number of GPUs stand side by side: comparing them reads a few
//! lines of memory, not several for each pattern.
use gpuos_model::gpuset::GpuSet;

use super::gpus::{GpuTable, Pick, ValueModel};
use super::index::Pattern;
use super::job::{Job, Rule};
use super::types::{Criterion, against};

/// The figures of one pattern; see [`super::gpus::Pick`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub ring: u32,
    pub total: u32,
    pub lost: u32,
    pub penalty: u16,
    /// Free GPUs; 0 = not known yet.
    pub free: u16,
}

impl Figures {
    /// The figures as those of a set.
    pub fn of(&self, set: GpuSet) -> Pick {
        Pick {
            set,
            ring: self.ring,
            total: self.total,
            lost: self.lost,
        }
    }

    /// The rank of the nodes of the pattern in one number, lower first: what [`super::rank::key`] says of
    /// them, when they are all at the same distance.
    pub fn rank(&self, job: &Job) -> u128 {
        let (free, lost) = (u64::from(self.free), u64::from(self.lost));
        let order = match job.rule {
            Rule::FirstFit => return 0,
            // Nodes of a pattern differ by their CPUs and memory: they are compared one by one.
            _ if job.learned => 0,
            Rule::Pack => free << 32 | lost,
            Rule::Spread => (127 - free) << 32 | lost,
            _ => lost << 7 | free,
        };
        // A ring is below 2^20 and a total below 2^31: see `links::pair_units`.
        let ring = (1 << 20) - u64::from(self.ring);
        let total = (1 << 31) - u64::from(self.total);
        let links = u64::from(job.cost(self.penalty)) << 53 | ring << 32 | total;
        u128::from(links) << 64 | u128::from(against(self.penalty)) << 40 | u128::from(order)
    }
}

/// What tells two different ranks of [`Figures::rank`] apart: the highest bit in which they differ.
pub fn criterion(job: &Job, a: u128, b: u128) -> Criterion {
    let full = matches!(job.rule, Rule::Pack | Rule::Spread);
    let first_of_order = if full { 32 } else { 7 };
    match (a ^ b).checked_ilog2().unwrap_or(0) {
        117.. => Criterion::Cost,
        96.. => Criterion::Bandwidth,
        64.. => Criterion::Links,
        52.. => Criterion::Penalty,
        44.. => Criterion::Cost,
        40.. => Criterion::Fetch,
        bit if (bit >= first_of_order) == full => Criterion::Fit,
        _ => Criterion::Usability,
    }
}

/// The figures of all patterns.
#[derive(Debug)]
pub struct PatternFigures {
    /// By number of GPUs and [`ValueModel`], then by slot.
    by: Vec<Vec<Figures>>,
}

impl PatternFigures {
    /// For nodes with up to so many GPUs.
    pub fn new(gpus: usize) -> PatternFigures {
        PatternFigures {
            by: vec![Vec::new(); 2 * (gpus + 1)],
        }
    }

    /// Makes room for so many patterns.
    pub fn reserve(&mut self, slots: usize) {
        if self.by[0].len() < slots {
            let slots = slots.next_power_of_two().max(16);
            self.by
                .iter_mut()
                .for_each(|of| of.resize(slots, Figures::default()));
        }
    }

    /// The slot stands for another pattern now.
    pub fn forget(&mut self, slot: u32) {
        self.by
            .iter_mut()
            .for_each(|of| of[slot as usize] = Figures::default());
    }

    /// What free GPUs are worth has changed.
    pub fn forget_all(&mut self) {
        self.by
            .iter_mut()
            .for_each(|of| of.fill(Figures::default()));
    }

    /// The figures for so many GPUs, by slot; [`fill`] makes those that are not known.
    pub fn of(&mut self, count: usize, worth: ValueModel) -> &mut [Figures] {
        &mut self.by[2 * count + usize::from(worth == ValueModel::Learned)]
    }
}

/// The figures of a pattern for `count` of its GPUs. Fewer free GPUs than that: only how many.
#[cold]
#[inline(never)]
pub fn fill(table: &mut GpuTable, pattern: &Pattern, count: usize, worth: ValueModel) -> Figures {
    let pick = table.best(pattern.free, count, false, worth);
    let pick = pick.unwrap_or_default();
    Figures {
        ring: pick.ring,
        total: pick.total,
        lost: pick.lost,
        penalty: pattern.penalty,
        free: pattern.free.len() as u16,
    }
}
