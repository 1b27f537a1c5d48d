//! The state of the nodes as the planner holds it, and the events that change it.
use gpuos_model::gpuset::GpuSet;

use super::Planner;
use super::bits;
use super::fabric::FabricIndex;
use super::index::{Index, Pattern};
use super::job::Assume;
use super::types::NodeState;

/// What the planner holds of all nodes.
#[derive(Debug)]
pub struct State {
    /// By node: as it was given.
    reported: Vec<NodeState>,
    /// By position: with nothing but GPUs of the node's type that are in service.
    nodes: Vec<NodeState>,
    /// What is free now, and what would be if nothing ran.
    pub now: Index,
    pub empty: Index,
    /// Nodes that the scheduler offers at all; that have GPUs in service; with an affinity figure.
    offered: Vec<u64>,
    alive: Vec<u64>,
    pub marked: Vec<u64>,
    /// By position: when the last job there ends ([`NodeState::until`]); 0 on nodes that are whole.
    pub until: Vec<u32>,
    /// By word: the least free CPUs and memory of a node in it that has free GPUs.
    pub floor: Vec<(u32, u64)>,
    /// Positions that have changed by more than affinity and the ends of jobs, one after the other, and
    /// how many such changes there were before the first of them.
    changes: Vec<u32>,
    dropped: u64,
    /// By level and span: how many of the nodes on offer are wholly free; 0 for those in no domain.
    whole: Vec<Vec<u32>>,
    /// The candidates of the decision at hand, where these are not all that are on offer.
    restricted: bool,
    within: Vec<u64>,
    spare: Vec<u64>,
}

impl State {
    /// Nothing known of any node: none is offered.
    pub fn new(nodes: usize, fabric: &FabricIndex, gpus: usize, patterns: usize) -> State {
        let positions = fabric.len() as usize;
        let patterns = patterns.min(positions);
        let words = bits::words_for(positions);
        State {
            reported: vec![NodeState::default(); nodes],
            nodes: vec![NodeState::default(); positions],
            now: Index::new(positions, gpus, patterns),
            empty: Index::new(positions, gpus, patterns),
            offered: vec![0; words],
            alive: vec![0; words],
            marked: vec![0; words],
            until: vec![0; positions],
            floor: vec![(u32::MAX, u64::MAX); words],
            changes: Vec::with_capacity(2 * positions + 64),
            dropped: 0,
            whole: fabric.by_span(),
            restricted: false,
            within: vec![0; words],
            spare: vec![0; words],
        }
    }

    /// What is free under an assumption.
    pub fn index(&self, assume: Assume) -> &Index {
        match assume {
            Assume::Now => &self.now,
            Assume::Idle | Assume::Empty => &self.empty,
        }
    }

    /// The nodes that count under an assumption, one word of them.
    pub fn allowed(&self, assume: Assume, word: usize) -> u64 {
        match assume {
            Assume::Now => self.candidates()[word],
            Assume::Idle => self.candidates()[word] & self.alive[word],
            Assume::Empty => u64::MAX,
        }
    }

    /// The candidates of the decision at hand.
    pub fn candidates(&self) -> &[u64] {
        match self.restricted {
            true => &self.within,
            false => &self.offered,
        }
    }

    /// Whether all nodes on offer are candidates of the decision at hand.
    pub fn unrestricted(&self) -> bool {
        !self.restricted || self.within == self.offered
    }

    /// Number of positions.
    pub fn positions(&self) -> usize {
        self.nodes.len()
    }

    /// By level and span of the fabric: how many nodes on offer are wholly free; 0 for those in no
    /// domain.
    pub fn whole(&self) -> &[Vec<u32>] {
        &self.whole
    }

    /// Whether that is the same for the candidates of the decision at hand: none that is wholly free was
    /// left out.
    pub fn keeps_all_free_nodes(&self) -> bool {
        !self.restricted || (0..self.within.len()).all(|word| self.excluded_free(word) == 0)
    }

    /// The wholly free nodes that are on offer, but no candidates of the decision at hand.
    pub fn excluded_free(&self, word: usize) -> u64 {
        self.offered[word] & self.now.whole()[word] & !self.candidates()[word]
    }

    /// Whether the node at a position counts in [`State::whole`].
    fn counts_whole(&self, at: u32) -> bool {
        bits::has(&self.offered, at) && bits::has(self.now.whole(), at)
    }

    /// The node at a position, as it is.
    pub fn node(&self, at: u32) -> &NodeState {
        &self.nodes[at as usize]
    }

    /// The node at a position under an assumption.
    pub fn assumed(&self, assume: Assume, at: u32) -> NodeState {
        let node = self.node(at);
        if assume == Assume::Now {
            return NodeState {
                candidate: bits::has(self.candidates(), at),
                ..*node
            };
        }
        let free = self.empty.free(at);
        NodeState {
            candidate: self.allowed(assume, at as usize / 64) >> (at % 64) & 1 == 1,
            present: free,
            free,
            free_cpus: u32::MAX,
            free_memory_mib: u64::MAX,
            ..NodeState::default()
        }
    }

    /// How many changes there have been.
    pub fn version(&self) -> u64 {
        self.dropped + self.changes.len() as u64
    }

    /// The positions that have changed since `version`, perhaps some of them twice; `None` when
    /// that is too long ago to tell.
    pub fn changed_since(&self, version: u64) -> Option<&[u32]> {
        let from = version.checked_sub(self.dropped)?;
        self.changes.get(from as usize..)
    }

    fn note(&mut self, at: u32) {
        if self.changes.len() == self.changes.capacity() {
            self.dropped += self.changes.len() as u64;
            self.changes.clear();
        }
        self.changes.push(at);
    }

    /// Lowers or raises the floor of a word after the node at a position has changed.
    fn update_floor(&mut self, at: u32, old: NodeState) {
        let of = |node: &NodeState| match node.free.is_empty() {
            true => (u32::MAX, u64::MAX),
            false => (node.free_cpus, node.free_memory_mib),
        };
        let (was, is) = (of(&old), of(self.node(at)));
        let word = at as usize / 64;
        let floor = self.floor[word];
        if (was.0 > floor.0 || is.0 <= floor.0) && (was.1 > floor.1 || is.1 <= floor.1) {
            self.floor[word] = (floor.0.min(is.0), floor.1.min(is.1));
            return;
        }
        let start = word * 64;
        let nodes = &self.nodes[start..self.nodes.len().min(start + 64)];
        self.floor[word] = nodes
            .iter()
            .map(of)
            .fold((u32::MAX, u64::MAX), |low, node| {
                (low.0.min(node.0), low.1.min(node.1))
            });
    }
}

impl Planner {
    /// The event: the node is in this state from now on. A node that the cluster does not have
    /// is ignored. Until its first event a node counts as one that no job may use.
    pub fn update(&mut self, node: u32, state: NodeState) {
        let Some(given) = self.state.reported.get_mut(node as usize) else {
            return;
        };
        *given = state;
        let Some(at) = self.fabric.place(node) else {
            return;
        };
        let all = self.tables[self.type_of[node as usize] as usize].all;
        let present = state.present.and(all);
        let new = NodeState {
            present,
            free: state.free.and(present),
            ..state
        };
        let was_whole = self.state.counts_whole(at);
        let old = std::mem::replace(&mut self.state.nodes[at as usize], new);
        if (old.free, old.present, old.penalty) != (new.free, new.present, new.penalty) {
            self.index_node(at, old.present != present);
        }
        let held = &mut self.state;
        // All that ranks hang on but affinity and the ends of jobs.
        let told = NodeState {
            affinity: old.affinity,
            until: old.until,
            ..new
        };
        if told != old {
            held.note(at);
        }
        let offered = |node: &NodeState| if node.candidate { node.free.len() } else { 0 };
        if offered(&old) != offered(&new) {
            let node_type = self.type_of[node as usize];
            self.supplies
                .change(node_type, offered(&old), offered(&new));
        }
        bits::set_member(&mut held.offered, at, new.candidate);
        let is_whole = held.counts_whole(at);
        if was_whole != is_whole {
            self.fabric.around(at, |level, span| {
                let count = &mut held.whole[level][span];
                *count = if is_whole { *count + 1 } else { *count - 1 };
            });
        }
        bits::set_member(&mut held.alive, at, !present.is_empty());
        bits::set_member(&mut held.marked, at, new.affinity != 0);
        held.until[at as usize] = if new.free == present { 0 } else { new.until };
        held.update_floor(at, old);
    }

    /// Takes over the states of all nodes: an event for each that differs from what is held.
    /// Missing entries count as nodes that the job may not use.
    pub fn sync(&mut self, states: &[NodeState]) {
        let mut from = 0;
        while let Some(known) = self.state.reported.get(from..) {
            let mut pairs = known.iter().zip(states.get(from..).unwrap_or_default());
            let Some(next) = pairs.position(|(known, state)| differ(known, state)) else {
                break;
            };
            let node = from + next;
            self.update(node as u32, states[node]);
            from = node + 1;
        }
        for node in states.len()..self.state.reported.len() {
            if self.state.reported[node] != NodeState::default() {
                self.update(node as u32, NodeState::default());
            }
        }
    }

    /// The state of a node as it was given last.
    pub fn state(&self, node: u32) -> Option<&NodeState> {
        self.state.reported.get(node as usize)
    }

    /// Sets what free GPUs of a node type are worth to the mix of jobs that is expected: for
    /// each set of its GPUs, as a bit mask, thousandths of a GPU. `node_type` counts the
    /// different types of the cluster in the order of their first nodes. From then on every rule
    /// but [`super::Placement::BestFit`] goes by these values.
    ///
    /// Errors: a sentence, when there is no such type, it has more than 16 GPUs, or the table is
    /// not of 2 to the power of its GPUs.
    pub fn set_mask_values(&mut self, node_type: usize, values: &[u32]) -> Result<(), String> {
        let types = self.tables.len();
        let table = self.tables.get_mut(node_type).ok_or_else(|| {
            format!("there is no node type number {node_type}: the cluster has {types}")
        })?;
        table.learn(values)?;
        self.figures.forget_all();
        self.invalidate_cache();
        for at in 0..self.fabric.len() {
            let node = self.fabric.node(at);
            if usize::from(self.type_of[node as usize]) == node_type {
                self.index_node(at, true);
            }
        }
        Ok(())
    }

    /// Brings the indexes up to date with the node at a position; with `service`, also that of
    /// the empty cluster.
    pub(super) fn index_node(&mut self, at: u32, service: bool) {
        let type_of = self.type_of[self.fabric.node(at) as usize];
        let table = &self.tables[type_of as usize];
        let node = self.state.nodes[at as usize];
        let pattern = |present: GpuSet, free: GpuSet, penalty: u16| Pattern {
            type_of,
            penalty,
            present,
            free: table.alike(free),
        };
        let held = &mut self.state;
        let now = pattern(node.present, node.free, node.penalty);
        let opened = held.now.set(at, node.free, now);
        if service {
            // A node that the scheduler did not describe counts with what its type has.
            let all = match node.present.is_empty() {
                true => table.all,
                false => node.present,
            };
            held.empty.set(at, all, pattern(all, all, 0));
        }
        let slots = held.now.slots().max(held.empty.slots());
        self.capacity.reserve(slots);
        self.single.reserve(slots);
        self.figures.reserve(held.now.slots());
        if let Some(slot) = opened {
            self.figures.forget(slot);
        }
    }

    /// Fixes the candidates of the decision at hand: the nodes on offer, and of these only the
    /// ones in the bitmap by node index, if there is one.
    pub(super) fn candidates(&mut self, within: Option<&[u64]>) {
        let state = &mut self.state;
        state.restricted = within.is_some();
        if let Some(nodes) = within {
            state.within.copy_from_slice(&state.offered);
            self.fabric
                .restrict(nodes, &mut state.within, &mut state.spare);
        }
    }
}

/// Whether two states differ, without a branch for each field: most do not.
fn differ(a: &NodeState, b: &NodeState) -> bool {
    let wide = (a.present.0 ^ b.present.0)
        | (a.free.0 ^ b.free.0)
        | (a.free_memory_mib ^ b.free_memory_mib);
    let narrow = (a.free_cpus ^ b.free_cpus)
        | (a.until ^ b.until)
        | u32::from((a.affinity ^ b.affinity) | (a.penalty ^ b.penalty))
        | u32::from(a.candidate ^ b.candidate);
    wide | u64::from(narrow) != 0
}
