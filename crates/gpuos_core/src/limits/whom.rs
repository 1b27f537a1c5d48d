//! Whom a daemon of MPS serves.
use std::collections::BTreeSet;
use std::fmt;

use gpuos_model::gpu_index::GresGpu;
use serde::{Deserialize, Serialize};

use super::wish::Asked;
use crate::job::JobId;

/// What stands before a job whose id is a word.
const WORD: &str = "job-";

/// Whom a daemon serves. Its text (`7`, `job-8.server`, `gpu0-1000`) names its folder.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Whom {
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

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whom::Job(job) if job.number().is_some() => write!(f, "{job}"),
            // A word could read like what follows.
            Whom::Job(job) => write!(f, "{WORD}{job}"),
            Whom::Sharers { gpu, uid } => write!(f, "gpu{gpu}-{uid}"),
        }
    }
}

impl From<Whom> for String {
    fn from(whom: Whom) -> String {
        whom.to_string()
    }
}

impl TryFrom<String> for Whom {
    type Error = String;

    fn try_from(text: String) -> Result<Whom, String> {
        let sharers = || {
            let (gpu, uid) = text.strip_prefix("gpu")?.split_once('-')?;
            Some(Whom::Sharers {
                gpu: gpu.parse::<u8>().ok()?.try_into().ok()?,
                uid: uid.parse().ok()?,
            })
        };
        let job = |text: &str| text.parse::<JobId>().ok();
        let job = match text.strip_prefix(WORD) {
            Some(word) => job(word).filter(|job| job.number().is_none()),
            None => job(&text).filter(|job| job.number().is_some()),
        };
        job.map(Whom::Job)
            .or_else(sharers)
            .ok_or_else(|| format!("'{text}' names no MPS daemon"))
    }
}

impl Whom {
    /// Whose daemon a job uses on these GPUs. `None`: it has asked for none, or has shares of several GPUs.
    pub fn of(job: &JobId, uid: u32, gpus: &BTreeSet<GresGpu>, asked: &Asked) -> Option<Whom> {
        let mps = asked.mps?;
        match (mps.joint, gpus.first()) {
            (false, _) => Some(Whom::Job(job.clone())),
            (true, Some(&gpu)) if gpus.len() == 1 => Some(Whom::Sharers { gpu, uid }),
            (true, _) => None,
        }
    }

    /// In words.
    pub(super) fn text(&self) -> String {
        match self {
            Whom::Job(job) => format!("job {job}"),
            Whom::Sharers { gpu, uid } => format!("the jobs of uid {uid} that share GPU {gpu}"),
        }
    }
}
