//! Memory of GPUs in tiers, as clients see it.
use std::collections::BTreeMap;

use gpuos_model::node_gpu::NodeGpu;
use serde::{Deserialize, Serialize};

use super::Viewer;
use crate::job::JobId;

/// The memory that a node lends to jobs with `--gpuos-mem`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Its GPUs, by number.
    pub gpus: Vec<MemoryGpuStatus>,
    /// Host memory.
    pub host: MemoryTierStatus,
    /// NVMe for what is parked.
    #[serde(default, skip_serializing_if = "is_no_tier")]
    pub nvme: MemoryTierStatus,
    /// How host memory is doing.
    #[serde(default)]
    pub pressure: MemoryPressureStatus,
    /// Processes that have some.
    pub programs: Vec<MemoryProgramStatus>,
    /// Processes that use a GPU of their job's memory in tiers or in turns and have asked for nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unasked: Vec<MemoryUnaskedStatus>,
    /// Processes of others, which are left out; 0 for those who are told everything.
    #[serde(default, skip_serializing_if = "is_none")]
    pub programs_of_others: u32,
}

fn is_no_tier(tier: &MemoryTierStatus) -> bool {
    *tier == MemoryTierStatus::default()
}

fn is_no_bytes(bytes: &u64) -> bool {
    *bytes == 0
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// How the host's memory is doing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryPressureStatus {
    /// What is done about it next, or now: `calm`, `notify`, `demote-clean`, `demote-dirty`, `park`, `requeue`.
    pub step: String,
    /// Bytes that could be had without swapping, of the machine; absent where nobody has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    /// Time in which all that runs waited for memory, of 1000; absent where the kernel does not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<u32>,
    /// Jobs that are short of their own memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub short: Vec<JobId>,
}

/// A tier, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryTierStatus {
    /// There is.
    pub present: u64,
    /// Promised to processes.
    pub promised: u64,
}

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryGpuStatus {
    /// Its number in GRES `gpu`.
    pub gpu: NodeGpu,
    /// Its own memory.
    pub hbm: MemoryTierStatus,
    /// Jobs have it in turns: all of them together do not fit.
    #[serde(default)]
    pub in_turns: bool,
    /// Turns cost too much here: each lasts until its job ends or has no work.
    #[serde(default)]
    pub serialised: bool,
    /// Bytes that processes use who ask gpuosd for nothing: they are promised to nobody.
    #[serde(default)]
    pub others: u64,
    /// Bytes a second that programs moved between it and the host of late, by their own word.
    #[serde(default)]
    pub link: u64,
    /// The job whose turn it is; absent where there are no turns, and where it is the job of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<JobId>,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryProgramStatus {
    /// Its job.
    pub job: JobId,
    /// Its user.
    pub uid: u32,
    /// The process.
    pub pid: u32,
    /// Its start, in the kernel's ticks since boot.
    #[serde(default)]
    pub started: u64,
    /// Where its memory is: `resident`, `parking`, `parked`, `returning`.
    pub place: String,
    /// It has work, or waits with work for its turn.
    pub busy: bool,
    /// Its connection is there.
    pub connected: bool,
    /// Nothing of it can be moved.
    #[serde(default)]
    pub pinned: bool,
    /// A signal has stopped it, or it is suspended with its job.
    #[serde(default)]
    pub stopped: bool,
    /// The driver parks it, or has: nothing of it can be moved while it runs.
    #[serde(default)]
    pub by_driver: bool,
    /// What it has of each GPU.
    pub leases: Vec<MemoryLeaseStatus>,
    /// Bytes that it has moved to host memory, by its own word.
    #[serde(default)]
    pub moved_down: u64,
    /// Bytes that it has moved back, by its own word.
    #[serde(default)]
    pub moved_up: u64,
    /// What it may have on NVMe now, in bytes.
    #[serde(default, skip_serializing_if = "is_no_bytes")]
    pub nvme: u64,
    /// How often it was parked.
    #[serde(default)]
    pub parks: u64,
    /// Bytes that lie in host memory because others use a GPU who ask for nothing.
    #[serde(default)]
    pub squeezed: u64,
    /// What it knows of its memory, by its own word.
    #[serde(default)]
    pub figures: MemoryFigures,
}

/// What a process uses of a GPU that has asked for nothing, as static and setuid programs: they do not load the library.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryUnaskedStatus {
    /// Its job.
    pub job: JobId,
    /// The user of the job.
    pub uid: u32,
    /// The process.
    pub pid: u32,
    /// The GPU.
    pub gpu: NodeGpu,
    /// Bytes of the GPU's memory, as NVIDIA's library shows them.
    pub bytes: u64,
}

/// What a process says of its memory, as far as that can be.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryFigures {
    /// Bytes touched within a second, within a minute, and longer ago.
    pub heat: [u64; 3],
    /// Bytes that came into GPU memory as they were used, ...
    pub fetched: u64,
    /// ... that left it to make room for these, ...
    pub evicted: u64,
    /// ... and that moved because gpuosd said so, but for parking.
    pub pressed: u64,
    /// How much longer the program takes for moves, of 1000: by what it moved and the rate of its link, and as it measured.
    pub slower: [u64; 2],
}

/// What a process has of a GPU, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryLeaseStatus {
    /// The GPU.
    pub gpu: NodeGpu,
    /// In the GPU's own memory, when the process works.
    pub hbm: u64,
    /// In host memory that the GPU reads in place.
    pub host: u64,
    /// Kept in host memory for while others have the GPU.
    #[serde(default)]
    pub refuge: u64,
}

impl MemoryStatus {
    /// What a user is told: his own, and counts of the rest.
    #[must_use]
    pub fn redacted_for(mut self, viewer: &Viewer<'_>) -> MemoryStatus {
        let owns = |job: &JobId, users: &BTreeMap<JobId, u32>| users.get(job) == Some(&viewer.uid);
        let all = self.programs.len();
        self.programs
            .retain(|one| one.uid == viewer.uid && owns(&one.job, viewer.users));
        self.unasked
            .retain(|one| one.uid == viewer.uid && owns(&one.job, viewer.users));
        self.pressure.short.retain(|job| owns(job, viewer.users));
        self.programs_of_others = (all - self.programs.len()) as u32;
        for gpu in &mut self.gpus {
            gpu.turn.take_if(|job| !owns(job, viewer.users));
        }
        self
    }
}
