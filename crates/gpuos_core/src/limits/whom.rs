//! Whom a daemon of MPS serves.
use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::wish::Asked;

/// Whom a daemon serves. Its text (`7`, `gpu0-1000`) names its folder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Whom {
    /// One job, on whole GPUs.
    Job(u32),
    /// All jobs of a user that share a GPU and ask for it. A server of MPS serves one user only.
    Sharers {
        /// The GPU, by Slurm's number.
        gpu: u8,
        /// The user.
        uid: u32,
    },
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whom::Job(job) => write!(f, "{job}"),
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
                gpu: gpu.parse().ok()?,
                uid: uid.parse().ok()?,
            })
        };
        let job = text.parse().ok().map(Whom::Job);
        job.or_else(sharers)
            .ok_or_else(|| format!("'{text}' names no MPS daemon"))
    }
}

impl Whom {
    /// Whose daemon a job uses on these GPUs. `None`: it has asked for none, or has shares of several GPUs.
    pub fn of(job: u32, uid: u32, gpus: &BTreeSet<u8>, asked: &Asked) -> Option<Whom> {
        let mps = asked.mps?;
        match (mps.joint, gpus.first()) {
            (false, _) => Some(Whom::Job(job)),
            (true, Some(&gpu)) if gpus.len() == 1 => Some(Whom::Sharers { gpu, uid }),
            (true, _) => None,
        }
    }

    /// In words.
    pub(super) fn text(self) -> String {
        match self {
            Whom::Job(job) => format!("job {job}"),
            Whom::Sharers { gpu, uid } => format!("the jobs of uid {uid} that share GPU {gpu}"),
        }
    }
}
