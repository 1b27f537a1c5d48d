//! A small twin of the GPU's memory for each judge.

use super::judge::{JUDGES, Judges, Ranked};
use crate::trace::Extent;

/// Extents that a twin has room for, about; what has less room is not sampled.
const ROOM: usize = 256;
/// What misses count after another look.
const FADES: f64 = 0.95;
/// A judge takes over that has so many of the misses of the one that decides.
const BETTER: f64 = 0.98;

struct Twin {
    there: Ranked,
    misses: f64,
}

/// The twins.
pub struct Twins {
    one_of: u64,
    room: usize,
    twins: [Twin; JUDGES.len()],
}

impl Twins {
    pub fn new(capacity: usize) -> Twins {
        let one_of = (capacity / ROOM).max(1);
        Twins {
            one_of: one_of as u64,
            room: (capacity / one_of).max(1),
            twins: std::array::from_fn(|_| Twin {
                there: Ranked::default(),
                misses: 0.0,
            }),
        }
    }

    fn has(&self, extent: Extent) -> bool {
        // Fibonacci hashing: neighbours are used together, and must not be sampled together.
        let mixed = u64::from(extent.0).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        mixed.is_multiple_of(self.one_of)
    }

    pub fn touched(&mut self, extent: Extent, judges: &Judges) {
        if !self.has(extent) {
            return;
        }
        for (judge, twin) in self.twins.iter_mut().enumerate() {
            if twin.there.has(extent) {
                twin.there.put(extent, judges, judge);
                continue;
            }
            twin.misses += 1.0;
            if twin.there.len() < self.room {
                twin.there.put(extent, judges, judge);
            } else {
                twin.there.miss(extent, judges, judge);
            }
        }
    }

    pub fn freed(&mut self, extent: Extent) {
        for twin in &mut self.twins {
            twin.there.remove(extent);
        }
    }

    /// The judge with the fewest misses of late, if it is better than the one that decides.
    pub fn best(&mut self, now: usize) -> usize {
        let misses = |twin: &Twin| twin.misses;
        let all = self.twins.iter().map(misses).enumerate();
        let best = all.min_by(|one, other| one.1.total_cmp(&other.1));
        let (best, least) = best.unwrap_or((now, 0.0));
        let is_better = least < BETTER * misses(&self.twins[now]);
        for twin in &mut self.twins {
            twin.misses *= FADES;
        }
        if is_better { best } else { now }
    }
}
