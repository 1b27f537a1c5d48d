//! What the thread of a job is told, by whoever serves its node.

use std::path::PathBuf;
use std::sync::mpsc::SyncSender;

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_core::job::JobId;
use gpuos_core::made::{MadeRecord, Progress};
use gpuos_link::tcp::Sender;
use gpuos_mover::donors::Donor;
use gpuos_mover::program::{Join, Reason};
use gpuos_store::drained::Complete;
use gpuos_workload::Hint;

use crate::carried::Body;
use crate::not_reached::NotReached;

/// A run of a job that has saved and is to be requeued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedRun {
    /// The job.
    pub job: JobId,
    /// The workload manager's count of its restarts.
    pub run: u32,
}

/// Something that is noted in a job's record at the workload manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// How far the run has come.
    Progress(Progress),
    /// Why its checkpoints come to nothing; `None`: they do not.
    Unsaved(Option<String>),
}

/// Something that the thread of a job is told.
pub enum Event {
    /// A step has started on this node.
    Step {
        /// The group of its processes.
        gid: u32,
        /// The value of the option.
        asked: String,
        /// Where the folder goes, or a sentence why there is none.
        reply: SyncSender<Result<PathBuf, String>>,
    },
    /// A link to a seat is there.
    Linked {
        /// The seat.
        seat: u16,
        /// The number of the link in this process.
        number: u64,
        /// The sending half.
        sender: Sender,
    },
    /// A connection to a seat came to nothing.
    NotLinked {
        /// The seat.
        seat: u16,
        /// Why.
        not: NotReached,
    },
    /// A link has ended.
    Unlinked {
        /// The seat.
        seat: u16,
        /// Of the link.
        number: u64,
        /// A clause.
        why: String,
    },
    /// A message came.
    Came {
        /// From this seat.
        seat: u16,
        /// As it was carried.
        bytes: Vec<u8>,
    },
    /// The thread that restores wants something of another node.
    Ask {
        /// Of which seat.
        seat: u16,
        /// What.
        body: Body,
    },
    /// The files of a rank are restored, or not.
    Restored {
        /// For whom.
        join: Join,
        /// The line that the program is told.
        line: String,
        /// In this epoch.
        epoch: u64,
        /// Of the gathering in which it was begun.
        session: u32,
    },
    /// Something of draining a checkpoint was done.
    Drain(DrainDone),
    /// What is drained was looked at, or copied in.
    Back(BackDone),
    /// What nodes outside the job hold is known.
    Donors(Found),
    /// Something was noted in the job's record, or not: a clause, and whether another try may help.
    Noted {
        /// What was to be noted.
        note: Note,
        /// Why it was not.
        result: Result<(), (String, bool)>,
    },
    /// A checkpoint is wanted.
    Want(Reason),
    /// The next run is to begin from this checkpoint.
    Choose {
        /// Its number.
        number: u32,
        /// Whether all nodes have noted it, or a sentence why not.
        reply: SyncSender<Result<(), String>>,
    },
    /// What the workload manager says of the job's end, to the node that leads.
    Ends {
        /// In so many seconds; `None`: there is none.
        in_s: Option<u64>,
        /// Another job waits for it to go.
        preempted: bool,
        /// Whether it would requeue the job.
        may_requeue: bool,
    },
    /// The job is over, or runs again under another number: the thread ends, and the folder of its programs goes.
    End,
    /// The mover ends, and the job runs on: the thread ends.
    Stop,
}

/// What nodes outside a job hold of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// What the job's record says.
    pub record: Option<MadeRecord>,
    /// Nodes that hold parts.
    pub donors: Vec<Donor>,
    /// Who was to be asked, and what came of it where that was no part.
    pub nodes: Vec<Asking>,
    /// The job's own nodes.
    pub own: Vec<String>,
    /// Why the workload manager does not tell whom to ask: a clause.
    pub untold: Option<String>,
    /// Runs, and the checkpoints that the job's user has chosen for them.
    pub chosen: Vec<(u32, u32)>,
    /// Why the job must not begin from the other one's checkpoint: a sentence.
    pub refused: Option<String>,
}

/// A node that was to be asked what it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asking {
    /// Its name.
    pub node: String,
    /// What is said of it.
    pub hint: Hint,
    /// What came of it.
    pub answer: Heard,
}

/// What came of a question to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// It was not asked yet, or not any more.
    Unasked,
    /// It holds something.
    Holds,
    /// It answered that it holds nothing.
    Nothing,
    /// It did not answer, for this reason: a clause that names it.
    Silent(String),
}

/// What a thread that drains has done.
pub enum DrainDone {
    /// The folder of the job is there.
    Begun(Result<(), String>),
    /// This node's part was copied.
    Drained {
        /// Of this checkpoint.
        id: CheckpointId,
        /// In this round of the node that leads.
        round: u32,
        /// A sentence why not.
        result: Result<(), String>,
    },
    /// Whether all parts of this checkpoint are seen there by the node that leads.
    Seen(CheckpointId, Result<(), String>),
    /// Older ones are removed.
    Pruned(Result<(), String>),
}

/// What a thread that looks at what was drained, or copies it in, has done.
pub enum BackDone {
    /// It was looked at.
    Looked {
        /// How often the movers had found each other anew.
        round: u32,
        /// What is complete there, or a sentence why that is not known.
        found: Result<Vec<Complete>, String>,
    },
    /// This node's part was copied in, or not.
    Fetched {
        /// For this gathering.
        session: u32,
        /// A sentence.
        result: Result<(), String>,
    },
    /// This node's part was taken from another node, or not.
    Taken {
        /// For this gathering.
        session: u32,
        /// Sentences that say what came, or why nothing did, each with the node if it could not give what it has.
        results: Vec<Result<String, (String, String)>>,
    },
}
