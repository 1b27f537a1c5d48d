//! Nodes by what a job makes them lose, kept from one decision to the next.
//!
//! For each of the last few forms of request there is a bitmap of the nodes in each step of loss.
//! A decision looks anew at those of the nodes in question that have changed since it looked at them
//! last, and finds the best of many by the bitmaps, 64 at a time. The figures depend on the nodes' states
//! alone: what is kept makes no difference to the choice. What scarce node types cost besides
//! changes with the state of the cluster; it is added type by type, at each decision.
use super::bits;
use super::fabric::FabricIndex;
use super::state::State;
use super::supply::Surcharge;
use super::values::{Needs, STEPS, Values};
use crate::frag::MAX_KINDS;

/// Forms of request that are kept.
const TABLES: usize = 16;
/// The kept steps of so many nodes or fewer are compared one by one.
const FEW: usize = 48;
/// The step of a node without enough free GPUs.
const NONE: u8 = u8::MAX;

/// Where the figures of nodes come from.
#[derive(Clone, Copy)]
pub struct NodeFigures<'a> {
    pub state: &'a State,
    pub fabric: &'a FabricIndex,
    pub type_of: &'a [u16],
    pub values: &'a Values,
    /// See [`super::supply::Supplies::surcharge`].
    pub surcharge: Option<&'a Surcharge>,
}

impl NodeFigures<'_> {
    /// What the node at a position is compared by: its step and the surcharge of its type.
    pub fn cost(&self, needs: &Needs, at: u32) -> u32 {
        let node_type = self.type_of[self.fabric.node(at) as usize];
        let of_type = |by: &Surcharge| by.get(usize::from(node_type)).copied();
        let surcharge = self.surcharge.and_then(of_type).unwrap_or(0);
        u32::from(self.step(needs, at)) + u32::from(surcharge)
    }

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
    /// What each table is for.
    forms: Vec<Option<Needs>>,
    tables: Vec<Table>,
    clock: u64,
    /// By node type: its positions.
    types: Vec<Vec<u64>>,
}

#[derive(Debug)]
struct Table {
    /// How many changes of nodes it has seen, and when it was last used.
    version: u64,
    used: u64,
    /// By position: the step, but for those that nobody has looked at since they changed.
    step: Vec<u8>,
    unknown: Vec<u64>,
    /// By step: its nodes, how many they are, and a bit where there are any.
    nodes: Vec<u64>,
    count: [u32; STEPS],
    steps: u128,
}

impl Scores {
    /// Forgets all, and makes room for so many positions, which are of these types. Allocates the
    /// first time.
    pub fn reset(&mut self, positions: usize, types: impl Iterator<Item = u16>) {
        let words = bits::words_for(positions);
        let table = || Table {
            version: 0,
            used: 0,
            step: vec![NONE; positions],
            unknown: vec![u64::MAX; words],
            nodes: vec![0; STEPS * words],
            count: [0; STEPS],
            steps: 0,
        };
        if self.tables.is_empty() {
            self.tables = (0..TABLES).map(|_| table()).collect();
            self.forms = vec![None; TABLES];
            for (at, node_type) in types.enumerate() {
                let number = usize::from(node_type);
                while self.types.len() <= number {
                    self.types.push(vec![0; words]);
                }
                bits::set_member(&mut self.types[number], at as u32, true);
            }
        }
        self.forms.fill(None);
    }

    /// Leaves only the nodes of the set that lose least; says whether any were taken out.
    pub fn narrow(&mut self, look: &NodeFigures, needs: &Needs, set: &mut [u64]) -> bool {
        self.clock += 1;
        let known = self.forms.iter().position(|&form| form == Some(*needs));
        let oldest = || (0..self.tables.len()).min_by_key(|&t| self.tables[t].used);
        let Some(at) = known.or_else(oldest) else {
            return false;
        };
        let table = &mut self.tables[at];
        table.used = self.clock;
        if known.is_none() {
            self.forms[at] = Some(*needs);
            table.forget_all();
        }
        table.refresh(look, needs, set);
        match look.surcharge {
            None => table.narrow(set),
            Some(surcharge) => table.narrow_by_type(set, &self.types, surcharge),
        }
    }
}

impl Table {
    /// Looks at those nodes of the set that have changed since they were looked at last.
    fn refresh(&mut self, look: &NodeFigures, needs: &Needs, set: &[u64]) {
        let changed = look.state.changed_since(self.version);
        match changed.filter(|all| all.len() < self.step.len() / 2) {
            Some(changed) => changed.iter().for_each(|&at| self.forget(at)),
            None => self.forget_all(),
        }
        self.version = look.state.version();
        for (word, &nodes) in set.iter().enumerate() {
            let unknown = self.unknown[word] & nodes;
            if unknown != 0 {
                self.unknown[word] &= !unknown;
                bits::each(word, unknown).for_each(|at| self.insert_step(at, look.step(needs, at)));
            }
        }
    }

    fn forget_all(&mut self) {
        self.unknown.fill(u64::MAX);
        let words = self.unknown.len();
        while self.steps != 0 {
            let step = self.steps.trailing_zeros() as usize;
            self.nodes[step * words..][..words].fill(0);
            self.count[step] = 0;
            self.steps &= self.steps - 1;
        }
    }

    fn forget(&mut self, at: u32) {
        let step = usize::from(self.step[at as usize]);
        if bits::has(&self.unknown, at) {
            return;
        }
        bits::set_member(&mut self.unknown, at, true);
        if step < STEPS {
            bits::set_member(&mut self.nodes[step * self.unknown.len()..], at, false);
            self.count[step] -= 1;
            if self.count[step] == 0 {
                self.steps &= !(1 << step);
            }
        }
    }

    /// The step of a node of which it was not known.
    fn insert_step(&mut self, at: u32, step: u8) {
        self.step[at as usize] = step;
        let step = usize::from(step);
        if step < STEPS {
            bits::set_member(&mut self.nodes[step * self.unknown.len()..], at, true);
            self.count[step] += 1;
            self.steps |= 1 << step;
        }
    }

    /// Leaves the nodes of the lowest step; their steps are known.
    fn narrow(&self, set: &mut [u64]) -> bool {
        if bits::count_all(set) as usize <= FEW {
            return self.narrow_few(set);
        }
        let words = set.len();
        let mut steps = self.steps;
        while steps != 0 {
            let step = steps.trailing_zeros() as usize;
            let nodes = &self.nodes[step * words..][..words];
            if set.iter().zip(nodes).any(|(set, nodes)| set & nodes != 0) {
                let mut narrowed = false;
                for (set, nodes) in set.iter_mut().zip(nodes) {
                    narrowed |= *set & !nodes != 0;
                    *set &= nodes;
                }
                return narrowed;
            }
            steps &= steps - 1;
        }
        false
    }

    fn narrow_few(&self, set: &mut [u64]) -> bool {
        let step = |at: u32| self.step[at as usize];
        let all = set.iter().enumerate();
        let steps = all
            .flat_map(|(word, &nodes)| bits::each(word, nodes))
            .map(step);
        let best = steps.min().unwrap_or(NONE);
        let mut narrowed = false;
        for (word, nodes) in set.iter_mut().enumerate() {
            for at in bits::each(word, *nodes).filter(|&at| step(at) != best) {
                *nodes &= !(1 << (at % 64));
                narrowed = true;
            }
        }
        narrowed
    }

    /// As [`Table::narrow`], where each node type has a surcharge.
    fn narrow_by_type(&self, set: &mut [u64], types: &[Vec<u64>], surcharge: &Surcharge) -> bool {
        let words = set.len();
        let nodes_of = |step: usize| &self.nodes[step * words..][..words];
        let mut cheapest = usize::MAX;
        let mut cost = [usize::MAX; MAX_KINDS];
        let types = types.iter().zip(surcharge.map(usize::from));
        for ((mine, surcharge), cost) in types.clone().zip(&mut cost) {
            let mut steps = self.steps;
            while steps != 0 {
                let step = steps.trailing_zeros() as usize;
                if step + surcharge > cheapest {
                    break;
                }
                let mut all = set.iter().zip(mine).zip(nodes_of(step));
                if all.any(|((set, mine), nodes)| set & mine & nodes != 0) {
                    *cost = step + surcharge;
                    cheapest = *cost;
                    break;
                }
                steps &= steps - 1;
            }
        }
        if cheapest == usize::MAX {
            return false;
        }
        let mut narrowed = false;
        for (word, set) in set.iter_mut().enumerate() {
            let mut left = 0;
            for ((mine, surcharge), cost) in types.clone().zip(cost) {
                if cost == cheapest {
                    left |= mine[word] & nodes_of(cheapest - surcharge)[word];
                }
            }
            narrowed |= *set & !left != 0;
            *set &= left;
        }
        narrowed
    }
}
