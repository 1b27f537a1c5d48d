//! What a conductor takes and gives.

use std::collections::BTreeSet;

use gpuos_checkpoint::commit::Outcome;
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::interval::choice::Limits;
use serde::{Deserialize, Serialize};

use super::start::{Join, Reason, Start};
use super::word::Word;
use crate::output::Ready;

/// What a rank was told that has an answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Told {
    /// To begin from its start.
    New,
    /// To go on from the checkpoint with this number.
    Restore(u32),
    /// To end with an error.
    Failed,
}

/// A join whose answer lies in the folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Answered {
    /// The join.
    pub join: Join,
    /// The epoch to which the answer belongs.
    pub epoch: u64,
    /// What was told.
    pub told: Told,
}

/// What the folder of the programs shows of what was done on this node in this run of the job, also by an earlier conductor.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Known {
    /// The last answered join of each rank.
    pub answered: Vec<Answered>,
    /// The highest epoch of an answer; 0: there is none, or none of a conductor's.
    pub epoch: u64,
    /// The highest number of a checkpoint that the programs have heard of.
    pub highest: u32,
    /// A checkpoint that an earlier conductor has asked for, and of which the programs do not know yet what became of it.
    pub open: Option<u32>,
    /// What they knew when that one ended: the newest checkpoint that exists.
    pub committed: Option<u32>,
    /// Likewise the newest that came to nothing.
    pub failed: Option<u32>,
}

/// A rank could not load the checkpoint that it was told to restore.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// The join that was told so.
    pub join: Join,
    /// The checkpoint.
    pub number: u32,
    /// What the program says about it, [`MAX_SAID`](gpuos_checkpoint::refusal::MAX_SAID) bytes at most. The user's text.
    pub said: String,
}

/// How often a checkpoint is made.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Every {
    /// After so many milliseconds.
    Fixed(u64),
    /// As it pays.
    Auto {
        /// Mean time between failures of the job, in seconds.
        mtbf_s: f64,
        /// What bounds the interval.
        limits: Limits,
    },
}

/// What a conductor has to know before it starts. All nodes have the same but for `own`.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// This node.
    pub own: NodeIndex,
    /// Nodes of the job.
    pub nodes: u16,
    /// The run of the job. A node that restarts belongs to a new run.
    pub run: u32,
    /// How often.
    pub every: Every,
    /// One that somebody asks for comes no sooner than so long after the one before it was begun, in milliseconds. One for the job's end does.
    pub least_ms: u64,
    /// How long the program may take to save, and its ranks to join after the first of them where they are to go on from a checkpoint, in
    /// milliseconds.
    pub ready_ms: u64,
    /// How long ranks that were given a refused checkpoint may take to join again, in milliseconds. Others that have joined anew wait for them.
    pub anew_ms: u64,
    /// How long after the last of all ranks a rank that joins again counts as late, not as a new start, in milliseconds.
    pub settle_ms: u64,
    /// A word without an answer is repeated after so long, then after twice that, and so on, in milliseconds.
    pub retry_ms: u64,
    /// The longest time between two repeats, in milliseconds.
    pub retry_most_ms: u64,
}

impl Settings {
    /// 10 minutes for the program to save, 2 minutes to join again after a refusal, 30 s to settle, repeats from 0.2 s to 10 s: a word that
    /// is said while links come up after a loss is a part of how long a program stands still.
    pub fn new(own: NodeIndex, nodes: u16, run: u32, every: Every) -> Settings {
        Settings {
            own,
            nodes,
            run,
            every,
            least_ms: 0,
            ready_ms: 600_000,
            anew_ms: 120_000,
            settle_ms: 30_000,
            retry_ms: 200,
            retry_most_ms: 10_000,
        }
    }
}

/// Something that happened on this node.
#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    /// The restart is over here.
    Ready(Ready),
    /// After [`Input::Ready`] with a checkpoint to be restored: whose folders this node has of it, from its manifest. Given by every
    /// node, also with none.
    Holds {
        /// The checkpoint.
        id: CheckpointId,
        /// Rank and number of ranks of each folder.
        ranks: Vec<(u16, u16)>,
    },
    /// What was answered and asked before. At every look at the folder, ahead of [`Input::Joins`]; where there is something when the
    /// conductor begins, both come before [`Input::Ready`].
    Known(Known),
    /// A rank of this node could not load what it was given: of several the one of the newest checkpoint. At every look at the folder, ahead
    /// of [`Input::Joins`], but looked for after these.
    Refused(Option<Refused>),
    /// Joins of this node whose processes have ended. At every look at the folder, ahead of [`Input::Joins`]. Of some processes that is
    /// never known.
    Gone(Vec<Join>),
    /// Those of this node that can begin from the files of any number of ranks, and whether they need the files of all ranks in any case. At every
    /// look at the folder, ahead of [`Input::Joins`].
    Any(Vec<(Join, bool)>),
    /// All that have joined on this node, the newest join of each rank. At every look at the folder.
    Joins(Vec<Join>),
    /// Ranks of this node whose files are complete.
    Saved {
        /// For this checkpoint.
        number: u32,
        /// All of them up to now.
        ranks: BTreeSet<u16>,
    },
    /// The node has read the folder.
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
    /// The node did not begin an attempt.
    RefusedBegin {
        /// The attempt.
        id: CheckpointId,
        /// A sentence.
        why: String,
    },
    /// Somebody wants a checkpoint. [`Reason::Interval`] counts as [`Reason::Asked`].
    Want(Reason),
    /// A word came, of a node for which its carrier vouches.
    Received {
        /// Of whom.
        from: NodeIndex,
        /// What.
        word: Word,
    },
    /// The end of the job for which a checkpoint was wanted does not come: others follow it as before. On node 0.
    EndIsOff,
    /// Whether all other nodes are reached. On node 0 at every look; until it is given, they are.
    Reached(bool),
    /// Time went by; several times a second.
    Tick,
}

/// Something that the caller does, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send a word. It may be lost, repeated and late.
    Say {
        /// To whom.
        to: NodeIndex,
        /// What.
        word: Word,
    },
    /// Answer a join of this node; once for each.
    Answer {
        /// The join.
        join: Join,
        /// The answer.
        start: Start,
        /// The epoch to which it belongs, for [`Answered`].
        epoch: u64,
    },
    /// Make the folder for these ranks, then ask the program.
    Ask {
        /// For this checkpoint.
        number: u32,
        /// Why.
        reason: Reason,
        /// Rank and number of ranks of those that run here; none is usual on a node without ranks.
        ranks: Vec<(u16, u16)>,
    },
    /// All ranks here are ready: the node is offered the folder.
    Offer {
        /// For this checkpoint.
        number: u32,
    },
    /// Leader: the node is to begin. The caller draws the attempt.
    Begin {
        /// Which checkpoint.
        number: u32,
    },
    /// The program may reuse what it keeps: the files were read.
    Taken {
        /// Of this checkpoint.
        number: u32,
    },
    /// A checkpoint that was asked for has ended, also one of an earlier conductor ([`Known::open`]).
    Close {
        /// Which.
        number: u32,
        /// It is committed, or a sentence why it came to nothing.
        outcome: Result<(), String>,
    },
    /// A program could not load a checkpoint: it is to be marked, and the movers of the job gather anew, so that the one before is taken.
    /// Nothing else comes of this conductor then. Once on each node that hears of it.
    Refuse {
        /// The checkpoint.
        id: CheckpointId,
        /// The node of the rank.
        node: NodeIndex,
        /// Who, and what he says.
        by: Refused,
    },
    /// Something that an administrator may want to know, as a sentence.
    Note(String),
}

/// How far a checkpoint is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The program saves.
    Saving,
    /// The files are complete and are being stored.
    Storing,
}

/// A checkpoint that is being made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Making {
    /// Its number.
    pub number: u32,
    /// Why.
    pub reason: Reason,
    /// How far it is.
    pub stage: Stage,
    /// Since when it is there.
    pub since: u64,
}

/// How long a committed checkpoint took, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Took {
    /// Its number.
    pub number: u32,
    /// From the request to the last rank that was ready.
    pub pause_ms: u64,
    /// From there to the commit.
    pub background_ms: u64,
}

/// What a conductor shows. Interval, `newest` and `took` are known to the leader alone.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct View {
    /// The interval in milliseconds, and why it is that.
    pub interval: Option<(u64, String)>,
    /// Ranks that have joined on this node; on the leader, of the epoch on all nodes.
    pub joined: usize,
    /// Ranks of the program, when any has joined.
    pub size: Option<u16>,
    /// The checkpoint that is being made.
    pub making: Option<Making>,
    /// The number of the checkpoint from which the program has gone on last; before any rank was answered in this run of the job, from which
    /// it would.
    pub restored: Option<u32>,
    /// The newest committed one.
    pub newest: Option<CheckpointId>,
    /// The last ones that came to nothing, with the reason, the newest last.
    pub failures: Vec<(u32, String)>,
    /// How long the last ones took, the newest last.
    pub took: Vec<Took>,
}
