//! What the idle part of a node is worth to the mix of jobs that is expected.
//!
//! The value of a node on which some GPUs, CPUs and memory are free is its *expected fill*: jobs
//! are drawn from the mix one after the other, start if they fit, each on the GPUs with the best
//! links that leave the most valuable rest, and are passed over if not; after each draw it ends
//! with a chance of 1 in [`HORIZON`]. That counts the cores and memory that jobs use up on the
//! way, and a size that finds no room any more is a loss. With `w_k` the weights of the classes
//! that fit, of `w` in all,
//!
//! `fill(s) = sum w_k * (worth_k + fill(s - k)) / (sum w_k + w / HORIZON)`.
//!
//! Half of the *room* for jobs of several GPUs counts besides, each class alone, as in
//! [`crate::frag::FillValue`]: many small jobs fill a node as well as a large one does, which then
//! finds none.
//!
//! Values stand in a table for each node type, by kind of free set, CPUs and memory in steps. A
//! table is a function of [`Expected`] and the node type alone, so whoever knows these has the
//! same values. It is computed in pieces, beside the one in use.
use gpuos_model::gpuset::GpuSet;

use super::gpus::{GpuTable, MILLI};
use super::kinds::Kinds;
use super::supply::{Preference, sum_preferences};
use crate::frag::{Expected, Share, WEIGHTS};

/// Draws after which it ends, in the mean. 32 and 128 give the same figures on openb within
/// their spread; without an end sizes that come rarely fill everything, and 0.2 points are lost.
const HORIZON: u64 = 64;
/// What room counts beside the fill, in percent.
const ROOM_PERCENT: u64 = 50;
/// Values are compared in steps of this many thousandths of a GPU: see docs/results/placement-tried.md.
pub const STEP: u32 = 100;
/// Losses are told apart up to so many steps.
pub const STEPS: usize = 128;
/// Steps of CPUs and of memory of a node. 32 of memory were worse by 0.05 points.
const CPU_STEPS: u32 = 128;
const MEMORY_STEPS: u64 = 64;
/// Classes that are looked at.
const MOST_CLASSES: usize = 256;
/// The fill is computed in millionths of a GPU.
const FINE: u64 = 1000;

/// The values of all node types under one mix.
#[derive(Debug)]
pub struct Values {
    pub expected: Expected,
    /// Which node types the mix leans on.
    pub preferences: Vec<Preference>,
    types: Vec<Table>,
}

/// What a job takes of a node beside GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// GPUs.
    pub gpus: u32,
    /// CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
}

/// The values of one node type, or what there is of them.
#[derive(Debug, Default)]
struct Table {
    kinds: Kinds,
    /// CPUs and MiB of a step; of an idle node, in steps.
    cpu_step: u32,
    memory_step: u64,
    cpus: u32,
    memory: u32,
    /// By kind, memory and CPUs: thousandths of a GPU.
    value: Vec<u16>,
    /// The classes that fit the idle node.
    classes: Vec<Class>,
    /// Of all classes, these included.
    weights: u64,
}

/// A class in a table's steps.
#[derive(Clone, Copy, Debug)]
struct Class {
    gpus: usize,
    cpus: u32,
    memory: u32,
    weight: u64,
}

/// Values that are being computed.
#[derive(Debug)]
pub struct Building {
    values: Values,
    /// The type at hand, and what is known of its fill, in millionths.
    at: usize,
    fill: Vec<u32>,
}

impl Building {
    /// Begins. Allocates.
    pub fn new(expected: Expected, kinds: &[Kinds]) -> Building {
        // A recording can say anything.
        let mut expected = expected;
        expected.classes.truncate(MOST_CLASSES);
        let table = |(number, kinds): (usize, &Kinds)| {
            let size = expected.nodes.get(number).copied().unwrap_or_default();
            Table::new(&expected, number, kinds, size)
        };
        let types = kinds.iter().enumerate().map(table).collect::<Vec<_>>();
        let longest = types.iter().map(Table::len).max().unwrap_or(0);
        Building {
            values: Values {
                preferences: preferences(&expected, &types),
                expected,
                types,
            },
            at: 0,
            fill: Vec::with_capacity(longest),
        }
    }

    /// The mix.
    pub fn expected(&self) -> &Expected {
        &self.values.expected
    }

    /// Computes so many entries; says whether all are there.
    pub fn work(&mut self, entries: usize) -> bool {
        let mut left = entries;
        while let Some(table) = self.values.types.get_mut(self.at) {
            let end = table.len().min(self.fill.len().saturating_add(left));
            left -= end - self.fill.len();
            while self.fill.len() < end {
                let (fill, value) = table.entry(&self.fill);
                self.fill.push(fill);
                table.value.push(value);
            }
            if end < table.len() {
                return false;
            }
            self.at += 1;
            self.fill.clear();
        }
        true
    }

    /// The values, once all are there.
    pub fn finish(self) -> Values {
        self.values
    }
}

impl Values {
    /// What a node is worth with this free, in thousandths of a GPU. `u32::MAX` CPUs and
    /// `u64::MAX` memory stand for all that a node has.
    pub fn of(&self, node_type: u16, free: GpuSet, cpus: u32, memory_mib: u64) -> u32 {
        let table = &self.types[usize::from(node_type)];
        let (cpus, memory) = table.steps(cpus, memory_mib);
        table.value(table.kinds.of(free), cpus, memory)
    }

    /// What a job makes the node lose: thousandths of a GPU.
    pub fn lost(
        &self,
        node_type: u16,
        free: GpuSet,
        (cpus, memory_mib): (u32, u64),
        needs: &Needs,
    ) -> u32 {
        let table = &self.types[usize::from(node_type)];
        let kind = table.kinds.of(free);
        let (c, m) = table.steps(cpus, memory_mib);
        let before = table.value(kind, c, m);
        let (c, m) = table.left((cpus, memory_mib), needs);
        let offer = table.kinds.offer(kind, needs.gpus as usize);
        let rests = table.kinds.remaining_kinds(offer).iter();
        let after = rests
            .map(|&rest| table.value(usize::from(rest), c, m))
            .max();
        before.saturating_sub(after.unwrap_or(0))
    }

    /// The same in steps, below [`STEPS`]: what nodes are compared by.
    pub fn step(&self, node_type: u16, free: GpuSet, has: (u32, u64), needs: &Needs) -> u8 {
        let step = self.lost(node_type, free, has, needs) / STEP;
        step.min(STEPS as u32 - 1) as u8
    }

    /// The GPUs that a job gets: of the sets with the best links that break no pair
    /// without need ([`GpuTable::for_each_kind`]) one that leaves the most valuable rest, of equals
    /// the one that [`GpuTable::best`] would take.
    pub fn choose(
        &self,
        table: &mut GpuTable,
        node_type: u16,
        free: GpuSet,
        has: (u32, u64),
        needs: &Needs,
        linked: bool,
    ) -> Option<GpuSet> {
        let count = needs.gpus as usize;
        let usual = table.best_set(free, count, linked, super::gpus::ValueModel::Even)?;
        let mine = &self.types[usize::from(node_type)];
        if !mine.kinds.by_links() {
            return Some(usual);
        }
        let (c, m) = mine.left(has, needs);
        let left = |set| mine.value(mine.kinds.of(free.minus(set)), c, m);
        let mut best: Option<(u32, bool, GpuSet)> = None;
        table.for_each_kind(free, count, linked, |set| {
            let mine = (left(set), set == usual);
            if best.is_none_or(|(value, is, _)| mine > (value, is)) {
                best = Some((mine.0, mine.1, set));
            }
        });
        Some(best.map_or(usual, |best| best.2))
    }
}

fn preferences(expected: &Expected, types: &[Table]) -> Vec<Preference> {
    let classes = expected.classes.iter().map(|&(share, weight)| {
        let takes = |(number, table): (usize, &Table)| {
            let bit = 1u64.checked_shl(number as u32).unwrap_or(0);
            if table.class(number, &share).is_some() {
                bit
            } else {
                0
            }
        };
        Preference {
            gpus: share.gpus,
            types: types.iter().enumerate().map(takes).sum(),
            weight: self::weight(weight),
        }
    });
    sum_preferences(classes, types.len())
}

impl Table {
    fn new(expected: &Expected, number: usize, kinds: &Kinds, (cpus, memory): (u32, u64)) -> Table {
        let cpu_step = cpus.div_ceil(CPU_STEPS).max(1);
        let memory_step = memory.div_ceil(MEMORY_STEPS).max(1);
        let mut table = Table {
            kinds: kinds.clone(),
            cpu_step,
            memory_step,
            cpus: cpus / cpu_step,
            memory: (memory / memory_step) as u32,
            weights: expected.classes.iter().map(|c| weight(c.1)).sum(),
            ..Table::default()
        };
        for &(share, weight) in &expected.classes {
            let Some((cpus, memory)) = table.class(number, &share) else {
                continue;
            };
            let class = Class {
                gpus: usize::from(share.gpus),
                cpus,
                memory,
                weight: self::weight(weight),
            };
            let same = |c: &&mut Class| {
                (c.gpus, c.cpus, c.memory) == (class.gpus, class.cpus, class.memory)
            };
            match table.classes.iter_mut().find(same) {
                Some(known) => known.weight += class.weight,
                None => table.classes.push(class),
            }
        }
        table.value = Vec::with_capacity(table.len());
        table
    }

    /// CPUs and memory in steps that a class asks for, if an idle node of this type has them.
    fn class(&self, number: usize, share: &Share) -> Option<(u32, u32)> {
        let accepted = share.types == 0 || number < 64 && share.types >> number & 1 == 1;
        // To the nearest step: rounded up, many small jobs would seem to need far more.
        let (step, half) = (u64::from(self.cpu_step), u64::from(self.cpu_step) / 2);
        let cpus = (u64::from(share.cpus) + half) / step;
        let (step, half) = (self.memory_step, self.memory_step / 2);
        let memory = ((u64::from(share.memory_gib) << 10) + half) / step;
        let fits = cpus <= u64::from(self.cpus) && memory <= u64::from(self.memory);
        (accepted && fits).then_some((cpus as u32, memory as u32))
    }

    fn len(&self) -> usize {
        self.kinds.len() * (self.memory as usize + 1) * (self.cpus as usize + 1)
    }

    fn at(&self, kind: usize, cpus: u32, memory: u32) -> usize {
        let row = kind * (self.memory as usize + 1) + memory as usize;
        row * (self.cpus as usize + 1) + cpus as usize
    }

    fn value(&self, kind: usize, cpus: u32, memory: u32) -> u32 {
        u32::from(self.value[self.at(kind, cpus, memory)])
    }

    fn steps(&self, cpus: u32, memory_mib: u64) -> (u32, u32) {
        let memory = (memory_mib / self.memory_step).min(u64::from(self.memory));
        ((cpus / self.cpu_step).min(self.cpus), memory as u32)
    }

    /// What stays of a node, in steps. What is not known of a node is all that an idle one has.
    fn left(&self, (cpus, memory_mib): (u32, u64), needs: &Needs) -> (u32, u32) {
        let cpus = match cpus {
            u32::MAX => self.cpus * self.cpu_step,
            known => known,
        };
        let memory = match memory_mib {
            u64::MAX => u64::from(self.memory) * self.memory_step,
            known => known,
        };
        self.steps(
            cpus.saturating_sub(needs.cpus),
            memory.saturating_sub(needs.memory_mib),
        )
    }

    /// The next entry, from all before it: its fill and its value.
    fn entry(&self, fill: &[u32]) -> (u32, u16) {
        let index = fill.len();
        let row = self.cpus as usize + 1;
        let cpus = (index % row) as u32;
        let memory = (index / row % (self.memory as usize + 1)) as u32;
        let kind = index / row / (self.memory as usize + 1);
        let (mut sum, mut fits, mut room) = (0u64, 0u64, 0u64);
        for class in &self.classes {
            if class.cpus > cpus || class.memory > memory {
                continue;
            }
            let offer = self.kinds.offer(kind, class.gpus);
            if offer.value > 0 {
                let (c, m) = (cpus - class.cpus, memory - class.memory);
                let rests = self.kinds.remaining_kinds(offer).iter();
                let rest = rests
                    .map(|&rest| fill[self.at(usize::from(rest), c, m)])
                    .max();
                let worth = u64::from(offer.value) * FINE + u64::from(rest.unwrap_or(0));
                sum += class.weight * worth;
                fits += class.weight;
            }
            if class.gpus > 1 {
                let mut count = offer.pack;
                while count * class.cpus > cpus || count * class.memory > memory {
                    count -= 1;
                }
                room += class.weight * u64::from(count) * class.gpus as u64;
            }
        }
        let all = self.weights.max(1);
        let fill = sum / (fits + all / HORIZON).max(1);
        let room = room * u64::from(MILLI) * ROOM_PERCENT / 100 / all;
        (
            fill as u32,
            (fill / FINE + room).min(u64::from(u16::MAX)) as u16,
        )
    }
}

/// A weight that sums of products have room for.
fn weight(given: u32) -> u64 {
    u64::from(given).min(WEIGHTS)
}
