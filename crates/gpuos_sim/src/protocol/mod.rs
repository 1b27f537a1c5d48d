//! Protocols: how jobs arrive and end, and what is measured.
//!
//! Each one is a module of its own with a machine that takes one step at a time. All of them
//! share [`Cell`], which starts and ends jobs by a policy.

pub mod inflation;
pub mod lifetimes;

use gpuos_model::rng::Rng;
use gpuos_placement::frag::{Cluster, Node, Request};

use crate::policy::Policy;

/// A cluster under a policy.
pub struct Cell {
    cluster: Cluster,
    policy: Box<dyn Policy>,
    /// Thousandths of a GPU that run.
    allocated: u64,
}

/// Where a job runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Running {
    /// Index of the node.
    pub node: usize,
    /// Its GPUs, as a bit mask.
    pub devices: u16,
}

impl Cell {
    /// An idle cluster; `nodes` in the order in which a policy sees them.
    pub fn new(nodes: Vec<Node>, policy: Box<dyn Policy>) -> Cell {
        Cell {
            cluster: Cluster::new(nodes),
            policy,
            allocated: 0,
        }
    }

    /// Starts a job that has just arrived, or rejects it: `None` when it fits nowhere.
    pub fn arrive(&mut self, request: &Request) -> Option<Running> {
        let choice = self.policy.choose(&self.cluster, request)?;
        let devices = self.cluster.start(choice.node, request, choice.slot);
        self.policy.started(choice.node, request);
        self.allocated += u64::from(request.milli());
        Some(Running {
            node: choice.node,
            devices,
        })
    }

    /// Ends a job that runs.
    pub fn end(&mut self, running: Running, request: &Request) {
        self.cluster.end(running.node, request, running.devices);
        self.policy.ended(running.node, request);
        self.allocated -= u64::from(request.milli());
    }

    /// Thousandths of a GPU that run.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

/// The nodes in a random order: policies take the first of equal ones, and which these are shall
/// not hang on the order of the list.
fn shuffled(nodes: &[Node], rng: &mut Rng) -> Vec<Node> {
    let mut nodes = nodes.to_vec();
    rng.shuffle(&mut nodes);
    nodes
}
