//! A step of a job by its numbers.

use serde::{Deserialize, Serialize};

/// A step: Slurm's numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct StepId {
    /// Job.
    pub job: u32,
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
    pub fn is_special(self) -> bool {
        self.step >= StepId::SPECIAL
    }

    /// Whether it is the step that holds what a job adopts: it has no program of its own, and waits for nothing.
    pub fn is_extern(self) -> bool {
        self.step == StepId::EXTERN
    }
}
