//! Whom a daemon of MPS serves.
use std::collections::BTreeSet;
use std::fmt;

use gpuos_model::gpu_index::GresGpu;
use serde::{Deserialize, Serialize};

use super::requests::Asked;
use crate::job::JobId;

/// What stands before a job whose id is a word.
const WORD: &str = "job-";

/// Whom a daemon serves. Its text (`7`, `job-8.server`, `gpu0-1000`) names its folder.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum MpsClient {
    /// One job, on whole GPUs.
    Job(JobId),
    /// All jobs of a user that share a GPU and ask for it. A server of MPS serves one user only.
    Sharers {
        /// The GPU, by Slurm's number.
        gpu: GresGpu,
        /// The user.
        uid: u32,
    },
}

impl fmt::Display for MpsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MpsClient::Job(job) if job.number().is_some() => write!(f, "{job}"),
            // A word could read like what follows.
            MpsClient::Job(job) => write!(f, "{WORD}{job}"),
            MpsClient::Sharers { gpu, uid } => write!(f, "gpu{gpu}-{uid}"),
        }
    }
}

impl From<MpsClient> for String {
    fn from(whom: MpsClient) -> String {
        whom.to_string()
    }
}

impl TryFrom<String> for MpsClient {
    type Error = String;

    fn try_from(text: String) -> Result<MpsClient, String> {
        let sharers = || {
            let (gpu, uid) = text.strip_prefix("gpu")?.split_once('-')?;
            Some(MpsClient::Sharers {
                gpu: gpu.parse::<u8>().ok()?.try_into().ok()?,
                uid: uid.parse().ok()?,
            })
        };
        let job = |text: &str| text.parse::<JobId>().ok();
        let job = match text.strip_prefix(WORD) {
            Some(word) => job(word).filter(|job| job.number().is_none()),
            None => job(&text).filter(|job| job.number().is_some()),
        };
        job.map(MpsClient::Job)
            .or_else(sharers)
            .ok_or_else(|| format!("'{text}' names no MPS daemon"))
    }
}

impl MpsClient {
    /// Whose daemon a job uses on these GPUs. `None`: it has asked for none, or has shares of several GPUs.
    pub fn of(job: &JobId, uid: u32, gpus: &BTreeSet<GresGpu>, asked: &Asked) -> Option<MpsClient> {
        let mps = asked.mps?;
        match (mps.joint, gpus.first()) {
            (false, _) => Some(MpsClient::Job(job.clone())),
            (true, Some(&gpu)) if gpus.len() == 1 => Some(MpsClient::Sharers { gpu, uid }),
            (true, _) => None,
        }
    }

    /// In words.
    pub(super) fn text(&self) -> String {
        match self {
            MpsClient::Job(job) => format!("job {job}"),
            MpsClient::Sharers { gpu, uid } => {
                format!("the jobs of uid {uid} that share GPU {gpu}")
            }
        }
    }
}
