//! What becomes of what is found on the GPUs.

use gpuos_core::health::Audit;
use gpuos_core::isolation::{Effect as Said, Finding};
use gpuos_core::job::JobId;
use gpuos_host::steps::job_processes::Killed;
use gpuos_model::gpu_index::GresGpu;

use super::effect::{Effect, Effects, Now, PollBy, Quota};
use super::reports::LOOK_AGAIN;
use crate::isolation::keep::Keeper;
use crate::isolation::{Notice, Order};
use crate::jobs::Table;

/// The thread has looked, or killed.
pub fn on_notice(keeper: &mut Keeper, told: Notice, jobs: &Table, now: Now) -> Effects {
    let mut fx = Effects::default();
    match told {
        Notice::Round { seen, blind } => {
            for said in keeper.round(seen, blind, jobs, now.at) {
                isolate(said, now, &mut fx);
            }
        }
        Notice::Killed { pid, gpu, outcome } => {
            let text = match outcome {
                Ok(Killed::Sent) => format!("process {pid} was killed"),
                Ok(Killed::Gone) => format!("process {pid} was gone before it was killed"),
                Err(why) => format!("process {pid} could not be killed: {why}"),
            };
            fx.push(Effect::Log(audit(gpu, None, text, now), Quota::None));
        }
    }
    fx
}

fn isolate(said: Said, now: Now, fx: &mut Effects) {
    match said {
        Said::Found(finding) => {
            let line = line(&finding, finding.message.clone(), now);
            fx.push(Effect::Found(finding, line));
        }
        Said::Over(finding) => {
            let line = line(&finding, format!("over: {}", finding.message), now);
            fx.push(Effect::Log(line, Quota::User(finding.uid)));
        }
        Said::Kill {
            pid,
            started,
            gpu,
            finding,
        } => {
            if let Some(job) = &finding.job {
                fx.tell(job, format!("process {pid} is killed: {}", finding.message));
            }
            fx.push(Effect::Isolation(Order::Kill { pid, started, gpu }));
        }
        Said::Ask => fx.poll_scheduler(PollBy::AfterLast(LOOK_AGAIN)),
    }
}

fn line(finding: &Finding, text: String, now: Now) -> Audit {
    audit(finding.gpu, about(finding), text, now)
}

/// A line of the audit log, which watchers hear, too.
fn audit(gpu: GresGpu, job: Option<JobId>, text: String, now: Now) -> Audit {
    Audit {
        at_ms: now.wall_ms,
        gpu: Some(gpu.into()),
        job,
        rule: Some("isolation".into()),
        text,
        ..Audit::default()
    }
}

/// The job whose business it is: that of the process, else the one that is disturbed.
fn about(finding: &Finding) -> Option<JobId> {
    let job = finding.job.as_ref();
    job.or(finding.holders.first()).cloned()
}
