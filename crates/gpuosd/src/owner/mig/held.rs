//! Jobs whose instances cannot be made because NVIDIA's driver is away: held, and let go when it answers again.

use std::time::Duration;

use gpuos_model::gpuset::GpuSet;
use gpuos_workload::action::{Action, Outcome};

use super::super::Owner;
use crate::queue::{Release, Task as WorkloadTask, Why};

/// Slurm is told so often to let jobs go that it does not let go yet.
const LET_GO_EVERY: Duration = Duration::from_secs(5);

impl Owner {
    /// The GPUs on which a job has something, by NVML's index.
    pub(super) fn mig_gpus_of(&self, job: u32) -> GpuSet {
        let Some(grant) = self.mig.grants.get(&job) else {
            return GpuSet::EMPTY;
        };
        let pieces = grant.pieces.iter();
        let gpus = pieces.fold(GpuSet::EMPTY, |all, piece| all.with(usize::from(piece.gpu)));
        grant.whole.iter().fold(gpus, GpuSet::with)
    }

    /// Whether the driver says nothing of a job's GPUs: then the job cannot be at fault.
    pub(super) fn mig_driver_away(&self, job: u32) -> bool {
        self.library_away() || !self.mig_answers(self.mig_gpus_of(job))
    }

    fn library_away(&self) -> bool {
        self.silent || self.troubles.contains_key("library")
    }

    /// Whether the driver tells what is on these GPUs.
    fn mig_answers(&self, gpus: GpuSet) -> bool {
        let view = |gpu: usize| {
            let gpu = u8::try_from(gpu).ok();
            gpu.and_then(|gpu| self.mig.views.get(&gpu))
        };
        gpus.iter().all(|gpu| !matches!(view(gpu), Some(Err(_))))
    }

    /// Lets jobs go whose GPUs answer again, or are out of service: Slurm gives the job others then.
    pub(super) fn tick_mig_held(&mut self) {
        let now = self.now();
        let late = |at| now.duration_since(at) >= LET_GO_EVERY;
        let polled = self.polled.is_some() && !self.library_away();
        if self.mig.held_jobs.is_empty() || !polled || !self.mig.let_go.is_none_or(late) {
            return;
        }
        self.mig.let_go = Some(now);
        let ready = |gpu: usize| {
            let gpu = u8::try_from(gpu).unwrap_or(u8::MAX);
            matches!(self.mig.views.get(&gpu), Some(Ok(_))) || self.mig_out(gpu).is_some()
        };
        let held = self.mig.held_jobs.iter();
        let held = held.filter(|(job, _)| !self.mig.endings.contains_key(job));
        let back = held.filter(|(_, held)| held.gpus.iter().all(ready));
        for job in back.map(|(job, _)| *job).collect::<Vec<u32>>() {
            self.queue
                .push(WorkloadTask::Act(Action::LetGo { job }, Why::Rule));
        }
    }

    /// slurmctld answered about a job that is held, or is to be.
    pub(super) fn mig_held_acted(&mut self, action: &Action, outcome: &Outcome) {
        let (job, released) = match action {
            Action::Hold { job, .. } => (*job, false),
            Action::LetGo { job } => (*job, true),
            _ => return,
        };
        match outcome {
            Outcome::Away(_) | Outcome::NotYet(_) => return,
            // Whether it is held, shows when it is to be let go.
            Outcome::Done(_) | Outcome::Nothing(_) if !released => return,
            // Slurm holds a requeued job back for two minutes.
            Outcome::Done(_) => self.releases.push(Release::of(job, false)),
            Outcome::Nothing(_) | Outcome::Refused(_) => {}
        }
        self.mig.held_jobs.remove(&job);
    }
}
