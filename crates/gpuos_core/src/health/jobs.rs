//! What is done to jobs: which are hit, and that what was told is done.
use std::collections::BTreeSet;

use gpuos_model::node_gpu::NodeGpu;

use super::effect::{Audit, Effect};
use super::event::Job;
use super::rules::{Gauge, JobsAre};
use super::state::{Act, NodeHealth, Service};
use super::step::Ctx;
use crate::job::JobId;
use crate::step::StepId;

/// The most jobs and steps of a node that are looked at.
const MOST: usize = 4096;

/// Where on a GPU something happened.
#[derive(Clone, Default)]
pub(super) struct At {
    /// MIG GPU instance.
    pub instance: Option<u32>,
    /// Process.
    pub pid: Option<u32>,
    /// It is about this job, and no others.
    pub job: Option<JobId>,
    /// It is about jobs that asked to be watched, and no others.
    pub watched: bool,
    /// It is about a program's own doing: on a GPU that several share, only the one that is known to be meant.
    pub own: bool,
}

/// [`super::Event::Jobs`] and [`super::Event::Reported`].
pub(super) fn update_jobs(node: &mut NodeHealth, ctx: &mut Ctx<'_>, mut list: Vec<Job>) {
    list.truncate(MOST);
    let before = std::mem::replace(&mut node.jobs, list);
    node.heard_at = Some(node.clock);
    restart_watch(node, ctx, &before);
    let jobs = &node.jobs;
    // What is gone needs no more doing.
    node.acts.retain(|act| {
        let same = |job: &&Job| job.job == act.job && job.gpus.contains(&act.gpu);
        let mut still = jobs.iter().filter(same);
        match act.kill {
            Some(step) => still.any(|job| job.step == step),
            None => still.next().is_some(),
        }
    });
    for gpu in node.numbers() {
        let health = &node[gpu];
        if health.service == Service::In {
            continue;
        }
        let had = |job: &JobId| {
            before
                .iter()
                .any(|b| b.job == *job && b.gpus.contains(&gpu))
        };
        let new = node.jobs.iter();
        let new = new.filter(|job| job.gpus.contains(&gpu) && !had(&job.job));
        let new: BTreeSet<JobId> = new.map(|job| job.job.clone()).collect();
        let causes = health.causes.iter();
        let causes = causes.filter(|cause| cause.action.takes_out());
        let mut causes: Vec<_> = causes.map(|one| (one.jobs, one.text.clone())).collect();
        // Who is requeued need not be killed besides.
        causes.sort_by_key(|(jobs, _)| *jobs != JobsAre::Requeue);
        for job in new {
            ctx.log(Audit {
                gpu: Some(gpu),
                job: Some(job.clone()),
                text: format!(
                    "job {job} was started on GPU {gpu}, which is out: the workload manager did not know yet"
                ),
                ..Audit::default()
            });
            let at = At {
                job: Some(job),
                ..At::default()
            };
            for (jobs, text) in &causes {
                treat(node, ctx, gpu, at.clone(), *jobs, text);
            }
        }
    }
}

/// A job that asked to be watched and came after another one starts with a count of its own.
fn restart_watch(node: &mut NodeHealth, ctx: &Ctx<'_>, before: &[Job]) {
    let watched = |list: &[Job], gpu: NodeGpu| -> BTreeSet<JobId> {
        let on = list
            .iter()
            .filter(|job| job.watch && job.gpus.contains(&gpu));
        on.map(|job| job.job.clone()).collect()
    };
    for gpu in node.numbers() {
        if watched(&node.jobs, gpu) == watched(before, gpu) {
            continue;
        }
        for (rule, _) in ctx
            .rules
            .gauges()
            .filter(|(_, gauge)| *gauge == Gauge::Hang)
        {
            if let Some(watch) = node[gpu].watches.get_mut(&rule.name) {
                watch.forget();
            }
        }
    }
}

/// Does to the jobs on a GPU what a rule says.
pub(super) fn treat(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    at: At,
    jobs: JobsAre,
    reason: &str,
) {
    let hit = hit(node, gpu, at);
    if hit.is_empty() || jobs == JobsAre::RunOut {
        return;
    }
    for job in hit {
        let requeue = node
            .jobs
            .iter()
            .any(|other| other.job == job.job && other.requeue);
        let kill = match jobs {
            JobsAre::Requeue if requeue => None,
            // A job without a process has nothing to kill.
            _ if job.step.is_none() && job.pids.is_empty() => continue,
            _ => Some(job.step),
        };
        let known = |act: &Act| act.job == job.job && (act.kill.is_none() || act.kill == kill);
        if node.acts.iter().any(known) {
            continue;
        }
        let what = match (kill, job.step) {
            (None, _) => format!("job {} is requeued", job.job),
            (Some(_), None) => format!("job {} is killed", job.job),
            (Some(_), Some(step)) => format!("step {}.{} is killed", job.job, StepId::name(step)),
        };
        ctx.log(Audit {
            gpu: Some(gpu),
            job: Some(job.job.clone()),
            text: format!("{what}: {reason}"),
            ..Audit::default()
        });
        node.acts.push(Act {
            job: job.job.clone(),
            kill,
            gpu,
            reason: format!("GPU {gpu}: {reason}"),
            since: node.clock,
            tried: None,
        });
    }
}

/// The steps that something on a GPU hit. With the instance or the process known, only theirs; where several jobs have the
/// GPU, or slices of it, and nobody knows whose the trouble is, none.
fn hit(node: &NodeHealth, gpu: NodeGpu, at: At) -> Vec<Job> {
    let on: Vec<&Job> = node
        .jobs
        .iter()
        .filter(|job| job.gpus.contains(&gpu) && (job.watch || !at.watched))
        .filter(|job| at.job.as_ref().is_none_or(|only| job.job == *only))
        .collect();
    let jobs: BTreeSet<JobId> = on.iter().map(|job| job.job.clone()).collect();
    // A MIG-switchable one is divided where somebody has an instance of it.
    let divided = |job: &&Job| job.instances.iter().any(|(of, _)| *of == gpu);
    let shared = gpu.is_of_pool() || jobs.len() > 1 || on.iter().any(divided);
    let by_pid = |job: &&&Job| at.pid.is_some_and(|pid| job.pids.contains(&pid));
    let found: Vec<&Job> = on.iter().filter(by_pid).copied().collect();
    let found = match at.instance {
        _ if !found.is_empty() => found,
        None if shared && at.own => Vec::new(),
        None => on,
        Some(instance) => {
            let theirs = |job: &&Job| job.instances.contains(&(gpu, instance));
            let named: Vec<&Job> = on.iter().filter(|job| theirs(job)).copied().collect();
            match named.is_empty() {
                true if !shared && on.iter().all(|job| job.instances.is_empty()) => on,
                _ => named,
            }
        }
    };
    found.into_iter().cloned().collect()
}

/// Tells what is due: kills at once, requeues once slurmctld knows that the GPU is out.
pub(super) fn advance(node: &mut NodeHealth, ctx: &mut Ctx<'_>) {
    let clock = node.clock;
    let wait = u64::from(ctx.rules.limits.publish_wait_s) * 1000;
    let retry = u64::from(ctx.rules.limits.retry_s) * 1000;
    let confirmed = node.publishing.confirmed.clone().unwrap_or_default();
    let drained = node.hold.is_some();
    for act in &mut node.acts {
        let again = act.tried.is_none_or(|at| {
            clock.saturating_sub(at) >= retry && node.heard_at.is_some_and(|told| told > at)
        });
        // On a node that an administrator drained nothing starts either.
        let known = drained || confirmed.has_out(act.gpu);
        let late = clock.saturating_sub(act.since) >= wait;
        if !again || (act.kill.is_none() && !known && !late) {
            continue;
        }
        act.tried = Some(clock);
        let (job, reason) = (act.job.clone(), act.reason.clone());
        ctx.effects.push(match act.kill {
            Some(step) => Effect::KillStep { job, step, reason },
            None => Effect::Requeue {
                job,
                reason,
                avoid_node: !known,
            },
        });
    }
}
