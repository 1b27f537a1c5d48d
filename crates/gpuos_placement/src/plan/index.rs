//! Nodes by what is free on them, kept current node by node.
//!
//! Nodes of one type with the same GPUs in service, the same penalty and free GPUs that are
//! [alike](super::gpus::GpuTable::alike) share a *pattern*: every figure of a choice but the
//! fabric, CPUs and memory is the same on them. There are few patterns, however many nodes there
//! are: 9 for nodes of 8 GPUs behind NVSwitch, some dozens for pairs.
use std::collections::HashMap;

use gpuos_model::gpuset::GpuSet;

use super::bits;

/// The pattern of a node on which nothing is free.
pub const NO_PATTERN: u32 = u32::MAX;

/// What nodes of one pattern have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pattern {
    /// Node type, by number.
    pub type_of: u16,
    /// Penalty of the nodes.
    pub penalty: u16,
    /// GPUs in service.
    pub present: GpuSet,
    /// A free set that stands for all that are alike.
    pub free: GpuSet,
}

impl Pattern {
    /// Whether all GPUs in service are free.
    pub fn is_whole(&self) -> bool {
        self.free.len() == self.present.len()
    }
}

/// Nodes by pattern and by number of free GPUs.
#[derive(Debug)]
pub struct Index {
    words: usize,
    patterns: Vec<Pattern>,
    /// Nodes of each pattern, and where it stands in `active`.
    count: Vec<(u32, u32)>,
    /// Patterns that have nodes, in no particular order: nothing may depend on it.
    active: Vec<u32>,
    /// By pattern: its nodes.
    nodes: Vec<u64>,
    known: HashMap<Pattern, u32>,
    vacant: Vec<u32>,
    /// By position: its pattern, and its free GPUs.
    slot: Vec<u32>,
    free: Vec<GpuSet>,
    /// By number of GPUs: the nodes that have at least so many free.
    least: Vec<u64>,
    /// How many these are.
    counts: Vec<u32>,
    /// The nodes of which all GPUs in service are free.
    whole: Vec<u64>,
}

impl Index {
    /// An index over so many positions, with nothing free. `gpus` = most GPUs of a node;
    /// `patterns` are expected.
    pub fn new(positions: usize, gpus: usize, patterns: usize) -> Index {
        let words = bits::words_for(positions);
        Index {
            words,
            patterns: Vec::with_capacity(patterns),
            count: Vec::with_capacity(patterns),
            active: Vec::with_capacity(patterns),
            nodes: Vec::with_capacity(patterns * words),
            known: HashMap::with_capacity(2 * patterns),
            vacant: Vec::with_capacity(patterns),
            slot: vec![NO_PATTERN; positions],
            free: vec![GpuSet::EMPTY; positions],
            least: vec![0; (gpus + 1) * words],
            counts: vec![0; gpus + 1],
            whole: vec![0; words],
        }
    }

    /// Slots in use, vacant ones included: slots are numbers below this.
    pub fn slots(&self) -> usize {
        self.patterns.len()
    }

    /// The patterns that have nodes.
    pub fn active(&self) -> &[u32] {
        &self.active
    }

    /// A pattern.
    pub fn pattern(&self, slot: u32) -> &Pattern {
        &self.patterns[slot as usize]
    }

    /// The nodes of a pattern.
    pub fn nodes(&self, slot: u32) -> &[u64] {
        &self.nodes[slot as usize * self.words..][..self.words]
    }

    /// The nodes with at least so many free GPUs; `gpus` from 1 to the most that a node has.
    pub fn least(&self, gpus: usize) -> &[u64] {
        &self.least[gpus * self.words..][..self.words]
    }

    /// How many nodes have at least so many free GPUs; 0 past the most that a node has.
    pub fn count(&self, gpus: u64) -> u32 {
        let at = usize::try_from(gpus).unwrap_or(usize::MAX);
        self.counts.get(at).copied().unwrap_or(0)
    }

    /// The nodes of which all GPUs in service are free, and there is one.
    pub fn whole(&self) -> &[u64] {
        &self.whole
    }

    /// Pattern of the node at a position, or [`NO_PATTERN`].
    pub fn slot(&self, at: u32) -> u32 {
        self.slot[at as usize]
    }

    /// Free GPUs of the node at a position.
    pub fn free(&self, at: u32) -> GpuSet {
        self.free[at as usize]
    }

    /// The node at a position has `free` GPUs now, which makes it one of the pattern. Returns the
    /// slot that stands for another pattern from now on, if any does.
    pub fn set(&mut self, at: u32, free: GpuSet, pattern: Pattern) -> Option<u32> {
        let (had, has) = (self.free[at as usize].len(), free.len());
        self.free[at as usize] = free;
        for gpus in had.min(has) + 1..=had.max(has) {
            bits::set_member(&mut self.least[gpus * self.words..], at, has > had);
            let count = &mut self.counts[gpus];
            *count = if has > had { *count + 1 } else { *count - 1 };
        }
        bits::set_member(&mut self.whole, at, has > 0 && free == pattern.present);
        let old = self.slot[at as usize];
        if old != NO_PATTERN && has > 0 && self.patterns[old as usize] == pattern {
            return None;
        }
        if old != NO_PATTERN {
            self.leave(old, at);
        }
        let (slot, opened) = match has {
            0 => (NO_PATTERN, false),
            _ => self.join(pattern, at),
        };
        self.slot[at as usize] = slot;
        opened.then_some(slot)
    }

    fn leave(&mut self, slot: u32, at: u32) {
        bits::set_member(&mut self.nodes[slot as usize * self.words..], at, false);
        let (count, place) = &mut self.count[slot as usize];
        *count -= 1;
        if *count > 0 {
            return;
        }
        let place = *place;
        self.active.swap_remove(place as usize);
        if let Some(&moved) = self.active.get(place as usize) {
            self.count[moved as usize].1 = place;
        }
        self.known.remove(&self.patterns[slot as usize]);
        self.vacant.push(slot);
    }

    fn join(&mut self, pattern: Pattern, at: u32) -> (u32, bool) {
        let known = self.known.get(&pattern).copied();
        let slot = known.unwrap_or_else(|| self.open(pattern));
        bits::set_member(&mut self.nodes[slot as usize * self.words..], at, true);
        self.count[slot as usize].0 += 1;
        (slot, known.is_none())
    }

    fn open(&mut self, pattern: Pattern) -> u32 {
        let place = self.active.len() as u32;
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.patterns[slot as usize] = pattern;
                self.count[slot as usize] = (0, place);
                slot
            }
            None => {
                self.patterns.push(pattern);
                self.count.push((0, place));
                self.nodes.resize(self.nodes.len() + self.words, 0);
                self.patterns.len() as u32 - 1
            }
        };
        self.active.push(slot);
        self.known.insert(pattern, slot);
        slot
    }
}
