//! Which instances would have to go so that one that waits fits.
//!
//! An instance cannot be moved while it runs: a proposal names what would have to be requeued, or
//! waited for. A GPU has so few instances that all sets of them are tried: the answer is exact, for
//! one instance that waits, on one GPU and over many.

use super::states::{NONE, States};

/// An instance that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instance {
    /// Its spot, of [`States::spots`].
    pub spot: usize,
    /// What it costs to requeue its job or to wait for it, in any unit; `None` when it must stay.
    pub cost: Option<u64>,
}

/// What would have to go, and where the waiting instance would be then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The GPU, by its place in the list.
    pub gpu: usize,
    /// The instances that would have to go, by their places in the GPU's list.
    pub goes: Vec<usize>,
    /// The sum of their costs.
    pub cost: u64,
    /// The spot that the waiting instance would have: the lowest that is free then.
    pub spot: usize,
}

/// The cheapest way to make room for an instance of a profile on one of some GPUs of a kind, each
/// with the instances on it; of equally cheap ones that with the fewest instances, then the first.
/// `None` when no set of instances that may go makes room.
///
/// GPUs whose instances cannot be together, or of which there are more than a GPU can have, are
/// left aside.
pub fn make_room(states: &States, gpus: &[Vec<Instance>], profile: usize) -> Option<Proposal> {
    let each = gpus.iter().enumerate();
    let each = each.filter_map(|(gpu, instances)| {
        let best = on_one(states, instances, profile)?;
        Some(Proposal { gpu, ..best })
    });
    each.min_by_key(|found| (found.cost, found.goes.len()))
}

fn on_one(states: &States, instances: &[Instance], profile: usize) -> Option<Proposal> {
    let count = instances.len();
    let now = states.of(instances.iter().map(|instance| instance.spot));
    if now == NONE || count > usize::from(super::profile::MOST_SLICES) {
        return None;
    }
    let mut best: Option<Proposal> = None;
    for set in 0u32..1 << count {
        let goes = || (0..count).filter(move |at| set >> at & 1 == 1);
        let cost = goes().try_fold(0u64, |sum, at| {
            Some(sum.saturating_add(instances[at].cost?))
        });
        let Some(cost) = cost else {
            continue;
        };
        let size = set.count_ones() as usize;
        if best
            .as_ref()
            .is_some_and(|best| (best.cost, best.goes.len()) <= (cost, size))
        {
            continue;
        }
        let left = goes().fold(now, |state, at| states.destroy(state, instances[at].spot));
        if let Some((spot, _)) = states.fits(left, profile).next() {
            best = Some(Proposal {
                gpu: 0,
                goes: goes().collect(),
                cost,
                spot,
            });
        }
    }
    best
}
