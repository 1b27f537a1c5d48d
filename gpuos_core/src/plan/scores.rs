//! Nodes by what a job makes them lose, kept from one decision to the next.
//!
//! For each of the last few forms of request there is a bitmap of the nodes in each step of loss.
//! A decision looks anew at the nodes that have changed since the last one of that form, and
//! finds the best of many by the bitmaps, 64 at a time. The figures depend on the nodes' states
//! alone: what is kept makes no difference to the choice.

use super::bits;
use super::fabric::FabricIndex;
use super::state::State;
use super::values::{Needs, STEPS, Values};

/// Forms of request that are kept.
const TABLES: usize = 16;
/// So many nodes or fewer are compared one by one.
const FEW: usize = 48;
/// The step of a node without enough free GPUs.
const NONE: u8 = u8::MAX;

/// Where the figures of nodes come from.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    pub state: &'a State,
    pub fabric: &'a FabricIndex,
    pub type_of: &'a [u16],
    pub values: &'a Values,
}

impl Look<'_> {
    /// Step of the node at a position.
    pub fn step(&self, needs: &Needs, at: u32) -> u8 {
        let node = self.state.node(at);
        if (node.free.len() as u32) < needs.gpus {
            return NONE;
        }
        let has = (node.free_cpus, node.free_memory_mib);
        let node_type = self.type_of[self.fabric.node(at) as usize];
        self.values.step(node_type, node.free, has, needs)
    }
}

/// The kept steps.
#[derive(Debug, Default)]
pub struct Scores {
    tables: Vec<Table>,
    clock: u64,
}

#[derive(Debug)]
struct Table {
    needs: Option<Needs>,
    /// How many changes of nodes it has seen, and when it was last used.
    version: u64,
    used: u64,
    /// By position.
    step: Vec<u8>,
    /// By step: its nodes, and how many they are.
    nodes: Vec<u64>,
    count: [u32; STEPS],
}

impl Scores {
    /// Forgets all, and makes room for so many positions. Allocates the first time.
    pub fn reset(&mut self, positions: usize) {
        let table = || Table {
            needs: None,
            version: 0,
            used: 0,
            step: vec![NONE; positions],
            nodes: vec![0; STEPS * bits::words_for(positions)],
            count: [0; STEPS],
        };
        if self.tables.is_empty() {
            self.tables = (0..TABLES).map(|_| table()).collect();
        }
        self.tables.iter_mut().for_each(|table| table.needs = None);
    }

    /// Leaves only the nodes of the set that lose least; says whether any were taken out.
    pub fn narrow(&mut self, look: &Look, needs: &Needs, set: &mut [u64]) -> bool {
        let nodes = bits::count_all(set);
        if nodes as usize <= FEW {
            return narrow_few(look, needs, set);
        }
        self.clock += 1;
        let known = self.tables.iter().position(|t| t.needs == Some(*needs));
        let oldest = || (0..self.tables.len()).min_by_key(|&t| self.tables[t].used);
        let Some(table) = known.or_else(oldest) else {
            return false;
        };
        let table = &mut self.tables[table];
        table.used = self.clock;
        table.refresh(look, needs);
        table.narrow(set);
        bits::count_all(set) < nodes
    }
}

impl Table {
    fn refresh(&mut self, look: &Look, needs: &Needs) {
        let changed = look.state.changed_since(self.version);
        let changed = changed.filter(|all| self.needs.is_some() && all.len() < self.step.len() / 2);
        match changed {
            Some(changed) => {
                for &at in changed {
                    self.put(at, look.step(needs, at));
                }
            }
            None => {
                self.needs = Some(*needs);
                self.nodes.fill(0);
                self.count.fill(0);
                self.step.fill(NONE);
                for at in 0..self.step.len() as u32 {
                    self.put(at, look.step(needs, at));
                }
            }
        }
        self.version = look.state.version();
    }

    fn put(&mut self, at: u32, step: u8) {
        let words = bits::words_for(self.step.len());
        let old = std::mem::replace(&mut self.step[at as usize], step);
        if old == step {
            return;
        }
        for (step, member) in [(old, false), (step, true)] {
            let step = usize::from(step);
            if let Some(count) = self.count.get_mut(step) {
                *count = if member { *count + 1 } else { *count - 1 };
                bits::put(&mut self.nodes[step * words..][..words], at, member);
            }
        }
    }

    fn narrow(&self, set: &mut [u64]) {
        let words = set.len();
        let steps = (0..STEPS).filter(|&step| self.count[step] > 0);
        for nodes in steps.map(|step| &self.nodes[step * words..][..words]) {
            if set.iter().zip(nodes).any(|(set, nodes)| set & nodes != 0) {
                set.iter_mut().zip(nodes).for_each(|(set, n)| *set &= n);
                return;
            }
        }
    }
}

fn narrow_few(look: &Look, needs: &Needs, set: &mut [u64]) -> bool {
    let mut list = [(NONE, 0u32); FEW];
    let mut len = 0;
    for (word, &nodes) in set.iter().enumerate() {
        for at in bits::each(word, nodes) {
            list[len] = (look.step(needs, at), at);
            len += 1;
        }
    }
    let best = list[..len].iter().map(|&(step, _)| step).min();
    let mut narrowed = false;
    for &(_, at) in list[..len].iter().filter(|(step, _)| Some(*step) != best) {
        bits::put(set, at, false);
        narrowed = true;
    }
    narrowed
}
