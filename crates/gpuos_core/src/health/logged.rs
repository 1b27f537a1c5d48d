//! Xids of the kernel's log that NVML does not tell.
//!
//! Users can make the kernel write text of theirs (`gpuos_host::hardware::kernel_log` says how), so such a line alone moves
//! nothing. It counts as an Xid only where NVML confirms that something is wrong with this GPU, or cannot say: the
//! library or the GPU does not answer, the GPU is lost, NVML wants a recovery action, or, for Xids about memory, its
//! figures about memory got worse within [`NEAR_MS`]. Else the line is told, and nothing is done.
use std::collections::BTreeSet;

use gpuos_model::node_gpu::NodeGpu;
use serde::{Deserialize, Serialize};

use super::effect::Audit;
use super::event::{RecoveryAction, Sample};
use super::faults;
use super::rules::{Action, Rule};
use super::state::{GpuHealth, NodeHealth, Service};
use super::step::Ctx;

/// For so long NVML may confirm what the log said, in ms: a library that hangs counts as silent after a poll (60 s at
/// most) and ten seconds. Own choice.
const NEAR_MS: u64 = 90_000;
/// A GPU that gave no answer for so long, while others did, is silent: one poll that fails proves nothing, in ms.
const SILENT_MS: u64 = 10_000;
/// What was not confirmed is shown for so long, in ms.
const SHOWN_MS: u64 = 600_000;
/// So many lines about the log are said of a node in [`TELLING_MS`]; the others are counted.
const MOST_LINES: u32 = 20;
/// See there, in ms.
const TELLING_MS: u64 = 60_000;
/// So many of them are shown in one sentence.
const MOST_SHOWN: usize = 8;
/// What a rule about memory is about.
const MEMORY: [&str; 2] = ["memory", "memory-age"];

/// An Xid that only the log has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Logged {
    code: u32,
    gpu_instance: Option<u32>,
    pid: Option<u32>,
    /// When, on the node's own clock.
    at: u64,
}

/// How much was said about the log of late.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LogRate {
    since: u64,
    said: u32,
    unsaid: u64,
}

/// [`super::Event::Logged`].
pub(super) fn kernel_message(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    code: u32,
    gpu_instance: Option<u32>,
    pid: Option<u32>,
) {
    let rules = ctx.rules;
    let (Some(rule), Some(health)) = (rules.xid(code), node.gpu(gpu)) else {
        return;
    };
    let line = Logged {
        code,
        gpu_instance,
        pid,
        at: node.clock,
    };
    if let Some(why) = confirmed(node, gpu, rule, &line) {
        believe(node, ctx, gpu, rule, &line, &why);
        return;
    }
    // The first one stays: who repeats a line with other words does not change what is done if it is confirmed.
    let fresh = |known: &Logged| node.clock.saturating_sub(known.at) < NEAR_MS;
    if !health.logged.get(&rule.name).is_some_and(fresh) {
        let text = faults::xid_text(rule, code, gpu_instance);
        let text = format!("the kernel's log has {text}, which NVIDIA's library does not tell");
        let text = match rule.action {
            Action::Ignore | Action::Warn => text,
            _ => format!(
                "{text}: nothing is done unless it shows within {} s that something is wrong",
                NEAR_MS / 1000
            ),
        };
        log_unless_flooded(node, ctx, gpu, rule, &text);
    }
    let health = &mut node[gpu];
    let known = health.logged.get(&rule.name);
    if known.is_none_or(|known| line.at.saturating_sub(known.at) >= NEAR_MS) {
        health.logged.insert(rule.name.clone(), line);
    }
}

/// Says it, unless so much was said of late that somebody may be flooding the log.
fn log_unless_flooded(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    rule: &Rule,
    text: &str,
) {
    let clock = node.clock;
    let telling = &mut node.telling;
    if clock.saturating_sub(telling.since) >= TELLING_MS {
        (telling.since, telling.said) = (clock, 0);
    }
    if telling.said >= MOST_LINES {
        telling.unsaid = telling.unsaid.saturating_add(1);
        return;
    }
    telling.said += 1;
    let more = match std::mem::take(&mut telling.unsaid) {
        0 => String::new(),
        more => format!(" (and {more} more of such lines, which were not said)"),
    };
    let text = format!("{text}{more}");
    ctx.log(Audit {
        gpu: Some(gpu),
        rule: Some(rule.name.clone()),
        text: text.clone(),
        ..Audit::default()
    });
    if rule.action != Action::Ignore {
        ctx.warn(Some(gpu), format!("GPU {gpu}: {text}"));
    }
}

/// What NVML says, or does not say, about a GPU as a whole; `None`: all is well as far as it goes.
fn wrong(node: &NodeHealth, gpu: NodeGpu) -> Option<String> {
    let health = node.gpu(gpu)?;
    if node.silent {
        return Some("NVIDIA's library does not answer".into());
    }
    if health.lost {
        return Some("NVML says that the GPU is lost".into());
    }
    let silent = |since: u64| node.clock.saturating_sub(since) >= SILENT_MS;
    if health.unheard.is_some_and(silent) {
        return Some("the GPU does not answer NVIDIA's library".into());
    }
    // It may be older than the line, and stands as long as NVML says so.
    let wants = health
        .recovery
        .filter(|action| *action != RecoveryAction::None);
    wants.map(|action| format!("NVML's recovery action is {}", action.word()))
}

/// What makes a line credible; `None`: nothing does so far.
fn confirmed(node: &NodeHealth, gpu: NodeGpu, rule: &Rule, line: &Logged) -> Option<String> {
    let near = |at: u64| at.abs_diff(line.at) <= NEAR_MS;
    let memory = || {
        let worse = node.gpu(gpu)?.memory_worse.is_some_and(near);
        (worse && MEMORY.contains(&rule.part.as_str()))
            .then(|| "NVML's figures about its memory got worse".to_owned())
    };
    wrong(node, gpu).or_else(memory)
}

fn believe(
    node: &mut NodeHealth,
    ctx: &mut Ctx<'_>,
    gpu: NodeGpu,
    rule: &Rule,
    line: &Logged,
    why: &str,
) {
    let text = faults::xid_text(rule, line.code, line.gpu_instance);
    let text = format!("{text}, from the kernel's log: {why}");
    node[gpu].logged.remove(&rule.name);
    faults::xid_happened(node, ctx, gpu, rule, line.gpu_instance, line.pid, &text);
}

/// Lines that NVML has confirmed by now, and those that are too old.
pub(super) fn advance(node: &mut NodeHealth, ctx: &mut Ctx<'_>) {
    let clock = node.clock;
    let rules = ctx.rules;
    for gpu in node.numbers() {
        let health = &node[gpu];
        // A reset is no time to judge: polls say nothing meanwhile.
        if health.logged.is_empty() || health.service == Service::Resetting {
            continue;
        }
        let age = |line: &Logged| clock.saturating_sub(line.at);
        if health.logged.values().any(|line| age(line) >= SHOWN_MS) {
            node[gpu].logged.retain(|_, line| age(line) < SHOWN_MS);
        }
        // Who floods the log makes many lines, and each event comes by here.
        if wrong(node, gpu).is_none() && node[gpu].memory_worse.is_none() {
            continue;
        }
        let young = node[gpu].logged.iter();
        let young = young.filter(|(_, line)| age(line) <= NEAR_MS);
        let young: Vec<(String, Logged)> = young.map(|(n, l)| (n.clone(), l.clone())).collect();
        for (name, line) in young {
            let rule = rules.by_name(&name);
            let acts = |rule: &&Rule| !matches!(rule.action, Action::Ignore | Action::Warn);
            let Some(rule) = rule.filter(acts) else {
                continue;
            };
            if let Some(why) = confirmed(node, gpu, rule, &line) {
                believe(node, ctx, gpu, rule, &line, &why);
            }
        }
    }
}

/// A poll of a GPU got no answer, or this one.
pub(super) fn poll_failed(node: &mut NodeHealth, gpu: NodeGpu, lost: bool) {
    let clock = node.clock;
    if let Some(health) = node.gpu_mut(gpu) {
        health.unheard.get_or_insert(clock);
        health.lost |= lost;
    }
}

/// A poll was answered: what it says about memory, against the poll before. Corrected errors are too common to
/// confirm anything.
pub(super) fn figures(health: &mut GpuHealth, now: &Sample, clock: u64) {
    health.unheard = None;
    health.lost = false;
    let Some(before) = &health.last else { return };
    let counters = [
        (before.ecc_uncorrected, now.ecc_uncorrected),
        (before.ecc_uncorrected_ever, now.ecc_uncorrected_ever),
        (
            before.rows_uncorrected.map(u64::from),
            now.rows_uncorrected.map(u64::from),
        ),
        (
            before.pages_double_bit.map(u64::from),
            now.pages_double_bit.map(u64::from),
        ),
    ];
    let flags = [
        (before.rows_pending, now.rows_pending),
        (before.rows_failed, now.rows_failed),
        (before.pages_pending, now.pages_pending),
        (before.sram_threshold, now.sram_threshold),
    ];
    let grew = counters.iter().any(|(old, new)| old.is_some() && new > old);
    let set = flags.contains(&(Some(false), Some(true)));
    if grew || set {
        health.memory_worse = Some(clock);
    }
}

impl NodeHealth {
    /// What the kernel's log has of Xids that NVML did not confirm, for people; `None`: nothing of late.
    pub fn unconfirmed(&self) -> Option<String> {
        let of = |gpu: NodeGpu| {
            let lines = self[gpu].logged.values();
            let codes: BTreeSet<u32> = lines.map(|line| line.code).collect();
            codes
                .into_iter()
                .map(move |code| format!("Xid {code} of GPU {gpu}"))
        };
        let all: Vec<String> = self.numbers().into_iter().flat_map(of).collect();
        if all.is_empty() {
            return None;
        }
        let more = match all.len().saturating_sub(MOST_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let shown = all[..all.len().min(MOST_SHOWN)].join(", ");
        Some(format!(
            "the kernel's log has {shown}{more}, which NVIDIA's library does not confirm: nothing was done (users can \
             make the kernel write such lines; look at the GPU, and at who did)"
        ))
    }
}
