//! What is written down about an instance that gpuosd makes for a job.
use gpuos_model::mig::MigPlacement;
use serde::{Deserialize, Serialize};

use crate::job::JobId;

/// How far an instance is. Each stands in the journal before the next thing is done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// It is to be made. It may be there already, when the daemon died before it knew.
    Wanted,
    /// The GPU instance is there, its compute instance not yet.
    Made {
        /// NVML's id of the GPU instance.
        gi: u32,
    },
    /// A job can use it.
    Ready {
        /// NVML's id of the GPU instance.
        gi: u32,
        /// Id of the compute instance in it.
        ci: u32,
        /// `MIG-…`.
        uuid: String,
    },
    /// It is to be destroyed, as far as it is there.
    Going,
}

/// An instance of a job on one GPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// Its number, never given twice on a node.
    pub id: u64,
    /// The job.
    pub job: JobId,
    /// NVML's id of the profile.
    pub profile: u32,
    /// Where.
    #[serde(alias = "window")]
    pub placement: MigPlacement,
    /// How far it is.
    pub phase: Phase,
}

/// A GPU instance as NVML shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shown {
    /// Its id.
    pub gi: u32,
    /// Id of its profile.
    pub profile: u32,
    /// Where.
    #[serde(alias = "window")]
    pub placement: MigPlacement,
    /// Its compute instances: id and UUID.
    pub computes: Vec<(u32, String)>,
    /// A process uses it.
    pub busy: bool,
}

/// A placement that a job holds by Slurm's records. Those of different jobs do not overlap.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobPlacement {
    /// The job.
    pub job: JobId,
    /// Where.
    #[serde(alias = "window")]
    pub placement: MigPlacement,
    /// NVML's id of the profile that it is to have there; `None` where the records do not say it.
    pub profile: Option<u32>,
    /// There are processes on an instance in this placement, and all of them are the job's.
    pub own: bool,
}
