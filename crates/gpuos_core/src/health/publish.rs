//! What slurmctld is told: one publication at a time, no more often than the limits allow, spread over
//! nodes, and again until it is taken.
use gpuos_model::rng::Rng;

use gpuos_model::node_gpu::NodeGpu;

use super::effect::Effect;
use super::extra::ExtraPart;
use super::holding;
use super::state::NodeHealth;
use super::step::Ctx;

/// A token, in thousandths.
const TOKEN: u64 = 1000;
/// The longest wait after failures, in ms.
const LONGEST_MS: u64 = 60_000;

/// [`super::Event::Published`].
pub(super) fn done(node: &mut NodeHealth, ctx: &mut Ctx<'_>, revision: u64, ok: bool) {
    let clock = node.clock;
    let publishing = &mut node.publishing;
    // An answer that comes too late, or twice, says nothing about what stands there now.
    if revision != publishing.revision {
        return;
    }
    let Some((part, _)) = publishing.under_way.take() else {
        return;
    };
    let alone = node.holding.is_alone();
    node.holding.ended(ok.then_some(&part));
    if ok {
        publishing.confirmed = Some(part);
        publishing.damaged = false;
        publishing.failures = 0;
    } else if !alone {
        failed(node, ctx, clock);
    }
}

fn failed(node: &mut NodeHealth, ctx: &mut Ctx<'_>, clock: u64) {
    let failures = node.publishing.failures;
    node.publishing.failures = failures.saturating_add(1);
    // Nobody knows what stands there.
    node.publishing.confirmed = None;
    node.publishing.damaged = false;
    let wait = (2000u64 << failures.min(5)).min(LONGEST_MS);
    let spread = spread(node, wait);
    node.publishing.not_before = Some(clock + wait + spread);
    if failures == 0 {
        let text = "the workload manager did not take the state of this node's GPUs; it is told again until it does";
        ctx.warn(None, text);
        ctx.audit(None, text);
    }
}

/// [`super::Event::Shown`].
pub(super) fn shown(node: &mut NodeHealth, part: ExtraPart, damaged: bool) {
    // What was read may be older than what is being written.
    if node.publishing.under_way.is_none() {
        holding::shown(node, &part);
        node.publishing.confirmed = Some(part);
        node.publishing.damaged = damaged;
    }
}

/// After a start nothing is under way, and nobody knows what stands there.
pub(super) fn started(node: &mut NodeHealth) {
    node.publishing.under_way = None;
    node.publishing.confirmed = None;
    node.publishing.damaged = false;
    node.publishing.not_before = None;
    node.publishing.failures = 0;
    holding::started(node);
}

pub(super) fn advance(node: &mut NodeHealth, ctx: &mut Ctx<'_>) {
    let limits = &ctx.rules.limits;
    let clock = node.clock;
    count_tokens(node, limits.publish_burst, limits.publish_every_s, clock);
    let wanted = node.part();
    if let Some((part, since)) = &node.publishing.under_way {
        let alone = node.holding.is_alone();
        // Its answer is not waited for where there is more to say of GPUs.
        let gives_way = alone && !part.has_same_gpus(&wanted);
        let late = clock.saturating_sub(*since) >= u64::from(limits.publish_wait_s) * 1000;
        if !late && !gives_way {
            return;
        }
        node.publishing.under_way = None;
        node.holding.ended(None);
        if !alone {
            failed(node, ctx, clock);
        }
    }
    let confirmed = node.publishing.confirmed.as_ref();
    // What is not known is only worth a message where there is something to say.
    let told = match confirmed {
        Some(part) => node.publishing.is_as(part, &wanted),
        None => wanted.is_empty() && node.publishing.failures == 0,
    };
    if told {
        node.publishing.not_before = None;
        return holding::advance(node, ctx, wanted);
    }
    let known = |gpu: NodeGpu| confirmed.is_some_and(|part| part.has_out(gpu));
    let all = node.numbers().into_iter();
    let urgent = all
        .filter(|gpu| wanted.has_out(*gpu))
        .any(|gpu| !known(gpu));
    let slow = if urgent { 1 } else { 10 };
    let not_before = match node.publishing.not_before {
        Some(at) => at,
        None => {
            let at = clock + spread(node, u64::from(limits.publish_spread_ms) * slow);
            node.publishing.not_before = Some(at);
            at
        }
    };
    // The last token is kept for taking a GPU out.
    let needed = if urgent {
        TOKEN
    } else {
        2 * TOKEN.min(u64::from(limits.publish_burst) * TOKEN / 2)
    };
    // What became urgent does not wait for the time that something else was given.
    let soon = clock + u64::from(limits.publish_spread_ms);
    let not_before = match urgent && node.publishing.failures == 0 {
        true => not_before.min(soon),
        false => not_before,
    };
    node.publishing.not_before = Some(not_before);
    if clock < not_before || node.publishing.tokens < needed {
        return;
    }
    let publishing = &mut node.publishing;
    publishing.tokens -= TOKEN.min(publishing.tokens);
    publishing.not_before = None;
    publishing.revision += 1;
    publishing.under_way = Some((wanted.clone(), clock));
    ctx.effects.push(Effect::Publish {
        revision: publishing.revision,
        part: wanted,
    });
    node.holding.begun(false);
}

fn count_tokens(node: &mut NodeHealth, burst: u32, every_s: u32, clock: u64) {
    let publishing = &mut node.publishing;
    let most = u64::from(burst.max(1)) * TOKEN;
    if publishing.revision == 0 && publishing.counted == 0 {
        publishing.tokens = most;
    }
    let passed = clock.saturating_sub(publishing.counted);
    // A thousandth every `every_s` ms.
    let every = u64::from(every_s.max(1));
    let gained = passed / every;
    publishing.tokens = publishing.tokens.saturating_add(gained).min(most);
    publishing.counted = clock - passed % every;
}

/// A time below `most`, different on each node and each time.
fn spread(node: &mut NodeHealth, most: u64) -> u64 {
    let mut random = Rng::new(node.seed);
    node.seed = random.bits();
    random.below(most.max(1))
}
