//! What the broker is told, and what it wants done.

use super::ids::{AccountId, At, ClientId, GpuId, JobId, LinkId, MoveId, Refuge};
use super::reason::{Ended, Notice, Refused, Requeued};
use super::record::Record;
use crate::link::Why;

/// What the node has, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Supply {
    /// GPU memory that jobs may have, by GPU.
    pub gpus: Vec<(GpuId, u64)>,
    /// Host memory that may be lent.
    pub host: u64,
    /// NVMe for what is parked.
    pub nvme: u64,
    /// Of it, what the workload manager counts and gives to jobs ([`JobSpec::nvme`]): nobody else gets anything of that.
    pub nvme_counted: u64,
}

/// What somebody gets whatever others do, and at most, of host memory on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Kept free for it while it has a job here, and not taken from it under pressure.
    pub guaranteed: u64,
    /// All that it gets.
    pub at_most: u64,
}

/// No guarantee and no quota.
impl Default for Share {
    fn default() -> Share {
        Share {
            guaranteed: 0,
            at_most: u64::MAX,
        }
    }
}

/// What a job may have on this node. All of it follows from the workload manager's record, nothing from what a process says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobSpec {
    /// The job.
    pub job: JobId,
    /// Its GPUs on this node.
    pub gpus: Vec<GpuId>,
    /// GPU memory that it may have on each of them; a whole card's under time slices.
    pub hbm_per_gpu: u64,
    /// Host memory that the record gives it on this node: extents that the GPU reads in place and what is parked are of it.
    pub host: u64,
    /// NVMe that the record gives it on this node, for what is parked. Jobs have it together from what is counted, and it is used before
    /// host memory is.
    pub nvme: u64,
    /// What was checked at submission for each GPU, in all tiers together.
    pub bytes_per_gpu: u64,
    /// It shares its GPUs in turns.
    pub timeslice: bool,
    /// What counts together with it.
    pub account: Option<AccountId>,
    /// Who has a lower rank gives way first under pressure.
    pub rank: u64,
    /// Of [`JobSpec::host`], what is kept for it. Cut to what there is when the job comes.
    pub guaranteed: u64,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// What the node has: first of all, and whenever it is something else. Processes on a GPU that is gone are ended.
    Supply(Supply),
    /// What the journal has: after [`Input::Supply`], before all else, once.
    Restored(Vec<Record>),
    /// Guarantee and quota of an account.
    Account(AccountId, Share),
    /// A job runs here. Told again it changes nothing.
    Job(JobSpec),
    /// The workload manager has no such job any more.
    JobGone(JobId),
    /// Of each GPU that jobs have in turns, bytes that none of them gets: contexts of programs stay on it while others have their turn.
    Reserve(u64),
    /// Whether the workload manager has suspended a job.
    Suspended(JobId, bool),
    /// A process is stopped by a signal, or goes on.
    Stopped(ClientId, bool),
    /// A process asks for so many bytes on a GPU, all together. Asked again it gives back, or asks for more.
    Ask {
        /// The process.
        client: ClientId,
        /// Its job, as the caller found out.
        job: JobId,
        /// The GPU.
        gpu: GpuId,
        /// Bytes, in all tiers together.
        bytes: u64,
    },
    /// A process has ended, and what it had is free. Nothing else frees a lease.
    Gone(ClientId),
    /// The connection to a process is lost, and the process lives.
    Away(ClientId),
    /// It is there again, and says where its memory is.
    Return(ClientId, At),
    /// It has no work for the GPU from now on.
    Idle(ClientId),
    /// It has work, or waits with work for its turn.
    Busy(ClientId),
    /// It did what [`Effect::Park`] said.
    Parked {
        /// The process.
        client: ClientId,
        /// How long that took it, in ms.
        took_ms: u64,
    },
    /// Nothing of a process can be moved by itself. Said of one that was told to park, it leaves the driver alone until its turn.
    Pinned {
        /// The process.
        client: ClientId,
        /// What it has of GPUs in all, contexts too, as it was measured; 0: that is not known, and the driver is not called.
        bytes: u64,
    },
    /// The driver did what [`Effect::Checkpoint`] said.
    Checkpointed {
        /// The process.
        client: ClientId,
        /// How long that took, in ms.
        took_ms: u64,
    },
    /// The driver did not.
    NotCheckpointed {
        /// The process.
        client: ClientId,
        /// It would not if it were tried again.
        refused: bool,
        /// The driver has let the process go on. Where that is not known, it may have the process still.
        runs_on: bool,
    },
    /// The driver did what [`Effect::Restore`] said.
    BroughtBack {
        /// The process.
        client: ClientId,
        /// How long that took, in ms.
        took_ms: u64,
    },
    /// Whether processes are parked by the driver's checkpoint calls, as [`super::Config`] has it.
    Checkpoints(bool),
    /// A process has heard what it was told, and work that was given to its GPUs before is not done. Said each second.
    Working(ClientId),
    /// Something that it was to park on NVMe could not go there: its memory is where it was, and it works.
    NotParked(ClientId),
    /// It works again, after [`Effect::Turn`].
    Back {
        /// The process.
        client: ClientId,
        /// How long that took it, in ms.
        took_ms: u64,
    },
    /// It did what [`Effect::Demote`] said, and so many bytes of host memory became free.
    Demoted {
        /// The process.
        client: ClientId,
        /// Bytes.
        bytes: u64,
    },
    /// How the host's memory is doing.
    Pressure {
        /// Bytes that could be had without swapping.
        free: u64,
        /// Bytes of memory.
        total: u64,
        /// Time in which jobs waited for memory, of 1000 (PSI `full avg10`): the most of those that have memory in tiers, where that is known.
        stalled: u32,
    },
    /// The same within the limit of a job's own memory, as its control group has it.
    JobPressure {
        /// The job.
        job: JobId,
        /// Bytes that it could have without losing any.
        free: u64,
        /// Its limit in bytes.
        total: u64,
        /// Time in which all of it waited for memory, of 1000 (PSI `full avg10`).
        stalled: u32,
    },
    /// When pressure begins and ends, as [`super::Config`] has it: shares of 1000.
    Marks {
        /// It begins when so much of the memory is used, ...
        high: u64,
        /// ... and ends when no more than this is.
        low: u64,
        /// It also begins when so much of the time is lost.
        stalled: u32,
    },
    /// How long turns are at least, and how long a process may take to end the work that it gave before, as [`super::Config`] has it, in ms.
    Turns {
        /// A turn is at least so long.
        quantum_ms: u64,
        /// Work of before has so much time.
        work_ms: u64,
    },
    /// Whether the workload manager would requeue a job. Without a word it would.
    MayRequeue(JobId, bool),
    /// Somebody who moves bytes for a process asks whether he may.
    Move {
        /// Its number.
        id: MoveId,
        /// Whose bytes.
        client: ClientId,
        /// Over what.
        link: LinkId,
        /// Bytes.
        bytes: u64,
        /// Why.
        why: Why,
    },
    /// A move has ended, or will not begin.
    Moved(MoveId),
    /// Time has passed. At least four times a second.
    Tick,
}

/// What a process may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted {
    /// Bytes in GPU memory.
    pub hbm: u64,
    /// Bytes in host memory that the GPU reads in place.
    pub host: u64,
    /// It may work now. Otherwise it allocates nothing on the GPU before [`Effect::Turn`] comes.
    pub turn: bool,
}

/// What is demoted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demote {
    /// Copies in host memory of which the bytes are elsewhere: they are dropped.
    Clean,
    /// What is parked in host memory: it goes to NVMe.
    Dirty,
}

/// What is to be done, in this order. What follows [`Effect::Journal`] is done when the record is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Append to the journal.
    Journal(Record),
    /// Answer to [`Input::Ask`].
    Answer {
        /// The process.
        client: ClientId,
        /// The GPU.
        gpu: GpuId,
        /// What it may have.
        answer: Result<Granted, Refused>,
    },
    /// The process has less of a GPU's memory than it was told, or more again: others use it who ask nobody. What it has no room for there
    /// goes to host memory.
    Lease {
        /// The process.
        client: ClientId,
        /// The GPU.
        gpu: GpuId,
        /// What it may have from now on.
        granted: Granted,
    },
    /// The process stops working on its GPUs and moves what is in GPU memory away; [`Input::Parked`] says that it did. Who has not by
    /// then is ended.
    Park {
        /// The process.
        client: ClientId,
        /// Where to.
        to: Refuge,
        /// Of what is parked, bytes that go to NVMe; the others go to host memory.
        nvme: u64,
        /// On the clock of [`super::Broker::step`].
        deadline_ms: u64,
    },
    /// The process may work on its GPUs, up to its lease; [`Input::Back`] says that it does.
    Turn {
        /// The process.
        client: ClientId,
        /// On the clock of [`super::Broker::step`].
        deadline_ms: u64,
    },
    /// The driver takes all of the process's memory out of its GPUs, and stops it there, by its checkpoint calls: [`Input::Checkpointed`] or
    /// [`Input::NotCheckpointed`] says what came of it. Said again after a restart, and with each tick until something came of it: the driver knows how far it is, and
    /// who calls it is not begun twice.
    Checkpoint {
        /// The process.
        client: ClientId,
        /// On the clock of [`super::Broker::step`].
        deadline_ms: u64,
    },
    /// The driver brings it back, and lets it go on: [`Input::BroughtBack`] says that it did. Said again as [`Effect::Checkpoint`] is.
    Restore {
        /// The process.
        client: ClientId,
        /// On the clock of [`super::Broker::step`].
        deadline_ms: u64,
    },
    /// The process demotes; [`Input::Demoted`] says that it did.
    Demote {
        /// The process.
        client: ClientId,
        /// What.
        what: Demote,
        /// On the clock of [`super::Broker::step`].
        deadline_ms: u64,
    },
    /// Something that a process should know.
    Notify {
        /// The process.
        client: ClientId,
        /// What; its text is for the user.
        notice: Notice,
    },
    /// Kill the process; [`Input::Gone`] says that it is dead. Said again until then.
    End {
        /// The process.
        client: ClientId,
        /// Why; its text is for the user.
        why: Ended,
    },
    /// Have the workload manager requeue the job.
    Requeue {
        /// The job.
        job: JobId,
        /// Why; its text is for the user.
        why: Requeued,
    },
    /// The move begins now; [`Input::Moved`] says that it ended.
    Move(MoveId),
    /// The move does not begin: too many wait on its link, or its process is unknown.
    NoMove(MoveId),
}
