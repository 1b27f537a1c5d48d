//! How ranks start, and why they save.

use std::fmt;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use serde::{Deserialize, Serialize};

/// A rank that has started and asks how to begin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Join {
    /// The rank, below `size`.
    pub rank: u16,
    /// Ranks of the program.
    pub size: u16,
    /// Another one at each start of the program.
    pub nonce: u64,
}

/// How a rank begins.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Start {
    /// There is no checkpoint.
    New,
    /// From this checkpoint.
    Restore {
        /// Which.
        id: CheckpointId,
        /// The node that holds this rank's files.
        from: NodeIndex,
    },
    /// From this checkpoint of another number of ranks, all of whose files the program can read.
    All {
        /// Which.
        id: CheckpointId,
        /// The node that holds the files of each of its ranks.
        holders: Vec<NodeIndex>,
    },
    /// There are checkpoints, and they cannot be loaded as things are: a sentence.
    Failed(String),
}

/// Why a checkpoint is wanted, in the order of what prevails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Reason {
    /// It is time.
    Interval,
    /// A user or an administrator has asked.
    Asked,
    /// The job will be ended afterwards.
    End,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Interval => "interval",
            Reason::Asked => "asked",
            Reason::End => "end",
        })
    }
}
