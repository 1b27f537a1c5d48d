//! What can happen to a node, as the daemon tells it.
use std::collections::BTreeMap;

use gpuos_model::node_gpu::NodeGpu;
use serde::{Deserialize, Serialize};

use super::extra::ExtraPart;
use crate::job::JobId;

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// The daemon started, with the state that it had saved or a new one. What was under way (a reset, a
    /// check, a publication) is then begun again.
    Started {
        /// The node was booted since the state was saved: every GPU has been reset with it.
        rebooted: bool,
    },
    /// One GPU was polled.
    Sample {
        /// The GPU.
        gpu: NodeGpu,
        /// What it showed.
        sample: Box<Sample>,
    },
    /// The driver reported an Xid.
    Xid {
        /// The GPU.
        gpu: NodeGpu,
        /// Its number in NVIDIA's catalogue.
        code: u32,
        /// MIG GPU instance that it names.
        gpu_instance: Option<u32>,
        /// MIG compute instance that it names.
        compute_instance: Option<u32>,
        /// Process that it names.
        pid: Option<u32>,
    },
    /// The kernel's log has an Xid that NVML did not tell. Users can make the kernel write such a line: nothing is done
    /// about it unless NVML confirms that something is wrong, or is silent.
    Logged {
        /// The GPU.
        gpu: NodeGpu,
        /// Its number in NVIDIA's catalogue.
        code: u32,
        /// MIG GPU instance that it names.
        gpu_instance: Option<u32>,
        /// Process that it names.
        pid: Option<u32>,
    },
    /// NVML's recovery action of a GPU changed (field 230, event 0x8000, Xid 154).
    RecoveryAction {
        /// The GPU.
        gpu: NodeGpu,
        /// What the driver wants done.
        action: RecoveryAction,
    },
    /// NVML says that the GPU is lost (`NVML_ERROR_GPU_IS_LOST`), or it is gone from the bus.
    Lost {
        /// The GPU.
        gpu: NodeGpu,
    },
    /// A GPU was polled and gave no answer (`NVML_ERROR_TIMEOUT` or another error), though others did. Told at each such
    /// poll; the next [`Event::Sample`] ends it.
    Silent {
        /// The GPU.
        gpu: NodeGpu,
    },
    /// Calls into NVML have not come back, or fail for all GPUs. How long that lasts is counted here.
    LibrarySilent,
    /// Calls into NVML come back again.
    LibraryBack,
    /// All steps and jobs on the node with GPUs, as slurmctld has them now.
    Jobs(Vec<Job>),
    /// The same, as far as steps were reported since slurmctld was asked: a job that nobody reported may be missing.
    Reported(Vec<Job>),
    /// An administrator's command, its rights checked.
    Admin(Admin),
    /// [`super::Effect::Reset`] came to an end.
    ResetDone {
        /// The GPU.
        gpu: NodeGpu,
        /// Whether the command said so.
        ok: bool,
        /// What it said; one line, may be empty.
        message: String,
    },
    /// [`super::Effect::Check`] came to an end.
    CheckDone {
        /// The GPU.
        gpu: NodeGpu,
        /// Whether the GPU passed.
        ok: bool,
        /// What was wrong; one line, may be empty.
        message: String,
    },
    /// [`super::Effect::Publish`] came to an end.
    Published {
        /// Its revision.
        revision: u64,
        /// Whether slurmctld took it.
        ok: bool,
    },
    /// What Slurm's node record says now; tell it after the start and whenever the record was read.
    Shown {
        /// The marked part of `Extra`; of damaged words the worst that they may have said.
        part: ExtraPart,
        /// It holds words that cannot be read: whatever is wanted, it is written anew.
        damaged: bool,
        /// Reason of the node's drain; `None` = it is not drained.
        drain: Option<String>,
    },
    /// MIG instances were counted on a GPU of a pool, or on a MIG-switchable one, those of nobody among them.
    Instances {
        /// The GPU.
        gpu: NodeGpu,
        /// How many there are.
        count: u32,
    },
    /// Checkpoints of these jobs lie on the node. Tell it as often as it is known.
    Held {
        /// By Slurm's number, with the GiB that they take, rounded up.
        jobs: BTreeMap<u32, u32>,
        /// And of others.
        more: bool,
    },
    /// Whether the node is short of host memory, measured with two marks. Tell it as often as it is known.
    Short(bool),
    /// Something of the host, not of a GPU.
    Host(HostFault),
    /// Time went by. At least one each second.
    Tick,
}

/// A job step on this node, or a job without one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Job {
    /// The job's number.
    pub job: JobId,
    /// The step's number, Slurm's large ones for batch and extern steps too; `None` = the job itself,
    /// which holds GPUs that none of its steps has.
    pub step: Option<u32>,
    /// GPUs that it may use on this node.
    pub gpus: Vec<NodeGpu>,
    /// MIG GPU instances that it may use, as (GPU, instance); empty = whole GPUs, or not known.
    pub instances: Vec<(NodeGpu, u32)>,
    /// Its processes on this node; empty = not known.
    pub pids: Vec<u32>,
    /// Whether it may be requeued (`Requeue=1` in Slurm).
    pub requeue: bool,
    /// Whether it asked to be watched for hangs.
    pub watch: bool,
    /// After so many seconds without work it counts as hung; 0 = what the rule says.
    #[serde(default)]
    pub watch_s: u32,
}

/// One poll of a GPU. `None` = the board or the driver does not tell.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Temperature of the GPU in degrees Celsius.
    pub celsius: Option<u32>,
    /// Temperature of its memory in degrees Celsius.
    pub memory_celsius: Option<u32>,
    /// Temperature from which the GPU slows down.
    pub slowdown_celsius: Option<u32>,
    /// Temperature at which it switches itself off.
    pub shutdown_celsius: Option<u32>,
    /// Power drawn, in milliwatts.
    pub power_mw: Option<u32>,
    /// The limit in force, in milliwatts.
    pub power_limit_mw: Option<u32>,
    /// Clock of the multiprocessors in MHz.
    pub sm_mhz: Option<u32>,
    /// Clock of the memory in MHz.
    pub memory_mhz: Option<u32>,
    /// Energy used since the driver was loaded, in millijoules.
    pub energy_mj: Option<u64>,
    /// Why clocks are lower than they could be: `nvmlClocksEventReason*` bits.
    pub clock_reasons: Option<u64>,
    /// Nanoseconds of hardware thermal slowdown since the driver was loaded.
    pub thermal_ns: Option<u64>,
    /// Nanoseconds of the power brake since the driver was loaded.
    pub power_brake_ns: Option<u64>,
    /// Share of time in which a kernel ran, in percent; not on a divided GPU.
    pub busy_percent: Option<u32>,
    /// GPU memory in use, in MiB.
    pub memory_used_mib: Option<u64>,
    /// GPU memory, in MiB.
    pub memory_total_mib: Option<u64>,
    /// Corrected ECC errors since the last reset.
    pub ecc_corrected: Option<u64>,
    /// Uncorrected ECC errors since the last reset.
    pub ecc_uncorrected: Option<u64>,
    /// Corrected ECC errors ever.
    pub ecc_corrected_ever: Option<u64>,
    /// Uncorrected ECC errors ever.
    pub ecc_uncorrected_ever: Option<u64>,
    /// Uncorrected errors of on-chip memory passed the threshold for replacement.
    pub sram_threshold: Option<bool>,
    /// Rows remapped after corrected errors.
    pub rows_corrected: Option<u32>,
    /// Rows remapped after uncorrected errors.
    pub rows_uncorrected: Option<u32>,
    /// A row is remapped at the next reset.
    pub rows_pending: Option<bool>,
    /// A row could not be remapped.
    pub rows_failed: Option<bool>,
    /// Memory banks that have of their spare rows: all, many, some, few, none
    /// (`nvmlDeviceGetRowRemapperHistogram`).
    pub banks: Option<[u32; 5]>,
    /// Pages retired after single-bit errors (before Ampere).
    pub pages_single_bit: Option<u32>,
    /// Pages retired after double-bit errors (before Ampere).
    pub pages_double_bit: Option<u32>,
    /// A page is retired at the next reset.
    pub pages_pending: Option<bool>,
    /// NVLinks of the GPU, bit by number.
    pub nvlinks: u64,
    /// Those that are down, bit by number.
    pub nvlinks_down: u64,
    /// CRC or receive errors over all NVLinks.
    pub nvlink_crc: Option<u64>,
    /// Replays (before NVLink 5) or symbol errors, over all links.
    pub nvlink_replays: Option<u64>,
    /// Recoveries of links.
    pub nvlink_recoveries: Option<u64>,
    /// PCIe replays.
    pub pcie_replays: Option<u64>,
    /// PCIe generation now.
    pub pcie_generation: Option<u32>,
    /// Highest generation that board and slot can do.
    pub pcie_generation_most: Option<u32>,
    /// PCIe lanes now.
    pub pcie_width: Option<u32>,
    /// Most lanes that board and slot can do.
    pub pcie_width_most: Option<u32>,
    /// What NVML wants done (field 230): `NVML_GPU_RECOVERY_ACTION_*`, see [`RecoveryAction::from_nvml`].
    pub recovery_action: Option<u32>,
    /// Processes that compute on the GPU.
    pub processes: Option<u32>,
}

/// NVML's recovery actions (`nvmlDeviceGpuRecoveryAction_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RecoveryAction {
    /// Nothing.
    None,
    /// End all processes, reset the GPU.
    GpuReset,
    /// Reboot the node.
    NodeReboot,
    /// Start no peer-to-peer work; what runs may end.
    DrainP2p,
    /// Let the work end, then reset.
    DrainAndReset,
    /// A number that this gpuos does not know.
    Other(u32),
}

impl RecoveryAction {
    /// From NVML's number.
    pub fn from_nvml(number: u32) -> RecoveryAction {
        match number {
            0 => RecoveryAction::None,
            1 => RecoveryAction::GpuReset,
            2 => RecoveryAction::NodeReboot,
            3 => RecoveryAction::DrainP2p,
            4 => RecoveryAction::DrainAndReset,
            other => RecoveryAction::Other(other),
        }
    }

    /// The word for people and rules.
    pub fn word(self) -> &'static str {
        match self {
            RecoveryAction::None => "none",
            RecoveryAction::GpuReset => "gpu-reset",
            RecoveryAction::NodeReboot => "node-reboot",
            RecoveryAction::DrainP2p => "drain-p2p",
            RecoveryAction::DrainAndReset => "drain-and-reset",
            RecoveryAction::Other(_) => "other",
        }
    }
}

/// What an administrator wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// No more jobs; those that run may end. With force they are requeued or killed.
    Drain,
    /// Back into service after a check; with force at once.
    Online,
    /// Out until an administrator says otherwise, whatever is measured. Jobs as with drain.
    Offline,
}

impl Verb {
    /// The command's name.
    pub fn word(self) -> &'static str {
        match self {
            Verb::Drain => "drain",
            Verb::Online => "online",
            Verb::Offline => "offline",
        }
    }
}

/// A command of an administrator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Admin {
    /// What to do.
    pub verb: Verb,
    /// The GPU; `None` = the whole node.
    pub gpu: Option<NodeGpu>,
    /// Why, for people; may be empty.
    pub reason: String,
    /// Who.
    pub uid: u32,
    /// `--force`.
    pub force: bool,
}

/// Troubles of the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HostFault {
    /// A network adapter's link went down or came back.
    NicLink {
        /// Its name, such as mlx5_0.
        nic: String,
        /// Whether the link is up.
        up: bool,
        /// GPUs that are nearest to it; empty = not known.
        gpus: Vec<NodeGpu>,
    },
    /// Errors of host memory, counted since boot (EDAC).
    MemoryErrors {
        /// Memory controller, N of EDAC's mcN: one or more for each NUMA node.
        controller: u32,
        /// Corrected ones.
        corrected: u64,
        /// Uncorrected ones.
        uncorrected: u64,
    },
    /// A file system does not answer, or answers again (0).
    FileSystem {
        /// Where it is mounted.
        path: String,
        /// For how long it has not, in ms.
        stalled_ms: u64,
    },
}
