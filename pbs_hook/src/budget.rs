//! How long an event keeps its mom: no more for all of its talks than half the hook's alarm, of which the hook says what is left.

use std::time::Duration;

use gpuos_pbs::hook::install::ALARM;
use gpuos_pbs::hook::talk::{Said, Talk};
use serde_json::Value;

/// What an event has from its start.
const WHOLE: Duration = Duration::from_secs(ALARM / 2);

/// What an event has left by the word of the hook, whose clock runs since the event began.
pub(crate) fn of(event: &str) -> Duration {
    let event: Value = serde_json::from_str(event).unwrap_or_default();
    let said = event.get("within_ms").and_then(Value::as_u64);
    said.map_or(WHOLE, |left| WHOLE.min(Duration::from_millis(left)))
}

/// What each of the talks brings, one after the other. A talk has its own patience, and at most what is left then of the whole: `spent` is the clock.
pub(crate) fn each(
    talks: &[Talk],
    whole: Duration,
    spent: impl Fn() -> Duration,
    mut one: impl FnMut(Talk) -> Said,
) -> Vec<Said> {
    let bounded = talks.iter().map(|talk| {
        let left = whole.saturating_sub(spent()).as_millis();
        let patience_ms =
            u64::try_from(left).map_or(talk.patience_ms, |left| left.min(talk.patience_ms));
        match patience_ms {
            0 => Err("the event had no time left for it".into()),
            _ => one(Talk {
                patience_ms,
                ..talk.clone()
            }),
        }
    });
    bounded.collect()
}
