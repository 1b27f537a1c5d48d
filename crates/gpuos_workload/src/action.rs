//! What a workload manager is told to do.

use gpuos_core::health::ExtraPart;
use gpuos_core::job::JobId;
use serde::{Deserialize, Serialize};

/// Something for a workload manager to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Action {
    /// Publish the state of the node's GPUs in the node's record; all else that stands there is kept.
    Publish(ExtraPart),
    /// Requeue a job. [`Action::Release`] has to follow.
    Requeue {
        /// The job.
        job: JobId,
    },
    /// Let a requeued job start at once: Slurm holds it back for about two minutes.
    Release {
        /// The job.
        job: JobId,
        /// Keep it off this node, too.
        avoid_node: bool,
    },
    /// Requeue a job and hold it, for a trouble of the node that ends by itself; the job's record says why.
    Hold {
        /// The job.
        job: JobId,
        /// Why, for people.
        why: String,
    },
    /// Let a job go that [`Action::Hold`] held here, and nobody else since.
    LetGo {
        /// The job.
        job: JobId,
    },
    /// End a step; without one the whole job.
    Kill {
        /// The job.
        job: JobId,
        /// The step.
        step: Option<u32>,
    },
    /// Tell a job's user why something of it is ended or requeued: on the job's standard error, and in its record, which stays when it has
    /// ended. Comes before the end itself. Told again it changes nothing.
    Tell {
        /// The job.
        job: JobId,
        /// Why, for people.
        why: String,
    },
    /// Drain the node.
    Drain {
        /// Why, for people.
        reason: String,
    },
    /// Take our own drain of the node back, and nobody else's.
    Undrain {
        /// The reason that we gave.
        reason: String,
    },
}

impl Action {
    /// The job that it is about, if it is about one.
    pub fn job(&self) -> Option<&JobId> {
        match self {
            Action::Requeue { job }
            | Action::Release { job, .. }
            | Action::Hold { job, .. }
            | Action::LetGo { job }
            | Action::Tell { job, .. }
            | Action::Kill { job, .. } => Some(job),
            Action::Publish(_) | Action::Drain { .. } | Action::Undrain { .. } => None,
        }
    }
}

/// How an action went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is done; a sentence for the log.
    Done(String),
    /// There was nothing to do; why.
    Nothing(String),
    /// The time for it has not come: ask again soon.
    NotYet(String),
    /// The workload manager does not answer: ask again later.
    NoAnswer(String),
    /// It will not do it, however often it is asked.
    Refused(String),
}

impl Outcome {
    /// The sentence.
    pub fn words(&self) -> &str {
        match self {
            Outcome::Done(text)
            | Outcome::Nothing(text)
            | Outcome::NotYet(text)
            | Outcome::NoAnswer(text)
            | Outcome::Refused(text) => text,
        }
    }
}
