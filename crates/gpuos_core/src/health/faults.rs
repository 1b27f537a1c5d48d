//! From what happened to what it means: events and samples become rules that act.
use gpuos_model::node_gpu::NodeGpu;

use super::effect::Audit;
use super::event::{RecoveryAction, Sample};
use super::jobs::{self, At};
use super::rules::{Action, Cure, Gauge, Rule, Signal};
use super::state::{Cause, GpuHealth, NodeHealth, Service};
use super::step::Ctx;
use super::trend::{Reading, Watch};
use super::{logged, service, trend};

/// Within this time two words about the same part of a GPU are about the same trouble, in ms.
const SAME_MS: u64 = 10_000;
/// The same line is said again after so long, in ms, with how often it happened since.
const SAID_MS: u64 = 60_000;
/// The part of a GPU that every rule is about.
const WHOLE: &str = "gpu";

fn health(node: &mut NodeHealth, gpu: NodeGpu) -> Option<&mut GpuHealth> {
    node.gpu_mut(gpu)
}

/// [`super::Event::Xid`].
pub(super) fn xid(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    code: u32,
    gpu_instance: Option<u32>,
    pid: Option<u32>,
) {
    let rules = ctx.rules;
    let Some(rule) = rules.xid(code) else { return };
    // The library's own word: what the kernel's log has of it needs no other any more.
    if let Some(health) = health(node, gpu) {
        health.logged.remove(&rule.name);
    }
    let text = xid_text(rule, code, gpu_instance);
    xid_happened(node, ctx, gpu, rule, gpu_instance, pid, &text);
}

/// An Xid for people.
pub(super) fn xid_text(rule: &Rule, code: u32, gpu_instance: Option<u32>) -> String {
    let mut text = format!("Xid {code} ({})", rule.about);
    if let Some(instance) = gpu_instance.filter(|_| !rule.whole_gpu) {
        text.push_str(&format!(" in MIG instance {instance}"));
    }
    text
}

/// An Xid that is to be believed.
pub(super) fn xid_happened(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    rule: &Rule,
    gpu_instance: Option<u32>,
    pid: Option<u32>,
    text: &str,
) {
    let instance = gpu_instance.filter(|_| !rule.whole_gpu);
    let pid = pid.filter(|_| !rule.whole_gpu);
    happened(
        node,
        ctx,
        gpu,
        rule,
        At {
            instance,
            pid,
            ..At::default()
        },
        text,
    );
}

/// [`super::Event::Lost`].
pub(super) fn lost(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu) {
    let rules = ctx.rules;
    logged::poll_failed(node, gpu, true);
    let Some(rule) = rules.of(Signal::Lost) else {
        return;
    };
    // It is said as often as somebody asks; the first time is what counts.
    let known = |cause: &Cause| cause.rule == rule.name;
    let out = |health: &GpuHealth| health.service != Service::In && health.causes.iter().any(known);
    if !node.gpu(gpu).is_some_and(out) {
        happened(node, ctx, gpu, rule, At::default(), &rule.about);
    }
}

/// [`super::Event::RecoveryAction`], and the same in a sample.
pub(super) fn recovery(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    action: RecoveryAction,
) {
    let Some(health) = health(node, gpu) else {
        return;
    };
    let before = health.recovery.replace(action);
    if before == Some(action) {
        return;
    }
    if action == RecoveryAction::None {
        if before.is_some() {
            service::recovery_withdrawn(node, ctx, gpu);
        }
        return;
    }
    let signal = match action {
        RecoveryAction::Other(_) => Signal::Recovery(RecoveryAction::Other(0)),
        known => Signal::Recovery(known),
    };
    let rules = ctx.rules;
    let Some(rule) = rules.of(signal) else { return };
    let text = format!(
        "NVML's recovery action is {} ({})",
        action.word(),
        rule.about
    );
    happened(node, ctx, gpu, rule, At::default(), &text);
}

/// One event of a rule: acts once there were as many as its threshold.
fn happened(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    rule: &Rule,
    at: At,
    text: &str,
) {
    let clock = node.clock;
    let Some(health) = health(node, gpu) else {
        return;
    };
    let watch = health.watches.entry(rule.name.clone()).or_default();
    let within = u64::from(rule.within_s) * 1000;
    let count = watch.window.add(1, within, clock);
    if count < rule.threshold {
        let text = format!(
            "{text}; {count} of {} within {} s",
            rule.threshold, rule.within_s
        );
        log_rate_limited(node, ctx, gpu, rule, &text);
        return;
    }
    let text = match rule.threshold {
        0 | 1 => text.to_string(),
        _ => format!("{text}, {count} times within {} s", rule.within_s),
    };
    act(node, ctx, gpu, rule, at, count, &text);
}

/// [`super::Event::Sample`].
pub(super) fn sample(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu, sample: Sample) {
    let clock = node.clock;
    let hangs = hangs(node, gpu);
    let Some(health) = health(node, gpu) else {
        return;
    };
    let action = sample.recovery_action.map(RecoveryAction::from_nvml);
    for (rule, gauge) in ctx.rules.gauges() {
        let Some(reading) =
            trend::reading(gauge, &sample, health.last.as_ref(), &health.usual, hangs)
        else {
            continue;
        };
        let watch = health.watches.entry(rule.name.clone()).or_default();
        watch.take(reading, rule, clock);
    }
    health.usual.take(&sample, clock);
    logged::figures(health, &sample, clock);
    health.last = Some(sample);
    health.sampled = Some(clock);
    if let Some(action) = action {
        recovery(node, ctx, gpu, action);
    }
}

/// [`super::Event::Silent`].
pub(super) fn silent(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpu: NodeGpu) {
    let clock = node.clock;
    logged::poll_failed(node, gpu, false);
    let Some(health) = health(node, gpu) else {
        return;
    };
    let of_silence = ctx.rules.gauges();
    for (rule, _) in of_silence.filter(|(_, gauge)| *gauge == Gauge::Silent) {
        let watch = health.watches.entry(rule.name.clone()).or_default();
        watch.take(Reading::Level(1), rule, clock);
    }
}

/// Acts on figures that have been at their threshold for long enough, and forgets those that calmed down.
pub(super) fn gauges(node: &mut NodeHealth, ctx: &mut Ctx<'_>, gpus: &[NodeGpu]) {
    let clock = node.clock;
    let rules = ctx.rules;
    let calm = u64::from(rules.limits.calm_s) * 1000;
    for &gpu in gpus {
        if node.gpu(gpu).is_none_or(|health| health.watches.is_empty()) {
            continue;
        }
        let own_hold_s = own_hold_s(node, gpu);
        for (rule, gauge) in rules.gauges() {
            let Some(watch) = node[gpu].watches.get_mut(&rule.name) else {
                continue;
            };
            // A stronger word about the same trouble may still be on its way.
            let hold_s = own_hold_s.filter(|_| gauge == Gauge::Hang);
            let hold_s = hold_s.unwrap_or(rule.hold_s);
            let hold = (u64::from(hold_s) * 1000).max(wait_for_stronger(rule));
            if let Some(figure) = watch.due(hold, clock) {
                let text = figure_text(rule, gauge, figure);
                let on = At {
                    watched: gauge == Gauge::Hang,
                    ..At::default()
                };
                let done = act(node, ctx, gpu, rule, on, figure, &text);
                let watch = node[gpu].watches.get_mut(&rule.name);
                if let (false, Some(watch)) = (done, watch) {
                    watch.left(gauge.is_counter());
                }
            } else if watch.calmed(calm, clock) {
                service::calmed(node, ctx, gpu, rule);
            }
        }
    }
}

/// Whether a job on a GPU asked to be watched and none of its other GPUs here computes. (Whether this one
/// does is for the sample to say.)
fn hangs(node: &NodeHealth, gpu: NodeGpu) -> bool {
    let busy = |other: NodeGpu| {
        let last = node.gpu(other);
        let last = last.and_then(|health| health.last.as_ref());
        last.is_some_and(|sample| sample.busy_percent > Some(0))
    };
    let mut watched = node
        .jobs
        .iter()
        .filter(|job| job.watch && job.gpus.contains(&gpu));
    watched.any(|job| {
        let same = node.jobs.iter().filter(|other| other.job == job.job);
        !same
            .flat_map(|other| &other.gpus)
            .any(|other| *other != gpu && busy(*other))
    })
}

/// The shortest time that a watched job on a GPU named itself.
fn own_hold_s(node: &NodeHealth, gpu: NodeGpu) -> Option<u32> {
    let on = node.jobs.iter().filter(|job| job.gpus.contains(&gpu));
    let named = on.filter(|job| job.watch && job.watch_s > 0);
    named.map(|job| job.watch_s).min()
}

fn wait_for_stronger(rule: &Rule) -> u64 {
    match rule.action.takes_out() {
        true => SAME_MS / 2,
        false => 0,
    }
}

fn figure_text(rule: &Rule, gauge: Gauge, figure: u64) -> String {
    if gauge.is_flag() {
        return rule.about.clone();
    }
    let within = match gauge.is_counter() {
        true => format!(" within {} s", rule.within_s),
        false => String::new(),
    };
    format!(
        "{}: {figure}{within} (threshold {})",
        rule.about, rule.threshold
    )
}

/// Does what a rule says; `false` = a stronger word about the same trouble decides.
fn act(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    rule: &Rule,
    at: At,
    figure: u64,
    text: &str,
) -> bool {
    let clock = node.clock;
    let Some(health) = health(node, gpu) else {
        return true;
    };
    let authority = rule.signal.authority();
    let about = |part: &str| part == rule.part || part == WHOLE || rule.part == WHOLE;
    let stronger = health.spoken.iter().any(|(part, (who, when))| {
        about(part) && *who > authority && clock.saturating_sub(*when) <= SAME_MS
    });
    if stronger {
        let text = format!("{text}; left to the stronger word about the same trouble");
        log_rate_limited(node, ctx, gpu, rule, &text);
        return false;
    }
    if !matches!(rule.action, Action::Ignore | Action::Warn) {
        health.spoken.insert(rule.part.clone(), (authority, clock));
    }
    if health.service == Service::Resetting {
        let text = format!("{text}; the GPU is being reset");
        log_rate_limited(node, ctx, gpu, rule, &text);
        return true;
    }
    match rule.action {
        Action::Ignore => {
            log_rate_limited(node, ctx, gpu, rule, text);
        }
        Action::Warn => {
            if log_rate_limited(node, ctx, gpu, rule, text) {
                ctx.warn(Some(gpu), format!("GPU {gpu}: {text}"));
            }
        }
        Action::KillStep => {
            log_rate_limited(node, ctx, gpu, rule, text);
            let at = At {
                own: !rule.whole_gpu,
                ..at
            };
            jobs::treat(node, ctx, gpu, at, super::JobsAre::KillStep, text);
        }
        _ => {
            let cause = Cause {
                rule: rule.name.clone(),
                text: text.to_string(),
                figure,
                threshold: rule.threshold,
                action: rule.action,
                jobs: rule.jobs,
                cure: match rule.action {
                    Action::Requeue => Cure::Check,
                    _ => rule.cure,
                },
                authority,
                since_ms: ctx.now_ms,
                last: clock,
            };
            service::blame(node, ctx, gpu, at, cause);
        }
    }
    true
}

/// A line for the audit log, once a minute for each rule and GPU. Gives whether it was said.
pub(super) fn log_rate_limited(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    rule: &Rule,
    text: &str,
) -> bool {
    let clock = node.clock;
    let Some(health) = health(node, gpu) else {
        return false;
    };
    let watch: &mut Watch = health.watches.entry(rule.name.clone()).or_default();
    if watch
        .said
        .is_some_and(|said| clock.saturating_sub(said) < SAID_MS)
    {
        watch.unsaid = watch.unsaid.saturating_add(1);
        return false;
    }
    watch.said = Some(clock);
    let unsaid = std::mem::take(&mut watch.unsaid);
    let more = match unsaid {
        0 => String::new(),
        more => format!(" (and {more} times more since it was said last)"),
    };
    ctx.log(Audit {
        gpu: Some(gpu),
        rule: Some(rule.name.clone()),
        text: format!("{text}{more}"),
        ..Audit::default()
    });
    true
}

/// Whether something that takes the GPU out is measured just now.
pub(super) fn still_bad(health: &GpuHealth, ctx: &Ctx<'_>) -> Option<String> {
    let rules = ctx.rules.gauges();
    for (rule, gauge) in rules.filter(|(rule, _)| rule.action.takes_out()) {
        let watch = health.watches.get(&rule.name);
        if let Some(figure) = watch.and_then(Watch::held) {
            return Some(figure_text(rule, gauge, figure));
        }
    }
    let wants = health
        .recovery
        .filter(|action| *action != RecoveryAction::None);
    wants.map(|action| format!("NVML's recovery action is {}", action.word()))
}
