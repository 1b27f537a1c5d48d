//! The step function: one event, and then everything that time and the new state bring.
use gpuos_model::node_gpu::NodeGpu;

use super::effect::{Audit, Effect};
use super::event::Event;
use super::rules::Rules;
use super::state::NodeHealth;
use super::{admin, faults, holding, jobs, logged, node, publish, service};

/// The most that the node's own clock moves in one step: a clock that leaps ahead ends no waiting time.
const MOST_MS: u64 = 60_000;

/// One step: what it works with, and what it gives.
pub(super) struct Ctx<'a> {
    pub rules: &'a Rules,
    /// As given.
    pub now_ms: u64,
    pub effects: Vec<Effect>,
}

impl Ctx<'_> {
    pub fn audit(&mut self, gpu: Option<NodeGpu>, text: impl Into<String>) {
        self.log(Audit {
            gpu,
            text: text.into(),
            ..Audit::default()
        });
    }

    /// A line of the audit log, dated now.
    pub fn log(&mut self, audit: Audit) {
        self.effects.push(Effect::Audit(Audit {
            at_ms: self.now_ms,
            ..audit
        }));
    }

    pub fn warn(&mut self, gpu: Option<NodeGpu>, text: impl Into<String>) {
        let text = text.into();
        self.effects.push(Effect::Warn { gpu, text });
    }
}

/// What follows from an event at `now_ms`, a wall clock in ms that may jump. Effects are to be done in their
/// order. No event is an error: one about a GPU that the node does not have changes nothing.
pub fn step(node: &mut NodeHealth, rules: &Rules, event: Event, now_ms: u64) -> Vec<Effect> {
    let passed = now_ms.saturating_sub(node.wall.unwrap_or(now_ms));
    node.clock = node.clock.saturating_add(passed.min(MOST_MS));
    node.wall = Some(now_ms);
    let mut ctx = Ctx {
        rules,
        now_ms,
        effects: Vec::new(),
    };
    let ctx = &mut ctx;
    let figures = match &event {
        Event::Sample { gpu, .. } | Event::Silent { gpu } => vec![*gpu],
        Event::Tick => node.numbers(),
        _ => Vec::new(),
    };
    match event {
        Event::Started { rebooted } => service::started(node, ctx, rebooted),
        Event::Sample { gpu, sample } => faults::sample(node, ctx, gpu, *sample),
        Event::Xid {
            gpu,
            code,
            gpu_instance,
            pid,
            compute_instance: _,
        } => faults::xid(node, ctx, gpu, code, gpu_instance, pid),
        Event::Logged {
            gpu,
            code,
            gpu_instance,
            pid,
        } => logged::kernel_message(node, ctx, gpu, code, gpu_instance, pid),
        Event::RecoveryAction { gpu, action } => faults::recovery(node, ctx, gpu, action),
        Event::Lost { gpu } => faults::lost(node, ctx, gpu),
        Event::Silent { gpu } => faults::silent(node, ctx, gpu),
        Event::LibrarySilent => node::library(node, ctx, true),
        Event::LibraryBack => node::library(node, ctx, false),
        Event::Jobs(list) => {
            node.jobs_at = Some(node.clock);
            jobs::update_jobs(node, ctx, list);
        }
        Event::Reported(list) => jobs::update_jobs(node, ctx, list),
        Event::Admin(told) => admin::admin(node, ctx, &told),
        Event::ResetDone { gpu, ok, message } => service::reset_done(node, ctx, gpu, ok, &message),
        Event::CheckDone { gpu, ok, message } => service::check_done(node, ctx, gpu, ok, &message),
        Event::Published { revision, ok } => publish::done(node, ctx, revision, ok),
        Event::Shown {
            part,
            damaged,
            drain,
        } => {
            publish::shown(node, part, damaged);
            node::shown(node, ctx, drain);
        }
        Event::Instances { gpu, count } => service::instances(node, gpu, count),
        Event::Host(fault) => node::host(node, ctx, fault),
        Event::Held { jobs, more } => holding::told(node, &jobs, more),
        Event::Short(short) => holding::short(node, short),
        Event::Tick => {}
    }
    faults::gauges(node, ctx, &figures);
    logged::advance(node, ctx);
    node::advance(node, ctx);
    service::advance(node, ctx);
    publish::advance(node, ctx);
    jobs::advance(node, ctx);
    std::mem::take(&mut ctx.effects)
}
