//! A step of a job by the ids of both.

use serde::{Deserialize, Serialize};

use crate::job::JobId;

/// A step: the id of its job, and its number in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct StepId {
    /// Job.
    pub job: JobId,
    /// Step of the job; numbers near 2³² are the batch script and the like.
    pub step: u32,
}

impl StepId {
    /// The step that holds what a job adopts.
    pub const EXTERN: u32 = 0xffff_fffc;
    /// The batch script.
    pub const BATCH: u32 = 0xffff_fffb;
    /// The shell of an interactive job.
    pub const INTERACTIVE: u32 = 0xffff_fffa;
    /// Numbers from here on are none of steps that a user starts.
    const SPECIAL: u32 = 0xffff_fff0;

    /// A step's number as people write it: `0`, `batch`, `extern`, `interactive`.
    pub fn name(step: u32) -> String {
        match step {
            StepId::BATCH => "batch".into(),
            StepId::EXTERN => "extern".into(),
            StepId::INTERACTIVE => "interactive".into(),
            number => number.to_string(),
        }
    }

    /// Whether it is the batch script, the extern step or the like: what ends with the job, and is the job.
    pub fn is_special(&self) -> bool {
        StepId::is_special_number(self.step)
    }

    /// The same by the step's number.
    pub fn is_special_number(step: u32) -> bool {
        step >= StepId::SPECIAL
    }

    /// Whether it is the step that holds what a job adopts: it has no program of its own, and waits for nothing.
    pub fn is_extern(&self) -> bool {
        self.step == StepId::EXTERN
    }
}
