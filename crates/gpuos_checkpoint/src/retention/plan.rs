//! What may be removed.
use std::collections::{BTreeMap, BTreeSet};

use crate::ids::CheckpointId;

/// How far a checkpoint is on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Being made.
    Making,
    /// Made, and not known to be committed. What becomes of it is the leader's business while it is newer than what is kept.
    Prepared,
    /// Committed.
    Committed,
    /// Its manifest is gone already; segment or shards are left, because others referred to them or a crash came in between.
    DataOnly,
}

/// What a node has of one checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// Which.
    pub id: CheckpointId,
    /// How far.
    pub stage: Stage,
    /// Where it is kept. The newest of each level are kept.
    pub level: u8,
    /// Kept until the user says otherwise.
    pub pinned: bool,
    /// Being restored, drained or verified.
    pub reading: bool,
    /// False: it is damaged beyond repair or a program could not load it. It does not count as one that is kept.
    pub good: bool,
    /// Bytes of segment and shards.
    pub bytes: u64,
    /// The checkpoints whose segments the manifests of any member of this node's set refer to; its own is always meant.
    pub needs: Vec<CheckpointId>,
}

/// What a user or the site wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// So many committed checkpoints of each level are kept; 0 counts as 1.
    pub keep: u32,
}

impl Default for Policy {
    /// Two: the last one, and one more for the case that the last one cannot be loaded.
    fn default() -> Policy {
        Policy { keep: 2 }
    }
}

/// A step of a removal. They are done in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// The manifest of this node and the copies of others'.
    Manifests(CheckpointId),
    /// Wait until the removals before are durable.
    Barrier,
    /// Segment, shards and the rest.
    Data(CheckpointId),
}

/// What may be removed, in order. Empty if nothing. Nothing that the newest `keep` good committed checkpoints of a level need is in it;
/// as long as there are fewer, nothing of the level is removed but data that no manifest refers to. While a part is being made the
/// plan is empty: what other members of the set refer to is known when all have written theirs.
pub fn plan(holdings: &[Holding], policy: Policy) -> Vec<Removal> {
    removals(holdings, &kept(holdings, policy))
}

/// The checkpoints that are kept for themselves, not for the sake of others.
pub(super) fn kept(holdings: &[Holding], policy: Policy) -> BTreeSet<CheckpointId> {
    if holdings.iter().any(|held| held.stage == Stage::Making) {
        return holdings.iter().map(|held| held.id).collect();
    }
    let keep = usize::try_from(policy.keep.max(1)).unwrap_or(usize::MAX);
    let mut newest: BTreeMap<u8, Vec<CheckpointId>> = BTreeMap::new();
    for held in holdings
        .iter()
        .filter(|h| h.stage == Stage::Committed && h.good)
    {
        newest.entry(held.level).or_default().push(held.id);
    }
    // The oldest one that is kept; what is older of that level may go.
    let mut bounds: BTreeMap<u8, CheckpointId> = BTreeMap::new();
    for (level, mut ids) in newest {
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.dedup();
        if let Some(bound) = ids.get(keep - 1) {
            bounds.insert(level, *bound);
        }
    }
    let committed = holdings.iter().filter(|h| h.stage == Stage::Committed);
    let newest = committed.map(|held| held.id).max();
    let stays = |held: &&Holding| {
        let newer = bounds
            .get(&held.level)
            .is_none_or(|bound| held.id >= *bound);
        match held.stage {
            Stage::Making => true,
            // Copies of others' manifests come before the node's own part of an attempt that is under way.
            Stage::DataOnly => held.pinned || held.reading || newest.is_none_or(|n| held.id > n),
            Stage::Prepared | Stage::Committed => newer || held.pinned || held.reading,
        }
    };
    holdings.iter().filter(stays).map(|held| held.id).collect()
}

/// Those, and the ones whose segments they refer to.
pub(super) fn needed(
    holdings: &[Holding],
    kept: &BTreeSet<CheckpointId>,
) -> BTreeSet<CheckpointId> {
    let mut all = kept.clone();
    for held in holdings.iter().filter(|held| kept.contains(&held.id)) {
        all.extend(&held.needs);
    }
    all
}

pub(super) fn removals(holdings: &[Holding], kept: &BTreeSet<CheckpointId>) -> Vec<Removal> {
    let needed = needed(holdings, kept);
    let gone = holdings.iter().filter(|held| !kept.contains(&held.id));
    let (mut first, mut then): (Vec<Removal>, Vec<Removal>) = (Vec::new(), Vec::new());
    for held in gone {
        if held.stage != Stage::DataOnly {
            first.push(Removal::Manifests(held.id));
        }
        if !needed.contains(&held.id) {
            then.push(Removal::Data(held.id));
        }
    }
    if !first.is_empty() && !then.is_empty() {
        first.push(Removal::Barrier);
    }
    first.extend(then);
    first
}
