//! The health of the node's GPUs: what [`gpuos_core::health::step`] is told.

use gpuos_core::health::{Effect as Said, Event, GpuHealth, NodeHealth, Rules, Signal, step};
use gpuos_model::gpuset::MAX_GPUS;
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::action::Action;

use super::effect::{Effect, Effects, Now, Quota};
use super::gpus::Gpus;
use crate::blocking::Device;
use crate::queue::{Release, Task, Why};

/// The rules, and their state.
pub struct Health {
    node: NodeHealth,
    rules: Rules,
    /// When the rules were asked last, in milliseconds since the daemon started: parts of one that are left out would add up.
    asked_ms: Option<u64>,
}

impl Health {
    /// As it was saved.
    pub fn restore(node: NodeHealth) -> Health {
        Health {
            node,
            rules: Rules::default(),
            asked_ms: None,
        }
    }

    /// The state.
    pub fn node(&self) -> &NodeHealth {
        &self.node
    }

    /// Takes `[health]` of gpuos.toml.
    pub fn set(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Whether a rule has this Xid.
    pub fn has_rule(&self, xid: u32) -> bool {
        self.rules.of(Signal::Xid(xid)).is_some()
    }

    /// Tells the rules of something. Returns what they want done.
    pub fn apply(&mut self, event: Event, now: Now) -> Vec<Said> {
        if let Some(before) = self.asked_ms.replace(now.running_ms) {
            self.node
                .set_elapsed(now.wall_ms, now.running_ms.saturating_sub(before));
        }
        step(&mut self.node, &self.rules, event, now.wall_ms)
    }

    /// Makes room for GPUs that were not known: NVIDIA's library and Slurm may count differently. Returns whether there was
    /// not enough.
    pub fn grow(&mut self, gpus: usize) -> bool {
        let gpus = gpus.min(MAX_GPUS);
        let more = gpus > self.node.gpus.len();
        if more {
            self.node.gpus.resize(gpus, Default::default());
        }
        more
    }

    /// Makes room for a GPU of the pool. One that was not well when it left the pool stays known: it may be so still. Returns
    /// whether it was not known.
    pub fn know_pooled(&mut self, gpu: NodeGpu) -> bool {
        let new = gpu.is_of_pool() && self.node.gpu(gpu).is_none();
        if new {
            self.node.pool.insert(gpu, Default::default());
        }
        new
    }

    /// Forgets GPUs that are not in the pool any more and are well.
    pub fn keep_pooled(&mut self, pool: &[NodeGpu]) {
        let stays = |gpu: &NodeGpu, health: &GpuHealth| pool.contains(gpu) || !health.is_healthy();
        self.node.pool.retain(|gpu, health| stays(gpu, health));
    }

    /// A GPU is divided no more.
    pub fn undivided(&mut self, gpu: NodeGpu) {
        self.node.undivided(gpu);
    }
}

/// What follows from what the rules want.
pub fn effects(said: Vec<Said>, gpus: &Gpus) -> Effects {
    let mut fx = Effects::default();
    let act = |action| Effect::Ask(Task::Act(action, Why::Rule));
    for said in said {
        match said {
            Said::Warn { gpu, text } => fx.push(Effect::Warn(gpu, text)),
            Said::KillStep { job, step, reason } => {
                let what = step.map_or("the job".into(), |step| format!("step {job}.{step}"));
                fx.tell(&job, format!("{what} is ended: {reason}"));
                fx.push(act(Action::Kill { job, step }));
            }
            Said::Requeue {
                job,
                avoid_node,
                reason,
            } => {
                fx.tell(&job, format!("the job is requeued: {reason}"));
                fx.push(Effect::ForgetRelease(job.clone()));
                fx.push(Effect::Release(Release::of(&job, avoid_node)));
                fx.push(act(Action::Requeue { job }));
            }
            Said::Publish { revision, part } => fx.push(Effect::Publish(revision, part)),
            Said::DrainNode { reason } => fx.push(act(Action::Drain { reason })),
            Said::UndrainNode { reason } => fx.push(act(Action::Undrain { reason })),
            Said::Reset { gpu } => fx.push(Effect::Device(Device::Reset(gpus.known(gpu)))),
            Said::Check { gpu } => fx.push(Effect::Device(Device::Check(gpus.known(gpu)))),
            Said::Audit(audit) => fx.push(Effect::Log(audit, Quota::None)),
        }
    }
    fx
}
