//! What gpuos's hook in a pbs_mom tells gpuosd of the host, and what mom is to do there. PBS counts GPUs, and gpuosd chooses which ones a job has. A GPU is
//! named by its place in what the administrator describes, which is NVIDIA's order.
use std::collections::BTreeMap;

use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use serde::{Deserialize, Serialize};

use crate::job::JobId;

/// What mom has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MomReport {
    /// All GPUs of the host, as the administrator describes them: those that are divided are the last ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub described: Vec<MomGpu>,
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
    /// The host's own vnode as pbs_server has it, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<MomHost>,
    /// Another one gives GPUs to jobs here, and gpuosd only advises: what is to be done of the host is then said to an administrator.
    #[serde(default, skip_serializing_if = "super::mig::is_false")]
    pub advise: bool,
    /// Runs of jobs that have just left this host, whatever a list says that was made before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<MomEnd>,
}

/// A GPU of the host, as the administrator describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MomGpu {
    /// Its UUID; empty: he names none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uuid: String,
    /// The set of GPUs that it has NVLink to; empty: it is in none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nvlink: String,
    /// Its NUMA node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Into how many parts jobs share it; 0: it is one job's as a whole.
    #[serde(skip_serializing_if = "is_zero_u16")]
    pub shares: u16,
    /// It is divided into slices.
    #[serde(skip_serializing_if = "super::mig::is_false")]
    pub divided: bool,
}

fn is_zero_u16(number: &u16) -> bool {
    *number == 0
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
    /// The GPUs that it has by another's word: by names of vnodes of a gpuos before this one, or of pbs_cgroups.
    pub gpus: Vec<GresGpu>,
    /// How many whole GPUs of this host PBS counts for it beside these: gpuosd chooses which.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub count: u32,
    /// How near each other they are to be, as `gpuos_topology` has it; empty: nobody says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub topology: String,
    /// How many parts of one shared GPU PBS counts for it: gpuosd chooses which GPU.
    #[serde(default, skip_serializing_if = "is_zero_u16")]
    pub parts: u16,
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

fn is_zero_u32(number: &u32) -> bool {
    *number == 0
}

/// Slices of GPUs that PBS has given to a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MomSlices {
    /// Its `gpuos_mig`.
    pub request: String,
    /// The GPUs on which they are, by NVML's index, where names of vnodes say it: the request on each. Empty: gpuosd chooses.
    #[serde(default)]
    pub gpus: Vec<NvmlIndex>,
    /// How often the request is to be met where gpuosd chooses, each time on one GPU.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub chunks: u32,
    /// How many compute slices PBS has counted for it.
    pub compute: u64,
    /// How many memory slices.
    pub memory: u64,
}

/// The host's own vnode, as pbs_server has it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MomHost {
    /// Whether it is offline, whoever took it so.
    pub offline: bool,
    /// Why gpuos took it offline, or what gpuos advises in its comment; `None`: neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it shows of the GPUs: a text of [`MomRoom::shown`]; empty: nothing yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub shown: String,
    /// How many GPUs the site has PBS count on the host's vnodes, whatever stands there while fewer are to be had; 0: it did not say.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub counted: u64,
    /// Another's comment stands there, so that nothing can be advised in it.
    #[serde(default, skip_serializing_if = "super::mig::is_false")]
    pub commented: bool,
}

/// What PBS is to show and to count of a host's GPUs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MomRoom {
    /// GPUs that jobs can have as a whole: those out of service, shared or divided are not among them.
    pub whole: u64,
    /// How many free ones at most are linked with each other.
    pub linked: u64,
    /// Memory slices of the largest profile that one GPU has room for.
    pub mig_fits: u64,
    /// Parts that are free on one shared GPU, at most.
    pub share_fits: u64,
    /// Parts of all shared GPUs that are in service.
    pub share_parts: u64,
    /// Compute slices of all divided GPUs that are in service.
    pub mig_compute: u64,
    /// Their memory slices.
    pub mig_memory: u64,
    /// Free GPUs, links and what is out of service, as one text for `gpuos_pbs::published`.
    pub shown: String,
}

/// GPUs that gpuosd has chosen for a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MomChoice {
    /// Those that it has as a whole, or of which it has parts, ascending.
    pub gpus: Vec<GresGpu>,
    /// Why it has none though PBS counts some for it; empty: it has them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub refused: String,
    /// A refused program is to start as on a PBS without gpuos, with no word about GPUs: what is described of the host does not fit what PBS
    /// counts, or is not known. Else its job is to be queued again.
    #[serde(skip_serializing_if = "super::mig::is_false")]
    pub as_stock: bool,
}

/// What mom is to do.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MomOrders {
    /// What PBS is to count and show of the GPUs; `None`: it stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<MomRoom>,
    /// What jobs have of which the report told that are about to start a program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub chosen: BTreeMap<JobId, MomChoice>,
    /// What becomes of the host as a whole.
    #[serde(default)]
    pub host: HostOrder,
    /// gpuosd has to know how pbs_server has the host's own vnode.
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
