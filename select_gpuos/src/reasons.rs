//! The sentence that squeue shows while a job with a required level waits.
//!
//! slurmctld clears a job's reason right after a refused RUN_NOW, so the sentence is handed over at
//! the next call that holds the job lock; after a refused WILL_RUN it stays as it is set. Backfill
//! asks WILL_RUN only when something has changed, so a cleared sentence counts as a change.

use slurm_ffi::api::{self, Api};
use slurm_ffi::handles::Job;
use slurm_ffi::layout::Layout;
use slurm_ffi::log;

use crate::clock;

/// Slurm's WAIT_RESOURCES, the same number in every release.
const WAIT_RESOURCES: u32 = 3;
/// Slurm's WAIT_PRIORITY.
const WAIT_PRIORITY: u32 = 1;

/// More waiting jobs than this get their sentence a cycle later.
const MOST: usize = 512;

/// Sentences that wait for the next call.
#[derive(Default)]
pub struct Reasons {
    later: Vec<(u32, String)>,
}

impl Reasons {
    /// Keeps a sentence for the next call.
    pub fn later(&mut self, job: u32, sentence: String) {
        self.later.retain(|(id, _)| *id != job);
        if self.later.len() < MOST {
            self.later.push((job, sentence));
        }
        note_change();
    }

    /// Hands over what was kept, except for `current`, which is being decided right now.
    ///
    /// # Safety
    /// The caller holds slurmctld's job write lock.
    pub unsafe fn hand_over(&mut self, api: &Api, layout: &Layout, current: u32) {
        if self.later.is_empty() {
            return;
        }
        for (id, sentence) in self.later.drain(..) {
            if id == current {
                continue;
            }
            // SAFETY: by the caller.
            if let Some(job) = unsafe { Job::find(id, layout) } {
                show(api, job, &sentence);
            }
        }
    }
}

/// Tells slurmctld that a job has changed, as it does itself wherever it sets a reason: backfill then
/// looks at the waiting jobs once more, at its next interval.
fn note_change() {
    if let Some(last) = api::symbol(c"last_job_update") {
        // SAFETY: slurmctld's `time_t last_job_update`; job_test runs under its job write lock.
        unsafe { *last.cast::<libc::time_t>() = clock::now() }
    }
}

/// Shows a sentence on a job that waits for resources; any other reason is Slurm's to tell.
pub fn show(api: &Api, job: Job<'_>, sentence: &str) {
    if matches!(job.reason(), WAIT_RESOURCES | WAIT_PRIORITY | 0) {
        log::debug(&format!("job {} waits: {sentence}", job.id()));
        job.set_reason(api, WAIT_RESOURCES, sentence);
    }
}
