//! Room for a new checkpoint within a quota.
use std::collections::BTreeSet;

use super::plan::{Holding, Policy, Removal, Stage, kept, needed, removals};
use crate::ids::CheckpointId;

/// How room is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// What is removed, in order.
    pub removals: Vec<Removal>,
    /// Checkpoints that the policy would have kept, oldest first.
    pub early: Vec<CheckpointId>,
    /// Bytes that are free then.
    pub free: u64,
}

/// What has to go so that a new checkpoint of about `estimate` bytes (segment and shards of this node) fits where `free` bytes are
/// left: first what need not be kept, then, oldest first, committed ones before the newest good one of their level. Pinned ones, those
/// that are read or made, undecided ones, and the newest stay.
///
/// # Errors
/// A sentence, if that is not enough: what is needed, free and in the way, and what to do.
pub fn room(
    holdings: &[Holding],
    policy: Policy,
    free: u64,
    estimate: u64,
) -> Result<Room, String> {
    let by_policy = kept(holdings, policy);
    let least = kept(holdings, Policy { keep: 1 });
    let mut stays = by_policy.clone();
    let mut early = Vec::new();
    let mut candidates = by_policy.difference(&least).copied();
    loop {
        let then = free.saturating_add(freed(holdings, &stays));
        if then >= estimate {
            return Ok(Room {
                removals: removals(holdings, &stays),
                early,
                free: then,
            });
        }
        let Some(id) = candidates.next() else {
            return Err(no_room(holdings, &stays, then, estimate));
        };
        stays.remove(&id);
        early.push(id);
    }
}

fn sum<'a>(holdings: impl Iterator<Item = &'a Holding>) -> u64 {
    holdings.fold(0, |sum, held| sum.saturating_add(held.bytes))
}

fn freed(holdings: &[Holding], stays: &BTreeSet<CheckpointId>) -> u64 {
    let needed = needed(holdings, stays);
    sum(holdings.iter().filter(|held| !needed.contains(&held.id)))
}

fn no_room(
    holdings: &[Holding],
    stays: &BTreeSet<CheckpointId>,
    free: u64,
    estimate: u64,
) -> String {
    let needed = needed(holdings, stays);
    let part = |what: &str, of: &dyn Fn(&Holding) -> bool| {
        let some: Vec<&Holding> = holdings
            .iter()
            .filter(|h| needed.contains(&h.id) && of(h))
            .collect();
        let bytes = size_text(sum(some.iter().copied()));
        (!some.is_empty()).then(|| format!("{bytes} {what}"))
    };
    let other = |h: &Holding| !h.pinned && !h.reading;
    let held = [
        part("pinned", &|h| h.pinned),
        part("being read", &|h| h.reading && !h.pinned),
        part("being made or undecided", &|h| {
            other(h) && matches!(h.stage, Stage::Making | Stage::Prepared)
        }),
        part("by the newest and what it refers to", &|h| {
            other(h) && matches!(h.stage, Stage::Committed | Stage::DataOnly)
        }),
    ];
    let held: Vec<String> = held.into_iter().flatten().collect();
    let held = match held.is_empty() {
        true => "nothing is held".into(),
        false => format!("held are {}", held.join(", ")),
    };
    format!(
        "a checkpoint of about {} does not fit: {} can be made free, and {held}; raise the quota, unpin one, or checkpoint less",
        size_text(estimate),
        size_text(free)
    )
}

/// Bytes in the largest binary unit, cut to a tenth.
fn size_text(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift > 0);
    match unit {
        None => format!("{bytes} B"),
        Some((shift, unit)) => {
            let tenths = ((bytes & ((1 << shift) - 1)) * 10) >> shift;
            format!("{}.{tenths} {unit}", bytes >> shift)
        }
    }
}
