//! How a node is, as clients see it.
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::node_gpu::NodeGpu;
use serde::{Deserialize, Serialize};

use crate::isolation::Finding;
use crate::job::JobId;

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Slurm's name of the node.
    pub node: String,
    /// The daemon itself.
    pub daemon: DaemonStatus,
    /// What stands in Slurm's node record by gpuos, as last written; empty: all is well.
    pub published: String,
    /// Whether the node itself is drained by gpuos, with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drained: Option<String>,
    /// GPUs, by GRES index.
    pub gpus: Vec<GpuStatus>,
    /// Jobs that hold GPUs here.
    pub jobs: Vec<JobStatus>,
    /// Nodes that share a job of several nodes with this one, and that it pings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerStatus>,
    /// Whether processes keep to the GPUs of their jobs.
    #[serde(default)]
    pub isolation: IsolationStatus,
    /// What was left out, because it is of other users; absent for those who are told everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<HiddenStatus>,
}

/// How much of a node's state was left out: it is of other users.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HiddenStatus {
    /// Jobs that hold GPUs.
    pub jobs: u32,
    /// Processes on GPUs.
    pub processes: u32,
    /// Nodes that share a job of others with this one.
    pub peers: u32,
    /// Findings of the isolation.
    pub findings: u32,
}

/// Another node of a job that runs here.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Slurm's name of the node.
    pub node: String,
    /// How it is: alive, left, unknown, gpuosd-silent, suspect, silent.
    pub state: String,
    /// Milliseconds since it was heard; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms_ago: Option<u64>,
    /// The jobs that both nodes have.
    pub jobs: Vec<JobId>,
}

/// Whether processes keep to the GPUs of their jobs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IsolationStatus {
    /// Whether it was looked what steps may open: `checked`, or why it is not known.
    pub devices: String,
    /// What is not as planned at present.
    pub findings: Vec<Finding>,
}

/// A process on a GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Process id.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Its name, by itself.
    pub program: String,
    /// The job that it belongs to, by its control group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// MIG instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// GPU memory in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Whether it is on a GPU that it does not own.
    pub foreign: bool,
}

/// The daemon itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Its release.
    pub release: String,
    /// Milliseconds since 1970, UTC, when it started.
    pub started_ms: u64,
    /// Milliseconds since the newest answer of NVIDIA's library; absent: it never answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled_ms_ago: Option<u64>,
    /// Actions that wait for slurmctld or for a GPU.
    pub waiting: u32,
    /// What keeps the daemon from its work, in sentences: no library, a full disk, slurmctld away.
    pub troubles: Vec<String>,
    /// Another one gives the GPUs of this host to jobs, and the daemon only says what it finds.
    #[serde(default, skip_serializing_if = "super::mig::is_false")]
    pub advises: bool,
}

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GpuStatus {
    /// Which it is.
    pub index: NodeGpu,
    /// NVIDIA's id, empty while it is not known.
    pub uuid: String,
    /// Name of the board.
    pub name: String,
    /// PCI address.
    pub pci: String,
    /// State: available, allocated, in-use, degraded, draining, drained, resetting, offline.
    pub state: String,
    /// Why, if it is not well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Who wants it out of service, if an administrator does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_uid: Option<u32>,
    /// Degrees Celsius.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<u32>,
    /// Milliwatts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw: Option<u32>,
    /// Percent of time with work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<u32>,
    /// MiB in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// What is set on it for a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<CapStatus>,
    /// Faults that count at present.
    pub faults: Vec<FaultStatus>,
    /// Jobs that hold it.
    pub jobs: Vec<JobId>,
    /// Jobs of other users that hold it, where their numbers are not told.
    #[serde(default, skip_serializing_if = "is_none")]
    pub jobs_of_others: u32,
    /// Processes of other users on it, where they are not told.
    #[serde(default, skip_serializing_if = "is_none")]
    pub processes_of_others: u32,
    /// Processes on it, 64 at most.
    #[serde(default)]
    pub processes: Vec<ProcessStatus>,
}

impl GpuStatus {
    /// A GPU of which nothing is known yet.
    pub fn new(index: NodeGpu) -> GpuStatus {
        GpuStatus {
            index,
            uuid: String::new(),
            name: String::new(),
            pci: String::new(),
            state: String::new(),
            reason: String::new(),
            by_uid: None,
            temperature_c: None,
            power_mw: None,
            utilisation: None,
            memory_mib: None,
            cap: None,
            faults: Vec::new(),
            jobs: Vec::new(),
            jobs_of_others: 0,
            processes_of_others: 0,
            processes: Vec::new(),
        }
    }
}

/// Power limit and clocks that are set for a job, and MPS.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CapStatus {
    /// The job.
    pub job: JobId,
    /// In words: `300 W, clocks 1200-1500 MHz, mps 50 %`.
    pub text: String,
}

/// A fault.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FaultStatus {
    /// Name of the rule that saw it.
    pub rule: String,
    /// A sentence.
    pub message: String,
    /// Milliseconds since 1970, UTC, when it was seen last; 0: not known.
    pub at_ms: u64,
}

/// A job that holds GPUs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobStatus {
    /// Number.
    pub job: JobId,
    /// User.
    pub uid: u32,
    /// GPUs that it holds here.
    pub gpus: Vec<GresGpu>,
    /// Steps that were reported and run.
    pub steps: Vec<u32>,
}
