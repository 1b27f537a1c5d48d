//! What nodes say to each other, and what a node is to do.
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{CheckpointId, Digest, NodeIndex};

/// A reason from another node is cut to so many bytes.
const MAX_WHY: usize = 400;

/// The digests of the manifests of all nodes, by their [`NodeIndex`]. Copies share the memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Digests(Arc<[Digest]>);

impl From<Vec<Digest>> for Digests {
    fn from(all: Vec<Digest>) -> Digests {
        Digests(all.into())
    }
}

impl Digests {
    /// That of a node. `None`: they are not known.
    pub fn of(&self, node: NodeIndex) -> Option<Digest> {
        self.0.get(usize::from(node.0)).copied()
    }

    /// Whether these are the digests of so many nodes, with this one for the node.
    pub fn agree(&self, nodes: u16, node: NodeIndex, digest: Digest) -> bool {
        self.0.len() == usize::from(nodes) && self.of(node) == Some(digest)
    }
}

/// A message. Who carries it vouches for `from`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    /// Who says it.
    pub from: NodeIndex,
    /// To whom.
    pub to: NodeIndex,
    /// The run of the job: Slurm's count of its restarts. Another run may have other nodes at the same places.
    pub run: u32,
    /// The attempt that it is about.
    pub id: CheckpointId,
    /// What.
    pub body: Body,
}

/// What is said of an attempt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    /// Leader: make your part durable.
    Prepare,
    /// Member: it is, and this is the digest of its manifest.
    Prepared {
        /// The digest.
        digest: Digest,
    },
    /// Member: it has no such part and will not make it.
    Refused {
        /// A sentence.
        why: String,
    },
    /// Leader: all parts are durable, and so is the leader's record of it.
    Commit {
        /// The manifest of the node that this goes to.
        digest: Digest,
    },
    /// Member: its record of the commit is durable.
    Committed,
    /// Leader: it is not committed and never will be. The part may be dropped.
    Abort {
        /// A sentence.
        why: String,
    },
    /// Member: it holds a part, and would drop it if it is not committed.
    Status,
}

/// Something to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send a message to another node.
    Send(Message),
    /// Make this node's part durable: data, shards, manifest and its copies. Answered by `StoreReady` or `StoreFailed`.
    MakePart {
        /// Of this attempt.
        id: CheckpointId,
    },
    /// Write the record of the commit. Answered by `CommitDurable` or `CommitFailed`. May come again, and does no harm then.
    MakeCommitDurable {
        /// Of this attempt.
        id: CheckpointId,
    },
    /// Stop to make this node's part. What is there of it stays for `DropPart`.
    StopPart {
        /// Of this attempt.
        id: CheckpointId,
    },
    /// Stop to make the part and remove it: first the manifests, then segment and shards, which stay if the manifest of another
    /// checkpoint of the set refers to them, as in [`retention`](crate::retention).
    DropPart {
        /// The attempt.
        id: CheckpointId,
    },
    /// Tell the program on this node how an attempt ended.
    TellProgram {
        /// The attempt.
        id: CheckpointId,
        /// How.
        outcome: Outcome,
    },
    /// `Begin` was refused; nothing has changed.
    RefuseBegin {
        /// The attempt that does not begin.
        id: CheckpointId,
        /// A sentence: the reason and what to do.
        why: String,
    },
    /// A committed checkpoint lacks the part of a node. Others make up for it; it should be rebuilt.
    Missing {
        /// The checkpoint.
        id: CheckpointId,
        /// The node.
        node: NodeIndex,
        /// What it said.
        why: String,
    },
}

/// How an attempt ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All nodes have their parts. It stays restorable until a newer one is committed.
    Committed,
    /// Not to be counted on; the checkpoint before is as it was. It may still be found complete when the job restarts.
    Failed {
        /// A sentence.
        why: String,
    },
}

/// A reason as it may be passed on: not longer than a few lines, whatever another node sent.
pub(super) fn short(why: &str) -> String {
    let mut end = why.len().min(MAX_WHY);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    why[..end].to_string()
}
