//! How long moving a process's memory takes, until when it has to be done, and how long turns are for that.

use super::config::Config;
use super::ids::Refuge;
use super::ledger::Client;

/// Smooths what is measured; the first counts in full.
pub(super) fn smooth(before: Option<u64>, now: u64) -> Option<u64> {
    Some(before.map_or(now, |before| (3 * before + now) / 4))
}

/// What parking or coming back takes, after one more time. What a process says counts up to what it can have been, and up to what the first
/// deadline allowed: else who takes his time would have more of it each time, until turns are given up on.
pub(super) fn measured_ms(
    config: &Config,
    now: u64,
    client: &Client,
    before: Option<u64>,
    took_ms: u64,
) -> Option<u64> {
    let most = deadline(config, 0, None, client.hbm());
    let most = most + nvme_ms(config, client.on_nvme(Refuge::Host));
    let took_ms = took_ms.min(now.saturating_sub(client.told)).min(most);
    smooth(before, took_ms)
}

/// When parking or coming back has to have ended.
pub(super) fn deadline(config: &Config, now: u64, took: Option<u64>, bytes: u64) -> u64 {
    let took = took.unwrap_or_else(|| guess(config, bytes));
    now + config.switch_ms.max(took.saturating_mul(4))
}

/// When a process has to have parked. To NVMe goes more, and more slowly.
pub(super) fn park_until(config: &Config, now: u64, client: &Client, to: Refuge) -> u64 {
    let until = deadline(config, now, client.park_ms, client.hbm());
    let until = until + nvme_ms(config, client.on_nvme(to));
    match to {
        Refuge::Host => until,
        Refuge::Nvme => until + config.demote_ms,
    }
}

/// When a process has to have come back.
pub(super) fn back_until(config: &Config, now: u64, client: &Client, from: Refuge) -> u64 {
    let until = deadline(config, now, client.back_ms, client.hbm());
    // What it is late with may have to come back from there, too.
    let bytes = client.on_nvme(from).saturating_add(client.leaving);
    until + nvme_ms(config, bytes)
}

/// What moving so many bytes to or from NVMe takes at most.
pub(super) fn nvme_ms(config: &Config, bytes: u64) -> u64 {
    millis(bytes, config.nvme_rate)
}

/// What moving so many bytes between GPU and host takes, as long as it was not measured.
pub(super) fn guess(config: &Config, bytes: u64) -> u64 {
    millis(bytes, config.rate)
}

fn millis(bytes: u64, rate: u64) -> u64 {
    (u128::from(bytes) * 1000 / u128::from(rate.max(1))) as u64
}

/// How long a turn may be before a switch was measured: a guess is no reason to have others wait for many of it.
pub(super) fn first_ms(config: &Config, switch_ms: u64) -> u64 {
    config.quantum_ms.max(switch_ms.saturating_mul(2))
}

/// How long a turn is where a switch takes so long, or `None` where turns are not worth it. `before`: they were not so far.
pub(super) fn quantum_ms(config: &Config, switch_ms: u64, before: bool) -> Option<u64> {
    // What was given up on begins again only where it is well worth it.
    let switch_ms = if before { switch_ms * 5 / 4 } else { switch_ms };
    let wished = switch_ms.saturating_mul(config.switches.max(10));
    let turn = wished.max(config.quantum_ms).min(config.longest_ms);
    let worth = turn * 1000 / (turn + switch_ms).max(1);
    (turn >= switch_ms.saturating_mul(10) && worth >= config.worth).then_some(turn)
}
