//! The node as a whole: the library, the host, and the node's own drain.
use std::collections::BTreeMap;

use super::effect::{Audit, Effect};
use super::event::HostFault;
use super::jobs::At;
use super::rules::{Action, NodeGauge, Rule, Signal};
use super::service;
use super::state::{Cause, NodeDrain, NodeHealth};
use super::step::Ctx;
use super::trend::{Reading, Watch};

/// For so long nothing may speak for a drain before it is taken back, in ms.
const OVER_MS: u64 = 30_000;
/// The most names of adapters and file systems that are kept.
const MOST: usize = 256;
/// The longest text from outside that is kept, in characters.
const MOST_TEXT: usize = 200;

/// [`super::Event::LibrarySilent`] and [`super::Event::LibraryBack`].
pub(super) fn library(node: &mut NodeHealth, ctx: &mut Ctx<'_>, silent: bool) {
    if node.silent != silent {
        node.silent = silent;
        let text = match silent {
            true => "NVIDIA's library does not answer; nothing is reset or checked until it does",
            false => "NVIDIA's library answers again",
        };
        ctx.warn(None, text);
        ctx.audit(None, text);
    }
}

/// [`super::Event::Host`].
pub(super) fn host(node: &mut NodeHealth, ctx: &mut Ctx<'_>, fault: HostFault) {
    match fault {
        HostFault::NicLink { nic, up, gpus } => {
            let nic = short(&nic);
            let before = node.nics.contains_key(&nic);
            if up == before {
                let word = if up { "up again" } else { "down" };
                ctx.audit(None, format!("the link of network adapter {nic} is {word}"));
            }
            match up {
                true => drop(node.nics.remove(&nic)),
                false => keep(&mut node.nics, nic, gpus),
            }
        }
        HostFault::MemoryErrors {
            controller,
            corrected,
            uncorrected,
        } => {
            keep(&mut node.memory, controller, (corrected, uncorrected));
        }
        HostFault::FileSystem { path, stalled_ms } => match stalled_ms {
            0 => drop(node.stalls.remove(&short(&path))),
            _ => keep(&mut node.stalls, short(&path), stalled_ms),
        },
    }
}

fn keep<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: V) {
    if map.len() < MOST || map.contains_key(&key) {
        map.insert(key, value);
    }
}

fn short(text: &str) -> String {
    let plain = text.chars().filter(|c| !c.is_control());
    plain.take(MOST_TEXT).collect()
}

fn of<'a>(ctx: &Ctx<'a>, gauge: NodeGauge) -> impl Iterator<Item = &'a Rule> + use<'a> {
    let rules = ctx.rules.node();
    rules.filter_map(move |(rule, about)| (about == gauge).then_some(rule))
}

/// Rules of the node, and its drain.
pub(super) fn advance(node: &mut NodeHealth, ctx: &mut Ctx<'_>) {
    let clock = node.clock;
    let levels = [
        (NodeGauge::LibrarySilent, u64::from(node.silent)),
        (NodeGauge::NicDown, node.nics.len() as u64),
        (
            NodeGauge::FileSystemStall,
            node.stalls.values().max().copied().unwrap_or(0) / 1000,
        ),
    ];
    for (gauge, figure) in levels {
        for rule in of(ctx, gauge) {
            let watch = node.watches.entry(rule.name.clone()).or_default();
            watch.take(Reading::Level(figure), rule, clock);
        }
    }
    let errors = node.memory.values().copied();
    let (corrected, uncorrected) = errors.fold((0u64, 0u64), |sum, one| {
        (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1))
    });
    let sums = [
        (NodeGauge::MemoryCorrected, corrected),
        (NodeGauge::MemoryUncorrected, uncorrected),
    ];
    for (gauge, sum) in sums.into_iter().filter(|_| !node.memory.is_empty()) {
        for rule in of(ctx, gauge) {
            let watch = node.watches.entry(rule.name.clone()).or_default();
            watch.take(Reading::Counter(sum), rule, clock);
        }
    }
    let rules = ctx.rules;
    for (rule, _) in rules.node() {
        let Some(watch) = node.watches.get_mut(&rule.name) else {
            continue;
        };
        if let Some(figure) = watch.due(u64::from(rule.hold_s) * 1000, clock) {
            acts(node, ctx, rule, figure);
        } else if watch.calmed(0, clock) {
            node.causes.retain(|cause| cause.rule != rule.name);
            ctx.log(Audit {
                rule: Some(rule.name.clone()),
                text: format!("{}: over", rule.about),
                ..Audit::default()
            });
        }
    }
    near_adapters(node, ctx);
    drain(node, ctx);
}

/// GPUs whose network adapter is down are degraded, by rules that say so.
fn near_adapters(node: &mut NodeHealth, ctx: &mut Ctx<'_>) {
    for rule in of(ctx, NodeGauge::NicDown) {
        if rule.action != Action::Degrade {
            continue;
        }
        let acted = node.watches.get(&rule.name).is_some_and(Watch::has_acted);
        for gpu in node.numbers() {
            let down = node.nics.iter().find(|(_, gpus)| gpus.contains(&gpu));
            let down = down.map(|(nic, _)| nic.clone()).filter(|_| acted);
            let known = node[gpu].causes.iter();
            let known = known.filter(|cause| cause.rule == rule.name).count() > 0;
            match down {
                Some(nic) if !known => {
                    let cause = cause(rule, format!("{}: {nic}", rule.about), 1, ctx, node.clock);
                    service::blame(node, ctx, gpu, At::default(), cause);
                }
                None if known => service::calmed(node, ctx, gpu, rule),
                _ => {}
            }
        }
    }
}

fn cause(rule: &Rule, text: String, figure: u64, ctx: &Ctx<'_>, clock: u64) -> Cause {
    Cause {
        rule: rule.name.clone(),
        text,
        figure,
        threshold: rule.threshold,
        action: rule.action,
        jobs: rule.jobs,
        cure: rule.cure,
        authority: rule.signal.authority(),
        since_ms: ctx.now_ms,
        last: clock,
    }
}

fn acts(node: &mut NodeHealth, ctx: &mut Ctx<'_>, rule: &Rule, figure: u64) {
    let mut text = match rule.threshold {
        0 | 1 => rule.about.clone(),
        threshold => format!("{}: {figure} (threshold {threshold})", rule.about),
    };
    let names: Vec<&str> = match rule.signal {
        Signal::Node(NodeGauge::NicDown) => node.nics.keys().map(String::as_str).collect(),
        Signal::Node(NodeGauge::FileSystemStall) => {
            node.stalls.keys().map(String::as_str).collect()
        }
        _ => Vec::new(),
    };
    if !names.is_empty() {
        text = format!("{text}: {}", names.join(", "));
    }
    ctx.log(Audit {
        rule: Some(rule.name.clone()),
        text: text.clone(),
        ..Audit::default()
    });
    if rule.action != Action::Ignore {
        ctx.warn(None, text.clone());
    }
    if rule.action == Action::DrainNode {
        let cause = cause(rule, text, figure, ctx, node.clock);
        node.causes.push(cause);
    }
}

/// Why the node should be drained; `None` = it need not be.
pub(super) fn reason(node: &NodeHealth) -> Option<String> {
    let whole = |cause: &&Cause| cause.action == Action::DrainNode;
    if let Some(cause) = node.causes.iter().find(whole) {
        return Some(format!("gpuos: {}", cause.text));
    }
    node.numbers().into_iter().find_map(|gpu| {
        let cause = node[gpu].causes.iter().find(whole)?;
        Some(format!("gpuos: GPU {gpu}: {}", cause.text))
    })
}

pub(super) fn new_drain(reason: String, at_ms: u64, clock: u64) -> NodeDrain {
    NodeDrain {
        reason,
        at_ms,
        over: None,
        seen: false,
        overruled: false,
        tried: clock,
        leaving: false,
    }
}

fn drain(node: &mut NodeHealth, ctx: &mut Ctx<'_>) {
    let clock = node.clock;
    let retry = u64::from(ctx.rules.limits.retry_s) * 1000;
    let reason = reason(node);
    match (&mut node.drain, reason) {
        (Some(NodeDrain { leaving: true, .. }) | None, Some(reason)) => {
            ctx.audit(None, format!("the node is drained: {reason}"));
            ctx.effects.push(Effect::DrainNode {
                reason: reason.clone(),
            });
            node.drain = Some(new_drain(reason, ctx.now_ms, clock));
        }
        // An administrator's word counts as a reason.
        (Some(drain), reason) if reason.is_some() || node.hold.is_some() => {
            drain.over = None;
            if !drain.seen && !drain.overruled && clock.saturating_sub(drain.tried) >= retry {
                drain.tried = clock;
                ctx.effects.push(Effect::DrainNode {
                    reason: drain.reason.clone(),
                });
            }
        }
        (Some(drain), _) if drain.leaving => {
            // slurmctld may have been away.
            if clock.saturating_sub(drain.tried) >= retry {
                drain.tried = clock;
                ctx.effects.push(Effect::UndrainNode {
                    reason: drain.reason.clone(),
                });
            }
        }
        (Some(drain), _) => {
            let over = *drain.over.get_or_insert(clock);
            if clock.saturating_sub(over) >= OVER_MS {
                undrain(node, ctx);
            }
        }
        (None, None) => {}
    }
}

/// Takes our drain back, unless an administrator wants the node drained.
pub(super) fn undrain(node: &mut NodeHealth, ctx: &mut Ctx<'_>) {
    if node.hold.is_some() {
        return;
    }
    let clock = node.clock;
    match &mut node.drain {
        Some(drain) if drain.overruled => node.drain = None,
        Some(drain) if !drain.leaving => {
            drain.leaving = true;
            drain.tried = clock;
            let reason = drain.reason.clone();
            ctx.audit(
                None,
                "the node is back in service: nothing speaks against it any more",
            );
            ctx.effects.push(Effect::UndrainNode { reason });
        }
        _ => {}
    }
}

/// [`super::Event::Shown`]: whether our drain stands in Slurm.
pub(super) fn shown(node: &mut NodeHealth, ctx: &mut Ctx<'_>, reason: Option<String>) {
    let Some(drain) = &mut node.drain else { return };
    if drain.leaving {
        let stands = reason.is_some_and(|reason| reason.contains(&drain.reason));
        if !stands {
            node.drain = None;
        }
        return;
    }
    match reason {
        Some(reason) => drain.seen |= reason.contains(&drain.reason),
        None if drain.seen && !drain.overruled => {
            drain.overruled = true;
            ctx.audit(
                None,
                "an administrator resumed the node in Slurm; it is not drained again for the same trouble, \
                 and GPUs that are out stay out",
            );
        }
        None => {}
    }
}
