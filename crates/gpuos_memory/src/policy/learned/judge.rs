//! What extents are worth, by each judge.

use std::collections::{BTreeSet, HashMap};

use crate::policy::Answer;
use crate::tape::Tape;
use crate::trace::Extent;

/// How one judge comes to what an extent is worth.
#[derive(Clone, Copy)]
enum By {
    /// When the tape says that it is used next.
    Tape,
    /// Frequency and recency, with the half-life of this number.
    Uses(usize),
    /// The mean time between its uses.
    Gaps,
    /// The last use.
    Last,
}

/// A judge.
pub struct Judge {
    by: By,
    /// Whether an extent that is worth less than all that are there comes in all the same.
    takes_all: bool,
}

pub const JUDGES: [Judge; 6] = [
    judge(By::Last, true),     // lru
    judge(By::Tape, false),    // tape
    judge(By::Gaps, false),    // gaps
    judge(By::Uses(0), false), // often
    judge(By::Uses(1), false), // both
    judge(By::Uses(2), false), // lately
];
/// Half-lives of uses, in touches for each extent that there is room for.
const HALF_LIVES: [f64; 3] = [256.0, 16.0, 1.0];

const fn judge(by: By, takes_all: bool) -> Judge {
    Judge { by, takes_all }
}

/// Worth that can be ordered: more is more.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Worth(f64);

impl Eq for Worth {}

impl PartialOrd for Worth {
    fn partial_cmp(&self, other: &Worth) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Worth {
    fn cmp(&self, other: &Worth) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What a newer gap between two uses counts in their mean.
const NEWER_GAP: f64 = 0.25;

struct Uses {
    last: u64,
    /// Mean gap between uses; none yet: it was used once.
    gap: Option<f64>,
    /// Of each half-life h the binary logarithm of the sum of 2^(t / h) over the times t of all uses: the order of these is
    /// that of the decayed sums at any later time.
    sums: [f64; HALF_LIVES.len()],
}

/// What all judges know.
pub struct Judges {
    half_lives: [f64; HALF_LIVES.len()],
    uses: HashMap<Extent, Uses>,
    tape: Tape,
    now: u64,
}

impl Judges {
    pub fn new(capacity: usize) -> Judges {
        Judges {
            half_lives: HALF_LIVES.map(|each| each * capacity.max(1) as f64),
            uses: HashMap::new(),
            tape: Tape::default(),
            now: 0,
        }
    }

    /// How many touches there were.
    pub fn now(&self) -> u64 {
        self.now
    }

    pub fn touched(&mut self, extent: Extent) {
        self.now += 1;
        self.tape.touched(extent);
        let now = self.now as f64;
        let uses = self.uses.entry(extent).or_insert(Uses {
            last: self.now,
            gap: None,
            sums: [f64::NEG_INFINITY; HALF_LIVES.len()],
        });
        if uses.last < self.now {
            let gap = (self.now - uses.last) as f64;
            let mean = uses.gap.unwrap_or(gap);
            uses.gap = Some(mean + NEWER_GAP * (gap - mean));
        }
        uses.last = self.now;
        for (sum, half_life) in uses.sums.iter_mut().zip(self.half_lives) {
            let this = now / half_life;
            let (more, less) = (this.max(*sum), this.min(*sum));
            *sum = more + (1.0 + (less - more).exp2()).log2();
        }
    }

    pub fn freed(&mut self, extent: Extent) {
        self.uses.remove(&extent);
    }

    /// What an extent is worth to a judge.
    fn worth(&self, judge: usize, extent: Extent) -> Worth {
        let uses = self.uses.get(&extent);
        let worth = match JUDGES[judge].by {
            By::Tape => self.tape.next(extent).map(|next| -(next as f64)),
            By::Uses(which) => uses.map(|uses| uses.sums[which]),
            By::Gaps => uses.and_then(|uses| self.by_gap(uses)).map(|next| -next),
            By::Last => uses.map(|uses| uses.last as f64),
        };
        Worth(worth.unwrap_or(f64::NEG_INFINITY))
    }

    /// When an extent is used next by the mean gap; one that is late is not expected before it has been idle once more as long.
    fn by_gap(&self, uses: &Uses) -> Option<f64> {
        let (last, now) = (uses.last as f64, self.now as f64);
        let next = last + uses.gap?;
        Some(if next > now { next } else { now + (now - last) })
    }

    /// Whether what it says of an extent changes without a touch of it.
    fn changes(&self, judge: usize) -> bool {
        match JUDGES[judge].by {
            By::Tape => self.tape.follows(),
            By::Gaps => true,
            By::Uses(_) | By::Last => false,
        }
    }
}

/// How often the ends of the order are looked at again before one leaves.
const AGAIN: usize = 8;

/// Extents by what they are worth.
#[derive(Default)]
pub struct Ranked {
    order: BTreeSet<(Worth, Extent)>,
    worth: HashMap<Extent, Worth>,
}

impl Ranked {
    pub fn len(&self) -> usize {
        self.worth.len()
    }

    pub fn has(&self, extent: Extent) -> bool {
        self.worth.contains_key(&extent)
    }

    pub fn put(&mut self, extent: Extent, judges: &Judges, judge: usize) {
        self.remove(extent);
        let worth = judges.worth(judge, extent);
        self.order.insert((worth, extent));
        self.worth.insert(extent, worth);
    }

    pub fn remove(&mut self, extent: Extent) {
        if let Some(worth) = self.worth.remove(&extent) {
            self.order.remove(&(worth, extent));
        }
    }

    pub fn rank_anew(&mut self, judges: &Judges, judge: usize) {
        let all: Vec<Extent> = self.worth.keys().copied().collect();
        for extent in all {
            self.put(extent, judges, judge);
        }
    }

    /// The tape goes on while extents wait: looks again at those that seem to be used soonest and were not, and at the one
    /// that seems to be used last.
    fn refresh(&mut self, judges: &Judges, judge: usize) {
        if !judges.changes(judge) {
            return;
        }
        for _ in 0..AGAIN {
            match self.order.last().copied() {
                Some((Worth(next), extent)) if -next <= judges.now() as f64 => {
                    self.put(extent, judges, judge);
                }
                _ => break,
            }
        }
        for _ in 0..AGAIN {
            let Some((worth, extent)) = self.order.first().copied() else {
                break;
            };
            if judges.worth(judge, extent) == worth {
                break;
            }
            self.put(extent, judges, judge);
        }
    }

    /// All room is taken: whether an extent that was touched comes in, and what leaves for it.
    pub fn miss(&mut self, extent: Extent, judges: &Judges, judge: usize) -> Answer {
        self.refresh(judges, judge);
        let worth = judges.worth(judge, extent);
        match self.order.first().copied() {
            Some((least, leaves)) if JUDGES[judge].takes_all || worth > least => {
                self.remove(leaves);
                self.put(extent, judges, judge);
                Answer::Replace(leaves)
            }
            _ => Answer::Leave,
        }
    }
}
