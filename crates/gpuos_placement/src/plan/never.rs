//! Why a job could never run, as data: recordings compare it, and people read its sentence.
use std::fmt;

use serde::{Deserialize, Serialize};

use super::types::Unit;

/// Why a job does not fit even if nothing else runs. `Display` makes the sentence; its wording is free to
/// change, as only the data are compared when a recording is replayed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Never {
    /// It asks for no GPU.
    NoGpu,
    /// It names more nodes than it may have.
    Named {
        /// Nodes that it names.
        named: u32,
        /// Nodes that it may have.
        most: u32,
    },
    /// It names a node past the last one.
    NoSuchNode {
        /// Index of that node.
        node: u32,
    },
    /// Fewer tasks than nodes.
    Tasks {
        /// Tasks with GPUs.
        tasks: u32,
        /// Fewest nodes.
        nodes: u32,
    },
    /// Fewer GPUs in all than nodes.
    TotalGpus {
        /// GPUs in all.
        gpus: u32,
        /// Fewest nodes.
        nodes: u32,
    },
    /// Several nodes at a level that lies inside one.
    InsideNode {
        /// Fewest nodes.
        nodes: u32,
        /// The required level.
        level: String,
    },
    /// The nodes that it names do not lie in one domain.
    Apart {
        /// The required level.
        level: String,
    },
    /// No domain of the required level is large enough.
    Domain {
        /// What is counted.
        unit: Unit,
        /// How many it needs.
        need: u32,
        /// How many the largest domain has.
        have: u32,
        /// The largest domain; empty when there is none.
        domain: String,
        /// The required level.
        level: String,
    },
    /// A node that it names is too small.
    Node {
        /// Name of the node.
        name: String,
    },
    /// Too few GPUs on as many nodes as it may have.
    Gpus {
        /// GPUs that it needs.
        need: u32,
        /// GPUs that so many nodes have for it.
        have: u32,
        /// Fewest and most nodes.
        nodes: (u32, u32),
    },
    /// Too few nodes with a share for it.
    Nodes {
        /// GPUs of each share.
        gpus: u32,
        /// Nodes with so many.
        have: u32,
        /// Fewest and most nodes.
        nodes: (u32, u32),
    },
    /// A sentence, as recordings up to form 5 have it.
    Said(String),
}

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Never::NoGpu => f.write_str("the job asks for no GPU"),
            Never::Named { named, most } => write!(
                f,
                "the job names {named} nodes that it needs but may have at most {most}"
            ),
            Never::NoSuchNode { node } => write!(
                f,
                "the job needs node number {node}, which the cluster does not have"
            ),
            Never::Tasks { tasks, nodes } => {
                write!(f, "{tasks} tasks with GPUs cannot use {nodes} nodes")
            }
            Never::TotalGpus { gpus, nodes } => write!(
                f,
                "{gpus} GPUs in all cannot use {nodes} nodes: each needs one"
            ),
            Never::InsideNode { nodes, level } => write!(
                f,
                "{nodes} nodes cannot lie within one domain of the level {level}"
            ),
            Never::Apart { level } => write!(
                f,
                "the nodes that the job names do not lie within one domain of the level {level}"
            ),
            Never::Domain {
                unit,
                need,
                have,
                domain,
                level,
            } => {
                let what = match unit {
                    Unit::Nodes => "nodes",
                    Unit::Gpus => "GPUs",
                };
                write!(
                    f,
                    "the job needs {need} {what} within one domain of the level {level}; the largest \
                     ({domain}) has {have}"
                )
            }
            Never::Node { name } => write!(
                f,
                "the job names node {name}, which has no room for it even when it is idle"
            ),
            Never::Gpus { need, have, nodes } => write!(
                f,
                "the job needs {need} GPUs on {}; there is room for {have} on so many",
                Range(*nodes)
            ),
            Never::Nodes { gpus, have, nodes } => write!(
                f,
                "the job needs {} with {gpus} GPUs each and CPUs and memory for them; there {} {have}",
                Range(*nodes),
                if *have == 1 { "is" } else { "are" },
            ),
            Never::Said(sentence) => f.write_str(sentence),
        }
    }
}

/// Fewest and most nodes.
struct Range((u32, u32));

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            (1, 1) => f.write_str("1 node"),
            (min, max) if min == max => write!(f, "{min} nodes"),
            (min, max) => write!(f, "{min} to {max} nodes"),
        }
    }
}
