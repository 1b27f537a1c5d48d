//! What becomes of what is found on the GPUs.

use gpuos_core::health::{Audit, Job};
use gpuos_core::isolation::{Effect, Finding};
use gpuos_core::step::StepId;
use gpuos_host::steps::job_processes::Killed;

use super::{LOOK_AGAIN, Owner};
use crate::isolation::{Order, Told};
use crate::metrics::count::Act;

impl Owner {
    pub(super) fn isolation(&mut self, told: Told) {
        match told {
            Told::Round { seen, blind } => {
                let now = self.now();
                for effect in self.isolation.round(seen, blind, &self.jobs, now) {
                    self.isolate(effect);
                }
            }
            Told::Killed { pid, gpu, outcome } => {
                self.metrics.did(Act::KillProcess, outcome.is_ok());
                let text = match outcome {
                    Ok(Killed::Sent) => format!("process {pid} was killed"),
                    Ok(Killed::Gone) => format!("process {pid} was gone before it was killed"),
                    Err(why) => format!("process {pid} could not be killed: {why}"),
                };
                self.isolated(gpu, None, text);
            }
        }
    }

    /// Jobs for the health rules, with the processes that were seen of them.
    pub(super) fn told_jobs_with_processes(&self) -> Vec<Job> {
        let mut jobs = self.jobs.told();
        for job in &mut jobs {
            if let Some(step) = job.step {
                job.pids = self.isolation.pids(job.job, &StepId::name(step));
            }
        }
        let slices = self.mig_holders();
        for job in &mut jobs {
            // Slurm's word, where it is not known of the job's whole GPUs.
            if let Some(known) = slices.iter().find(|one| one.job == job.job) {
                job.requeue = known.requeue;
            }
        }
        jobs.extend(slices);
        jobs
    }

    fn isolate(&mut self, effect: Effect) {
        match effect {
            Effect::Found(finding) => {
                if self.is_heard(finding.uid) {
                    tracing::warn!(gpu = finding.gpu, job = finding.job, "{}", finding.message);
                    let (gpu, job) = (finding.gpu, about(&finding));
                    self.isolated(gpu, job, finding.message);
                }
            }
            Effect::Over(finding) => {
                if self.is_heard(finding.uid) {
                    let (gpu, job) = (finding.gpu, about(&finding));
                    self.isolated(gpu, job, format!("over: {}", finding.message));
                }
            }
            Effect::Kill { pid, started, gpu } => {
                let _ = self.ports.isolation.send(Order::Kill { pid, started, gpu });
            }
            Effect::Ask => self.look = self.look.min(self.looked + LOOK_AGAIN),
        }
    }

    /// A line of the audit log, which watchers hear too.
    fn isolated(&mut self, gpu: u8, job: Option<u32>, text: String) {
        let audit = Audit {
            at_ms: (self.ports.wall)(),
            gpu: Some(gpu),
            job,
            rule: Some("isolation".into()),
            text,
            ..Audit::default()
        };
        let mut lines = Vec::new();
        self.log(&audit, &mut lines);
        self.ports.disk.audit(lines);
    }
}

/// The job whose business it is: that of the process, else the one that is disturbed.
fn about(finding: &Finding) -> Option<u32> {
    finding.job.or(finding.holders.first().copied())
}
