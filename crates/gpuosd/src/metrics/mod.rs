//! Figures for monitoring: counted by the daemon's loop, handed over as a plain [`Snapshot`] once a second, and
//! told by threads that the loop never waits for. No scrape makes a call into NVIDIA's library.
//!
//! - [`count`]: what is counted while the loop runs,
//! - [`table`]: what a poll gives,
//! - [`slices`]: MIG instances,
//! - [`memory`]: memory in tiers,
//! - [`checkpoints`]: what gpuos_mover tells,
//! - [`text`]: a snapshot as Prometheus reads it; docs/admin/metrics.md has every metric,
//! - [`serve`]: the HTTP endpoint,
//! - [`job_mapping`]: files for exporters that know no jobs,
//! - [`keep`]: what the loop holds of all this.

pub mod checkpoints;
pub mod count;
pub mod job_mapping;
pub mod keep;
mod memory;
pub mod serve;
mod slices;
pub mod table;
pub mod text;

use std::collections::BTreeMap;

use gpuos_core::health::{GpuState, Sample};
use gpuos_core::job::JobId;
use gpuos_core::wire::{MemoryStatus, MigLoad};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::mig::MigPlacement;
use gpuos_model::node_gpu::NodeGpu;

pub use checkpoints::Checkpoints;
pub use count::Counts;
pub use keep::Keeper;

/// The node at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// Slurm's name of the node.
    pub node: String,
    /// Its GPUs, by GRES index.
    pub gpus: Vec<Gpu>,
    /// Who holds which GPU.
    pub holders: Vec<Holder>,
    /// Foreign processes by GPU.
    pub foreign: BTreeMap<GresGpu, u64>,
    /// Memory in MiB that a job's processes use, by GPU and job.
    pub job_memory: BTreeMap<(GresGpu, JobId), u64>,
    /// MIG instances of the pool that are there.
    pub slices: Vec<Slice>,
    /// Memory in tiers.
    pub memory: MemoryStatus,
    /// What was counted since the daemon started.
    pub counts: Counts,
    /// Whether gpuos has drained the whole node.
    pub node_drained: bool,
    /// Milliseconds since 1970, UTC, when the daemon started.
    pub started_ms: u64,
    /// Milliseconds since the newest answer of NVIDIA's library; `None`: it never answered.
    pub sampled_ms_ago: Option<u64>,
    /// Actions that wait for slurmctld or for a GPU.
    pub waiting: u32,
    /// The other nodes of this node's jobs, by state.
    pub peers: Vec<(&'static str, u32)>,
    /// Whether jobs and users are left out of what Prometheus is told.
    pub nameless: bool,
    /// Checkpoints of jobs.
    pub checkpoints: Checkpoints,
    /// Names of what keeps the daemon from its work.
    pub troubles: Vec<&'static str>,
}

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// Which it is.
    pub index: NodeGpu,
    /// NVIDIA's id, empty while it is not known.
    pub uuid: String,
    /// Name of the board.
    pub name: String,
    /// PCI address.
    pub pci: String,
    /// Where it stands.
    pub state: GpuState,
    /// Rules that speak against it at present.
    pub faults: Vec<String>,
    /// What the newest poll found; `None`: it did not answer of late.
    pub sample: Option<Sample>,
}

/// A MIG instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slice {
    /// The GPU, by NVML's index.
    pub gpu: NvmlIndex,
    /// The GPU as people call it.
    pub number: NodeGpu,
    /// NVML's id of the GPU instance.
    pub gi: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// Name of its profile.
    pub profile: String,
    /// Its memory slices.
    pub placement: MigPlacement,
    /// The job that has it; `None`: somebody made it by hand.
    pub job: Option<JobId>,
    /// Total and used MiB, where the newest poll told it.
    pub memory_mib: Option<(u64, u64)>,
    /// How busy it is.
    pub load: MigLoad,
}

/// A step, or a job without one, that holds a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The GPU.
    pub gpu: NodeGpu,
    /// Job.
    pub job: JobId,
    /// Step; `None`: the job itself.
    pub step: Option<u32>,
    /// Number of its user.
    pub uid: u32,
    /// Name of its user; empty while Slurm has not told it.
    pub user: String,
}
