//! What gpuos's hook in a pbs_mom tells gpuosd of the host, and what mom is to do there. A GPU is named by the number of its vnode:
//! 3 is that of `n1[3]`.
use std::collections::BTreeMap;

use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use serde::{Deserialize, Serialize};

use crate::job::JobId;

/// What mom has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MomReport {
    /// UUIDs of the GPUs in the order of their vnodes, as the administrator gave them; an empty text where he gave none.
    pub gpus: Vec<String>,
    /// GPUs that are divided, by NVML's index, which is the number of their vnodes: they follow those of `gpus`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<NvmlIndex>,
    /// Jobs that have GPUs here.
    pub jobs: Vec<MomJob>,
    /// Whether these are all, with those of `also`: else they are to be added to those that are known.
    pub all: bool,
    /// Jobs that are still here, of which the lines just before told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<JobId>,
    /// Whether pbs_server was asked for what the last answer wanted to know: this one is the last of the event.
    #[serde(default)]
    pub asked: bool,
    /// The vnodes as pbs_server has them, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vnodes: Option<MomVnodes>,
    /// Another one gives GPUs to jobs here, and gpuosd only advises: what is to be done of the host is then said to an administrator.
    #[serde(default, skip_serializing_if = "super::mig::is_false")]
    pub advise: bool,
    /// Runs of jobs that have just left this host, whatever a list says that was made before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<MomEnd>,
}

/// A run of a job that has left a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MomEnd {
    /// PBS's name of the job.
    pub job: JobId,
    /// Which of its runs: another one is not meant.
    pub run: u64,
}

/// A job of PBS on a host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MomJob {
    /// PBS's name of it.
    pub job: JobId,
    /// Its user.
    pub user: String,
    /// Number of the user on this host.
    pub uid: u32,
    /// Its GPUs.
    pub gpus: Vec<GresGpu>,
    /// GPUs of which it was given parts: others may have the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<GresGpu>,
    /// Memory of this host that it was given, in MiB, where it has parts of GPUs or asks for more memory than its GPUs have; 0: PBS counts none for it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_mib: u64,
    /// Slices of GPUs that it was given, as counts: which ones they are is for this host to choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<MomSlices>,
    /// Which of its runs this is, by a number of PBS's.
    pub run: u64,
    /// The host of its script.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub script_on: String,
    /// Its hosts, as a list such as `n[1-4]`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hosts: String,
    /// The hosts on which it has run before, likewise, where it has checkpoints.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub former: String,
    /// Whether it makes checkpoints.
    #[serde(default, skip_serializing_if = "super::mig::is_false")]
    pub checkpoints: bool,
    /// Whether PBS has suspended it: its processes are stopped, and what they have stays where it is.
    #[serde(default, skip_serializing_if = "super::mig::is_false")]
    pub suspended: bool,
    /// Whether somebody holds it (`qhold`); `None`: pbs_server was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_held: Option<bool>,
    /// In how many seconds it has had its time; `None`: it has no limit, or nobody says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_in_s: Option<u64>,
    /// Whether its user lets it run again (`qsub -r`), likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_rerun: Option<bool>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Slices of GPUs that PBS has given to a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MomSlices {
    /// Its `gpuos_mig`.
    pub request: String,
    /// The GPUs on which they are, by NVML's index.
    pub gpus: Vec<NvmlIndex>,
    /// How many compute slices PBS has counted for it.
    pub compute: u64,
    /// How many memory slices.
    pub memory: u64,
}

/// The vnodes of a host, as pbs_server has them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MomVnodes {
    /// GPUs whose vnodes are offline.
    pub offline: Vec<GresGpu>,
    /// Those of them that gpuos took offline for themselves.
    pub own: Vec<GresGpu>,
    /// Why gpuos has taken the host offline as a whole; `None`: it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<String>,
    /// Whether all of its vnodes are offline.
    pub whole: bool,
}

/// What mom is to do.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MomOrders {
    /// GPUs whose vnodes have to be offline, all others online as far as gpuos took them offline; `None`: they stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<Vec<GresGpu>>,
    /// The same of the whole host.
    #[serde(default)]
    pub host: HostOrder,
    /// gpuosd has to know how pbs_server has the vnodes.
    #[serde(default)]
    pub look: bool,
    /// Jobs that have to run again, and how often mom was told already.
    #[serde(default)]
    pub rerun: BTreeMap<JobId, u32>,
    /// Jobs that have to end, likewise.
    #[serde(default)]
    pub end: BTreeMap<JobId, u32>,
}

/// What becomes of a host as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostOrder {
    /// It stays as it is.
    #[default]
    Leave,
    /// It is online, as far as gpuos took it offline.
    Online,
    /// It is offline, for this reason.
    Offline(String),
}
