//! gpuos's policy: what is used latest gives way, as far as that can be told.
//!
//! Several judges say how late an extent will be used; each has a small twin of the GPU's memory beside it, with a sample of the
//! extents, and the judge whose twin has had the fewest misses of late decides.
//!
//! - *tape*: what followed the last time that the program did what it does now. Steps of training, passes over all, time steps.
//! - *often*, *both*, *lately*: frequency and recency, which weigh more or less (LRFU: Lee et al., IEEE Transactions on Computers 50
//!   (12), 2001), with half-lives of many, some, and few times the room. An extent that is worth less than all that are there stays outside.
//! - *gaps*: the mean time between uses, which is long for what is swept over now and then.
//! - *lru*: as LRU does; so little is lost where nothing can be learned.
//!
//! Memory: some 100 bytes for each extent, 24 for each of the last [`crate::tape::LENGTH`] touches, and the twins' samples.

mod judge;
mod twin;

use judge::Judges;
use twin::Twins;

use super::{Answer, Policy};
use crate::trace::Extent;

/// How many touches pass between two looks at which judge is best.
const LOOK: u64 = 256;

/// The policy.
pub struct Learned {
    judges: Judges,
    twins: Twins,
    best: usize,
    there: judge::Ranked,
}

impl Learned {
    /// For room for `capacity` extents.
    pub fn new(capacity: usize) -> Learned {
        Learned {
            judges: Judges::new(capacity),
            twins: Twins::new(capacity),
            best: 0,
            there: judge::Ranked::default(),
        }
    }

    fn touched(&mut self, extent: Extent) {
        self.judges.touched(extent);
        self.twins.touched(extent, &self.judges);
        if self.judges.now().is_multiple_of(LOOK) {
            let best = self.twins.best(self.best);
            if best != self.best {
                self.best = best;
                self.there.rank_anew(&self.judges, best);
            }
        }
    }
}

impl Policy for Learned {
    fn name(&self) -> &'static str {
        "gpuos"
    }

    fn hit(&mut self, extent: Extent) {
        self.touched(extent);
        self.there.put(extent, &self.judges, self.best);
    }

    fn miss(&mut self, extent: Extent, full: bool) -> Answer {
        self.touched(extent);
        if !full {
            self.there.put(extent, &self.judges, self.best);
            return Answer::Take;
        }
        self.there.miss(extent, &self.judges, self.best)
    }

    fn freed(&mut self, extent: Extent) {
        self.there.remove(extent);
        self.twins.freed(extent);
        self.judges.freed(extent);
    }
}
