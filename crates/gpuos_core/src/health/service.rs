//! The state machine of a GPU: out of service, reset, checked, back.
use gpuos_model::node_gpu::NodeGpu;

use super::effect::{Audit, Effect};
use super::jobs::{self, At};
use super::rules::{Action, Authority, Cure, JobsAre, Rule};
use super::state::{Cause, GpuHealth, NodeHealth, Service};
use super::step::Ctx;
use super::{faults, publish};

/// After a failed reset or check the next is so much later, in ms.
const AGAIN_MS: u64 = 60_000;
/// Instances that were counted so long ago may be others by now, in ms.
const COUNTED_MS: u64 = 30_000;
/// The most causes that are kept of a GPU.
const MOST_CAUSES: usize = 64;

pub(super) fn health(node: &mut NodeHealth, gpu: NodeGpu) -> Option<&mut GpuHealth> {
    node.gpu_mut(gpu)
}

/// [`super::Event::Started`].
pub(super) fn started(node: &mut NodeHealth, ctx: &mut Ctx<'_>, rebooted: bool) {
    publish::started(node);
    node.silent = false;
    node.jobs_at = None;
    if rebooted {
        node.jobs.clear();
        node.acts.clear();
        node.nics.clear();
        node.memory.clear();
        node.stalls.clear();
    }
    let clock = node.clock;
    let known = |name: &String| ctx.rules.by_name(name).is_some();
    for health in node.gpus.iter_mut().chain(node.pool.values_mut()) {
        health.watches.retain(|name, _| known(name));
        health.idle_since = None;
        health.passed = false;
        health.instances = None;
        // Whether polls are answered is seen anew; what the log had before is no word about now.
        health.unheard = None;
        health.lost = false;
        health.logged.clear();
        if matches!(health.service, Service::Resetting | Service::Checking) {
            // Whether the reset was made, nobody knows: it is made again.
            health.was_reset &= health.service == Service::Checking;
            set_service(health, Service::Drained, clock);
        }
        if rebooted {
            health.was_reset = true;
            health.attempts = 0;
            health.recovery = None;
            health.causes.retain(|cause| cause.action.takes_out());
            for cause in &mut health.causes {
                cause.cure = cause.cure.min(match cause.cure {
                    Cure::Admin => Cure::Admin,
                    _ => Cure::Check,
                });
            }
            health
                .watches
                .values_mut()
                .for_each(super::trend::Watch::forget);
        }
    }
    node.watches.retain(|name, _| known(name));
    if rebooted {
        ctx.audit(
            None,
            "the node was booted; GPUs that were out are checked before they serve again",
        );
    }
}

pub(super) fn set_service(health: &mut GpuHealth, service: Service, clock: u64) {
    health.service = service;
    health.since = clock;
    health.idle_since = None;
    health.passed = false;
}

/// A rule found something that counts against the GPU.
pub(super) fn blame(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu, at: At, cause: Cause) {
    let clock = node.clock;
    let Some(health) = health(node, gpu) else {
        return;
    };
    let (text, jobs, action) = (cause.text.clone(), cause.jobs, cause.action);
    let known = health
        .causes
        .iter_mut()
        .find(|known| known.rule == cause.rule);
    let new = known.is_none();
    match known {
        Some(known) => {
            known.last = clock;
            known.figure = cause.figure;
        }
        None => {
            ctx.log(Audit {
                gpu: Some(gpu),
                rule: Some(cause.rule.clone()),
                text: format!("{text}: {}", action_name(action)),
                ..Audit::default()
            });
            ctx.warn(Some(gpu), format!("GPU {gpu}: {text}"));
            if health.causes.len() == MOST_CAUSES {
                health.causes.remove(0);
            }
            health.causes.push(cause);
        }
    }
    if !action.takes_out() {
        return;
    }
    match health.service {
        Service::In => {
            health.attempts = 0;
            health.was_reset = false;
            health.not_before = 0;
            set_service(health, Service::Draining, clock);
        }
        Service::Checking => {
            health.was_reset = false;
            failed(
                node,
                ctx,
                gpu,
                &format!("it failed while it was checked: {text}"),
            );
        }
        Service::Drained if new => health.was_reset = false,
        _ => {}
    }
    let jobs = match action {
        Action::Requeue => JobsAre::Requeue,
        _ => jobs,
    };
    jobs::treat(node, ctx, gpu, at, jobs, &text);
}

fn action_name(action: Action) -> &'static str {
    match action {
        Action::Degrade => "jobs take other GPUs first",
        Action::ResetWhenIdle => "it is reset when nobody has it, and jobs take other GPUs first",
        Action::Requeue | Action::DrainGpu => "the GPU gets no more jobs",
        Action::DrainNode => "the GPU and the node get no more jobs",
        Action::Ignore | Action::Warn | Action::KillStep => "noted",
    }
}

/// A figure is below its threshold again, and has been for long enough.
pub(super) fn calmed(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu, rule: &Rule) {
    let Some(health) = health(node, gpu) else {
        return;
    };
    // What took the GPU out ends with the check only.
    let over = |cause: &Cause| cause.rule == rule.name && cause.action.degrades();
    if health.causes.iter().any(over) {
        health.causes.retain(|cause| !over(cause));
        ctx.log(Audit {
            gpu: Some(gpu),
            rule: Some(rule.name.clone()),
            text: format!("{}: over", rule.about),
            ..Audit::default()
        });
    }
}

/// NVML wants nothing any more, without a reset by gpuos.
pub(super) fn recovery_withdrawn(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu) {
    let Some(health) = health(node, gpu) else {
        return;
    };
    let mut any = false;
    for cause in &mut health.causes {
        if cause.authority == Authority::Recovery {
            cause.cure = Cure::Check;
            any = true;
        }
    }
    health
        .causes
        .retain(|cause| cause.authority != Authority::Recovery || cause.action.takes_out());
    if any {
        ctx.audit(
            Some(gpu),
            "NVML asks for no recovery any more; a check decides",
        );
    }
}

/// [`super::Event::ResetDone`].
pub(super) fn reset_done(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    ok: bool,
    message: &str,
) {
    let clock = node.clock;
    let Some(health) = health(node, gpu).filter(|health| health.service == Service::Resetting)
    else {
        return;
    };
    if !ok {
        failed(
            node,
            ctx,
            gpu,
            &format!("the reset failed{}", after(message)),
        );
        return;
    }
    health.was_reset = true;
    health.recovery = None;
    health
        .watches
        .values_mut()
        .for_each(super::trend::Watch::forget);
    set_service(health, Service::Checking, clock);
    ctx.audit(Some(gpu), "the GPU was reset; it is checked");
    ctx.effects.push(Effect::Check { gpu });
}

/// [`super::Event::CheckDone`].
pub(super) fn check_done(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    ok: bool,
    message: &str,
) {
    let Some(health) = health(node, gpu).filter(|health| health.service == Service::Checking)
    else {
        return;
    };
    match ok {
        true => health.passed = true,
        false => failed(
            node,
            ctx,
            gpu,
            &format!("the check failed{}", after(message)),
        ),
    }
}

fn after(message: &str) -> String {
    let plain: String = message
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect();
    match plain.is_empty() {
        true => String::new(),
        false => format!(": {plain}"),
    }
}

fn failed(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu, text: &str) {
    let clock = node.clock;
    let attempts = ctx.rules.limits.attempts;
    let Some(health) = health(node, gpu) else {
        return;
    };
    health.attempts = health.attempts.saturating_add(1);
    health.was_reset = false;
    if health.attempts < attempts {
        health.not_before = clock + AGAIN_MS;
        set_service(health, Service::Drained, clock);
        ctx.audit(
            Some(gpu),
            format!("{text}; it is tried again in {} s", AGAIN_MS / 1000),
        );
        return;
    }
    offline(
        node,
        ctx,
        gpu,
        &format!("{text}, {attempts} times in a row"),
    );
}

fn offline(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu, text: &str) {
    let clock = node.clock;
    let Some(health) = health(node, gpu) else {
        return;
    };
    health.offline = Some(text.to_string());
    set_service(health, Service::Offline, clock);
    let text = format!("{text}; the GPU is offline until an administrator says online");
    ctx.warn(Some(gpu), format!("GPU {gpu}: {text}"));
    ctx.audit(Some(gpu), text);
}

pub(super) fn back(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu, text: &str) {
    let clock = node.clock;
    let Some(health) = health(node, gpu) else {
        return;
    };
    health.causes.clear();
    health.attempts = 0;
    health.was_reset = false;
    health.spoken.clear();
    set_service(health, Service::In, clock);
    node.acts.retain(|act| act.gpu != gpu);
    ctx.audit(Some(gpu), text);
}

/// What brings the GPU back: NVML's word where there is one, else the strongest of what rules say.
fn cure(health: &GpuHealth) -> Cure {
    let out = || {
        health
            .causes
            .iter()
            .filter(|cause| cause.action.takes_out())
    };
    let told = out().filter(|cause| cause.authority == Authority::Recovery);
    let told = told.map(|cause| cause.cure).max();
    let idle = health
        .causes
        .iter()
        .any(|cause| cause.action == Action::ResetWhenIdle);
    let idle = if idle { Cure::Reset } else { Cure::Check };
    told.or_else(|| out().map(|cause| cause.cure).max())
        .unwrap_or(Cure::Check)
        .max(idle)
}

/// What time and the state bring, for each GPU.
pub(super) fn advance(node: &mut NodeHealth, ctx: &mut Ctx<'_>) {
    for gpu in node.numbers() {
        match node[gpu].service {
            Service::In => {
                expire_degrading_events(node, ctx, gpu);
                when_idle(node, ctx, gpu);
            }
            Service::Draining => empty(node, ctx, gpu),
            Service::Drained => recover(node, ctx, gpu),
            Service::Resetting => late(node, ctx, gpu, ctx.rules.limits.reset_timeout_s, "reset"),
            Service::Checking => returns(node, ctx, gpu),
            Service::Offline => {}
        }
    }
}

/// Events that degrade a GPU count as long as the rule counts them; figures know themselves when they are over.
fn expire_degrading_events(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu) {
    let clock = node.clock;
    let rules = ctx.rules;
    let causes = node[gpu].causes.iter();
    let old = |cause: &&Cause| {
        let event = cause.authority != Authority::Counter && cause.action == Action::Degrade;
        let within = rules.by_name(&cause.rule).map_or(0, |rule| rule.within_s);
        event && clock.saturating_sub(cause.last) >= u64::from(within) * 1000
    };
    let over = causes.filter(old).map(|cause| cause.rule.clone());
    for name in over.collect::<Vec<_>>() {
        match rules.by_name(&name) {
            Some(rule) => calmed(node, ctx, gpu, rule),
            None => node[gpu].causes.retain(|cause| cause.rule != name),
        }
    }
}

/// Whether nobody has the GPU: no job, as told since `since`, no process, and in a pool no instance.
fn unused(node: &NodeHealth, gpu: NodeGpu) -> bool {
    let last = node[gpu].last.as_ref();
    let processes = last.and_then(|sample| sample.processes).unwrap_or(0);
    node.jobs_at.is_some() && !node.has_job(gpu) && processes == 0 && undivided(node, gpu)
}

/// Whether a GPU has no instance that a reset would destroy: one of nobody may be in use all the same. What was not
/// counted of late may be there.
fn undivided(node: &NodeHealth, gpu: NodeGpu) -> bool {
    let fresh = |at: u64| node.clock.saturating_sub(at) < COUNTED_MS;
    let counted = node[gpu].instances;
    counted.map_or(!gpu.is_of_pool(), |(count, at)| count == 0 && fresh(at))
}

/// [`super::Event::Instances`].
pub(super) fn instances(node: &mut NodeHealth, gpu: NodeGpu, count: u32) {
    let clock = node.clock;
    if let Some(health) = health(node, gpu) {
        health.instances = Some((count, clock));
    }
}

fn when_idle(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu) {
    let clock = node.clock;
    let settle = u64::from(ctx.rules.limits.settle_s) * 1000;
    let resets = ctx.rules.limits.auto_reset && !exceeds_max_returns(node, ctx, gpu);
    let unused = unused(node, gpu);
    let health = &mut node[gpu];
    let wants = health
        .causes
        .iter()
        .find(|cause| cause.action == Action::ResetWhenIdle);
    let Some(text) = wants
        .map(|cause| cause.text.clone())
        .filter(|_| unused && resets)
    else {
        health.idle_since = None;
        return;
    };
    if clock.saturating_sub(*health.idle_since.get_or_insert(clock)) >= settle {
        health.attempts = 0;
        health.was_reset = false;
        set_service(health, Service::Draining, clock);
        ctx.audit(
            Some(gpu),
            format!("nobody has the GPU; it is taken out for its reset: {text}"),
        );
    }
}

fn empty(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu) {
    if node.jobs_at.is_some() && !node.has_job(gpu) {
        let clock = node.clock;
        set_service(&mut node[gpu], Service::Drained, clock);
        ctx.audit(Some(gpu), "no job has the GPU any more; it is drained");
    }
}

fn exceeds_max_returns(node: &NodeHealth, ctx: &Ctx<'_>, gpu: NodeGpu) -> bool {
    let within = u64::from(ctx.rules.limits.returns_within_s) * 1000;
    let clock = node.clock;
    let returns = node[gpu].returns.iter();
    let late = returns
        .filter(|at| clock.saturating_sub(**at) < within)
        .count();
    late as u64 >= u64::from(ctx.rules.limits.max_returns)
}

/// A drained GPU: reset and checked once slurmctld knows that it is out, and nobody has it.
fn recover(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu) {
    let clock = node.clock;
    let limits = &ctx.rules.limits;
    let settle = u64::from(limits.settle_s) * 1000;
    if node.has_job(gpu) {
        set_service(&mut node[gpu], Service::Draining, clock);
        return;
    }
    let ready = node.confirmed_out(gpu) && unused(node, gpu) && !node.silent;
    let (told, jobs_at) = (exceeds_max_returns(node, ctx, gpu), node.jobs_at);
    let health = &mut node[gpu];
    if !ready {
        health.idle_since = None;
        return;
    }
    let since = *health.idle_since.get_or_insert(clock);
    // Jobs have to be told anew after slurmctld knew: one may have been started just before.
    let seen = jobs_at.is_some_and(|at| at.saturating_sub(since) >= settle);
    if health.hold.is_some() || !seen || clock < health.not_before {
        return;
    }
    let cure = cure(health);
    if matches!(cure, Cure::Admin | Cure::Reboot) {
        return;
    }
    let resets = cure == Cure::Reset && !health.was_reset;
    if !resets && faults::still_bad(health, ctx).is_some() && !health.was_reset {
        // It is checked when the trouble is over.
        return;
    }
    if told {
        let (times, hours) = (limits.max_returns, limits.returns_within_s.div_ceil(3600));
        let text = format!("it came back {times} times within {hours} h and failed again");
        offline(node, ctx, gpu, &text);
        return;
    }
    if resets && !limits.auto_reset {
        offline(
            node,
            ctx,
            gpu,
            "it needs a reset, and gpuos.toml says reset = false",
        );
        return;
    }
    let health = &mut node[gpu];
    match resets {
        true => {
            set_service(health, Service::Resetting, clock);
            ctx.audit(Some(gpu), "the GPU is reset");
            ctx.effects.push(Effect::Reset { gpu });
        }
        false => {
            set_service(health, Service::Checking, clock);
            ctx.audit(Some(gpu), "the GPU is checked");
            ctx.effects.push(Effect::Check { gpu });
        }
    }
}

fn late(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu, limit_s: u32, what: &str) {
    let since = node[gpu].since;
    if node.clock.saturating_sub(since) >= u64::from(limit_s) * 1000 {
        failed(
            node,
            ctx,
            gpu,
            &format!("the {what} did not end within {limit_s} s"),
        );
    }
}

/// A GPU that is checked: back when the check was passed, and a poll since then shows nothing bad.
fn returns(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu) {
    let clock = node.clock;
    let health = &mut node[gpu];
    let polled = health.sampled.is_some_and(|at| at > health.since);
    if !health.passed || !polled {
        late(node, ctx, gpu, ctx.rules.limits.check_timeout_s, "check");
        return;
    }
    if let Some(bad) = faults::still_bad(health, ctx) {
        failed(
            node,
            ctx,
            gpu,
            &format!("the check was passed, and still: {bad}"),
        );
        return;
    }
    let within = u64::from(ctx.rules.limits.returns_within_s) * 1000;
    health
        .returns
        .retain(|at| clock.saturating_sub(*at) < within);
    health.returns.push(clock);
    let watches = health.watches.values_mut();
    watches.for_each(super::trend::Watch::forget);
    if health.hold.is_some() {
        health.causes.clear();
        set_service(health, Service::Drained, clock);
        ctx.audit(
            Some(gpu),
            "the GPU passed its check; an administrator keeps it out",
        );
        return;
    }
    back(
        node,
        ctx,
        gpu,
        "the GPU passed its check and is back in service",
    );
}
