//! A checkpoint, an attempt at it, and a node, by their numbers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One attempt at a checkpoint of a job. Parts of two attempts never belong together, though both may have the same number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct CheckpointId {
    /// Counts up from 1 in a job, over its restarts.
    pub number: u32,
    /// Drawn at random by the node that leads the attempt.
    pub attempt: u64,
}

impl fmt::Display for CheckpointId {
    /// As folders are named: `12-00c0ffee00c0ffee`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.number, self.attempt)
    }
}

/// A node by its place in the list of the job's nodes, from 0. The first leads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeIndex(pub u16);

/// The node that leads.
pub const LEADER: NodeIndex = NodeIndex(0);

impl fmt::Display for NodeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A keyed digest of 32 bytes (BLAKE3). What computes it has the key; the thinking compares.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
