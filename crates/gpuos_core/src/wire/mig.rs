//! Slices of GPUs (MIG) on the wire: what a step asks for, and how the pool of a node stands.
use std::collections::BTreeMap;
use std::fmt;

use gpuos_model::gpu_index::NvmlIndex;
use gpuos_model::mig::MigPlacement;
use serde::{Deserialize, Serialize};

use crate::job::JobId;

/// Variables by which a step's programs find the instances of their job: what CUDA reads, what the NVIDIA container
/// toolkit reads, and profiles, UUIDs and placements (`4:0-3`: memory slices 0 to 3 of GPU 4) for scripts, in one
/// order.
pub const MIG_VARIABLES: [&str; 5] = [
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "GPUOS_MIG_PROFILES",
    "GPUOS_MIG_UUIDS",
    "GPUOS_MIG_PLACEMENTS",
];

/// What a step wants of the node's pool of GPU slices.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigAsk {
    /// As the job's `--gpuos-mig` has it. Its note in Slurm's record counts for more.
    pub request: String,
    /// Bits of GRES `gpuos` that the step holds here: memory slice `b % S` of GPU `b / S` of the
    /// pool. Those that Slurm has not given to the job are not served.
    pub slices: Vec<u8>,
    /// Tasks of the step on this node.
    pub tasks: u32,
}

/// How the pool of a node stands.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MigStatus {
    /// Name of the kind of GPU in gpuos.toml; empty: no GPU of this node is divided.
    pub board: String,
    /// GPUs of the pool, by NVML index.
    pub gpus: Vec<MigGpuStatus>,
    /// gpuosd has not read gpuos.toml since it started: whether the node has a pool is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
}

/// A GPU of the pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MigGpuStatus {
    /// The GPU.
    pub gpu: NvmlIndex,
    /// Its first bit of GRES `gpuos`.
    pub first: u8,
    /// Its memory slices.
    pub slices: u8,
    /// Whether NVML and Slurm were both heard since gpuosd started: nothing is made before.
    pub ready: bool,
    /// Instances, and what stands for one that is not there yet or any more.
    pub instances: Vec<MigInstance>,
    /// Memory slices without an instance that no job holds.
    pub free: Vec<u8>,
    /// How many instances of a profile still fit beside what is there, by its name; each as if it
    /// were the only one.
    pub fits: BTreeMap<String, u32>,
    /// What is wrong with it, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// It is MIG-switchable: in GRES `gpu` and in GRES `gpuos`.
    #[serde(default, alias = "moving", skip_serializing_if = "is_false")]
    pub switchable: bool,
    /// It is MIG-switchable, and its MIG mode is off: a job can have it whole, and before it is divided again the mode is turned on.
    #[serde(default, skip_serializing_if = "is_false")]
    pub whole: bool,
    /// The job that has it whole, if one does. Several may share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<JobId>,
    /// Another user's job has it whole, whose number is not told.
    #[serde(default, skip_serializing_if = "is_false")]
    pub others: bool,
}

impl MigGpuStatus {
    /// A GPU of which nothing is known yet.
    pub fn new(gpu: NvmlIndex) -> MigGpuStatus {
        MigGpuStatus {
            gpu,
            first: 0,
            slices: 0,
            ready: false,
            instances: Vec::new(),
            free: Vec::new(),
            fits: BTreeMap::new(),
            trouble: None,
            switchable: false,
            whole: false,
            holder: None,
            others: false,
        }
    }
}

pub(super) fn is_false(told: &bool) -> bool {
    !told
}

/// An instance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MigInstance {
    /// Name of its profile; its number where no profile has it.
    pub profile: String,
    /// Where.
    #[serde(alias = "window")]
    pub placement: MigPlacement,
    /// NVML's id of the GPU instance, if it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gi: Option<u32>,
    /// Id of its compute instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci: Option<u32>,
    /// `MIG-…`, where it has a compute instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Whose it is; absent: nobody's that gpuos knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// How far it is: `wanted`, `made`, `ready`, `going`, or `foreign`.
    pub phase: String,
    /// It was made by somebody else.
    pub foreign: bool,
    /// Another user's job has it, whose number is not told.
    #[serde(default, skip_serializing_if = "is_false")]
    pub others: bool,
    /// Processes on it, when it was looked at last.
    pub pids: Vec<u32>,
    /// Its memory in MiB, by the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_total_mib: Option<u64>,
    /// What of it is used, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_mib: Option<u64>,
    /// Why its memory is not known, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_unknown: Option<String>,
    /// How busy it is.
    #[serde(default, flatten)]
    pub load: MigLoad,
}

/// How busy a GPU instance was between the two newest polls, by NVML's counters (GPM).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MigLoad {
    /// Of its multiprocessors, those that worked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_percent: Option<Percent>,
    /// Of the memory bandwidth, what was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_percent: Option<Percent>,
    /// Why one of the two is not known, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_unknown: Option<String>,
}

/// A share of a whole, in JSON in percent. Kept in millionths, so that it can be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
pub struct Percent(u32);

impl Percent {
    /// Of a ratio, 0 to 1; what is outside becomes the end that is near. More than nothing is never rounded to nothing.
    pub fn of_ratio(ratio: f64) -> Percent {
        let least = u32::from(ratio > 0.0);
        // A float becomes the nearest number that there is; none is 0.
        Percent(((ratio * 1e6).round() as u32).clamp(least, 1_000_000))
    }

    /// 0 to 1.
    pub fn ratio(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

impl From<f64> for Percent {
    fn from(percent: f64) -> Percent {
        Percent::of_ratio(percent / 100.0)
    }
}

impl From<Percent> for f64 {
    fn from(percent: Percent) -> f64 {
        f64::from(percent.0) / 1e4
    }
}

/// Whole percent, and `<1` for what is less than one and not nothing.
impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1..10_000 => f.write_str("<1"),
            millionths => write!(f, "{}", (millionths + 5000) / 10_000),
        }
    }
}
