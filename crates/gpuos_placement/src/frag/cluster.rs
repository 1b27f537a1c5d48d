//! Nodes, GPU by GPU, and which of them have changed.
use super::request::{MAX_DEVICES, MILLI, Request, Slot, State};

/// One node: its idle cores, memory and GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// Idle thousandths of a core.
    pub cpu: u32,
    /// Idle memory, in MiB.
    pub memory: u32,
    /// Free thousandths of each GPU, by index.
    pub free: [u16; MAX_DEVICES],
    /// GPUs.
    pub gpus: u8,
    /// Their model, below 64.
    pub model: u8,
    /// Nodes of one cluster with the same number are alike when idle; [`Cluster::new`] counts
    /// them, up to 255.
    pub kind: u8,
}

impl Node {
    /// An idle node. GPUs past [`MAX_DEVICES`] are left out.
    pub fn idle(cpu: u32, memory: u32, gpus: u8, model: u8) -> Node {
        let gpus = gpus.min(MAX_DEVICES as u8);
        let mut free = [0; MAX_DEVICES];
        free[..usize::from(gpus)].fill(MILLI);
        Node {
            cpu,
            memory,
            free,
            gpus,
            model,
            kind: 0,
        }
    }

    fn state(&self) -> State {
        let mut free = self.free;
        free.sort_unstable();
        State {
            cpu: self.cpu,
            memory: self.memory,
            free,
            gpus: self.gpus,
            model: self.model,
            kind: self.kind,
        }
    }
}

/// The nodes of a cluster and a log of which have changed, for those who keep scores of them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    nodes: Vec<Node>,
    states: Vec<State>,
    /// By kind: the state of an idle node.
    idle: Vec<State>,
    changes: Vec<u32>,
    /// Changes before the first in `changes`.
    dropped: u64,
}

impl Cluster {
    /// A cluster of these nodes, all idle, in the order in which equal ones are preferred.
    pub fn new(mut nodes: Vec<Node>) -> Cluster {
        let mut idle: Vec<Node> = Vec::new();
        for node in &mut nodes {
            node.kind = 0;
            let known = idle.iter().position(|other| other == node);
            if known.is_none() {
                idle.push(*node);
            }
            node.kind = known.unwrap_or(idle.len() - 1).min(usize::from(u8::MAX)) as u8;
        }
        Cluster {
            states: nodes.iter().map(Node::state).collect(),
            nodes,
            idle: idle.iter().map(Node::state).collect(),
            changes: Vec::new(),
            dropped: 0,
        }
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Their states.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// What an idle node is, by kind.
    pub fn kinds(&self) -> &[State] {
        &self.idle
    }

    /// How many changes there have been.
    pub fn version(&self) -> u64 {
        self.dropped + self.changes.len() as u64
    }

    /// The nodes that have changed since `version`, perhaps some of them twice; `None` when that
    /// is too long ago to tell.
    pub fn changed_since(&self, version: u64) -> Option<&[u32]> {
        let from = version.checked_sub(self.dropped)?;
        self.changes.get(from as usize..)
    }

    /// Starts a request on a node with the GPU of `slot`; answers the GPUs that it got, as a bit
    /// mask. Only for a request that fits. A sharing request gets the first GPU that has as much
    /// free as the slot, a request for whole GPUs the first free ones.
    pub fn start(&mut self, node: usize, request: &Request, slot: Slot) -> u16 {
        let wanted = if request.shares() {
            self.states[node].free[slot]
        } else {
            MILLI
        };
        let at = &mut self.nodes[node];
        at.cpu = at.cpu.saturating_sub(request.cpu);
        at.memory = at.memory.saturating_sub(request.memory);
        let mut taken = 0u16;
        for (device, free) in at.free.iter_mut().enumerate() {
            if taken.count_ones() < u32::from(request.gpus) && *free == wanted {
                *free = free.saturating_sub(request.share);
                taken |= 1 << device;
            }
        }
        self.note(node);
        taken
    }

    /// Ends a request on the GPUs that [`Cluster::start`] gave it.
    pub fn end(&mut self, node: usize, request: &Request, devices: u16) {
        let at = &mut self.nodes[node];
        at.cpu += request.cpu;
        at.memory += request.memory;
        for device in (0..MAX_DEVICES).filter(|&device| devices >> device & 1 == 1) {
            at.free[device] = (at.free[device] + request.share).min(MILLI);
        }
        self.note(node);
    }

    fn note(&mut self, node: usize) {
        self.states[node] = self.nodes[node].state();
        if self.changes.len() >= 4 * self.nodes.len() + 64 {
            self.dropped += self.changes.len() as u64;
            self.changes.clear();
        }
        self.changes.push(node as u32);
    }
}
