//! A process of a job, as it behaves.

use std::collections::{BTreeMap, VecDeque};

use gpuos_memory::lease::{At, Demote, GpuId, JobId, Refuge};

/// What a process hears.
#[derive(Clone, Debug)]
pub enum Said {
    Answer(GpuId, Option<(u64, u64, bool)>),
    Park(Refuge, u64),
    Turn,
    Demote(Demote),
}

/// What it is doing with its memory.
#[derive(Clone, Debug)]
pub enum Doing {
    Park(Refuge, u64),
    Back,
    Demote(Demote),
}

/// A process.
#[derive(Debug)]
pub struct Process {
    pub job: JobId,
    /// What it still has to ask for.
    pub asks: VecDeque<(GpuId, u64)>,
    /// What it was given.
    pub has: BTreeMap<GpuId, (u64, u64)>,
    pub at: At,
    /// Of what is parked, bytes on NVMe.
    pub on_nvme: u64,
    pub inbox: VecDeque<Said>,
    pub doing: Option<(Doing, u64)>,
    /// It hears nothing any more.
    pub deaf: bool,
    /// It has a connection.
    pub connected: bool,
    /// It never comes back after it lost it.
    pub lost: bool,
    /// Nothing of it can be moved by itself: bytes that it has of GPUs beyond its lease.
    pub pinned: Option<u64>,
    /// It was told to park, cannot, and leaves the driver alone.
    pub held: bool,
    /// The driver parks it, or else brings it back, since then.
    pub driven: Option<(bool, u64)>,
    /// Counts what the driver began.
    pub drives: u64,
    /// The daemon of this generation has the driver called, and has not been told what came of it.
    pub called: Option<u64>,
    /// It has work.
    pub busy: bool,
    /// What is left, in ms.
    pub left: u64,
    /// Since when it works.
    pub since: Option<u64>,
    /// Counts phases, so that an end that was planned for one that is over means nothing.
    pub phase: u64,
    /// Bytes that it demotes just now, and those that it has demoted since it parked.
    pub demoting: u64,
    pub demoted: u64,
    /// Until when it was told to.
    pub due: u64,
    /// The last that it was said and said, for the order.
    pub heard_at: u64,
    pub said_at: u64,
}

impl Process {
    /// One that has asked for nothing.
    pub fn new(job: JobId, asks: Vec<(GpuId, u64)>, left: u64) -> Process {
        Process {
            job,
            asks: asks.into(),
            has: BTreeMap::new(),
            at: At::Parked(Refuge::Host),
            on_nvme: 0,
            inbox: VecDeque::new(),
            doing: None,
            deaf: false,
            connected: true,
            lost: false,
            pinned: None,
            held: false,
            driven: None,
            drives: 0,
            called: None,
            busy: true,
            left,
            since: None,
            phase: 0,
            demoting: 0,
            demoted: 0,
            due: 0,
            heard_at: 0,
            said_at: 0,
        }
    }

    /// Bytes in GPU memory when it works.
    pub fn hbm(&self) -> u64 {
        self.has.values().map(|it| it.0).sum()
    }

    /// Bytes in host memory, always.
    pub fn host(&self) -> u64 {
        self.has.values().map(|it| it.1).sum()
    }
}
