//! What a node has to say.

use gpuos_checkpoint::commit::Outcome;
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::refusal::Refusal;
use serde::{Deserialize, Serialize};

/// Something that the caller does or passes on, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send bytes to another node. They may be lost, repeated and late.
    Send {
        /// To whom.
        to: NodeIndex,
        /// A message for its [`receive`](crate::node::Node::receive).
        bytes: Vec<u8>,
    },
    /// The program's folder was read: the program may write there again.
    FolderRead {
        /// For this attempt.
        id: CheckpointId,
    },
    /// An attempt has ended on this node.
    Ended {
        /// The attempt.
        id: CheckpointId,
        /// How.
        outcome: Outcome,
    },
    /// An attempt was not begun; nothing has changed.
    RefusedBegin {
        /// The attempt.
        id: CheckpointId,
        /// A sentence.
        why: String,
    },
    /// The restart is over on this node: checkpoints can be made.
    Ready(Ready),
    /// [`rebuild`](crate::node::Node::rebuild) has ended.
    Rebuilt {
        /// The checkpoint.
        id: CheckpointId,
        /// A sentence, if its part could not be made again.
        failed: Option<String>,
    },
    /// Something that an administrator may want to know, as a sentence.
    Note(String),
}

/// With what a job goes on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// The checkpoint to restore, the same on all nodes, whose part is here. `None`: there is none.
    pub restore: Option<CheckpointId>,
    /// Newer ones that cannot be restored, each with the reason.
    pub passed_over: Vec<String>,
    /// Those that a program could not load, as far as anything is left of them.
    pub refused: Vec<(CheckpointId, Refusal)>,
    /// The highest number that any node has something of: the next one is above it.
    pub highest: u32,
    /// There is a committed checkpoint, and none can be restored: a program that began anew would take its place.
    pub lost: bool,
}
