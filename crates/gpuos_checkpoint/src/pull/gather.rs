//! The sources of a pull, and one piece that is gathered from them.

use std::collections::BTreeMap;
use std::fmt;

use super::plan::{Patience, Plan};

/// Why a source is not asked any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Its node is gone, as the caller knows.
    Gone,
    /// It says that it does not have the shard.
    Absent,
    /// Its bytes are not those that its manifest describes, by its own word or by the check of an answer.
    Damaged,
    /// It does not answer.
    Silent,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Gone => "its node is gone",
            Loss::Absent => "it does not have the shard",
            Loss::Damaged => "its bytes are damaged",
            Loss::Silent => "it does not answer",
        })
    }
}

/// An answer that fails its check may have been damaged on the way; after so many the source is to blame.
const MOST_DAMAGED: u8 = 2;

/// A question of one piece is repeated at most so many times `tries`, though the source answers others.
const SLOW_TRIES: u8 = 4;

/// The sources, best first.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    all: Vec<Source>,
}

#[derive(Clone, Debug)]
struct Source {
    place: u8,
    lost: Option<Loss>,
    /// When it last said anything, in ms.
    heard: Option<u64>,
}

impl Sources {
    pub fn of(plan: &Plan) -> Sources {
        let source = |place: &u8| Source {
            place: *place,
            lost: None,
            heard: None,
        };
        Sources {
            all: plan.sources.iter().map(source).collect(),
        }
    }

    fn get(&mut self, place: u8) -> Option<&mut Source> {
        self.all.iter_mut().find(|source| source.place == place)
    }

    /// Something came from it.
    pub fn hear(&mut self, place: u8, now: u64) {
        if let Some(source) = self.get(place) {
            source.heard = Some(now);
        }
    }

    /// It is not asked any more. Why it was lost first is kept.
    pub fn lose(&mut self, place: u8, why: Loss) {
        if let Some(source) = self.get(place) {
            source.lost.get_or_insert(why);
        }
    }

    fn heard_since(&self, place: u8, then: u64) -> bool {
        let mut found = self.all.iter().filter(|source| source.place == place);
        found.any(|source| source.heard.is_some_and(|at| at >= then))
    }

    fn is_lost(&self, place: u8) -> bool {
        let mut lost = self.all.iter().filter(|source| source.lost.is_some());
        lost.any(|source| source.place == place)
    }

    /// Those that can be asked, best first.
    pub fn left(&self) -> impl Iterator<Item = u8> {
        let left = self.all.iter().filter(|source| source.lost.is_none());
        left.map(|source| source.place)
    }

    /// Those that cannot, with the reasons.
    pub fn lost(&self) -> Vec<(u8, Loss)> {
        let lost = |source: &Source| Some((source.place, source.lost?));
        self.all.iter().filter_map(lost).collect()
    }
}

/// A question without an answer so far.
#[derive(Clone, Debug)]
struct Question {
    /// When it was asked last, and when it is asked again, in ms.
    last: u64,
    again: u64,
    asked: u8,
    /// How often it was asked since its source was heard.
    unheard: u8,
    damaged: u8,
}

/// One piece, from the first question to its answers.
#[derive(Clone, Default, Debug)]
pub(super) struct Gather {
    open: BTreeMap<u8, Question>,
    /// The sources whose answers are kept.
    kept: Vec<u8>,
}

impl Gather {
    /// Asks as many sources as are missing, and says which. `None`: there are not so many.
    pub fn fill(&mut self, plan: &Plan, sources: &Sources, now: u64) -> Option<Vec<u8>> {
        self.open.retain(|place, _| !sources.is_lost(*place));
        let asked = |place: &u8| self.open.contains_key(place) || self.kept.contains(place);
        let missing = usize::from(plan.needed).saturating_sub(self.open.len() + self.kept.len());
        let fresh: Vec<u8> = sources.left().filter(|p| !asked(p)).take(missing).collect();
        if fresh.len() < missing {
            return None;
        }
        for place in &fresh {
            let question = Question {
                last: now,
                again: now.saturating_add(plan.patience.wait_ms(1)),
                asked: 1,
                unheard: 1,
                damaged: 0,
            };
            self.open.insert(*place, question);
        }
        Some(fresh)
    }

    /// An answer came. Whether it was waited for, and so is kept.
    pub fn keep(&mut self, place: u8) -> bool {
        let waited = self.open.remove(&place).is_some();
        if waited {
            self.kept.push(place);
        }
        waited
    }

    /// An answer failed its check: it is asked for again. Whether the source is to blame.
    pub fn damaged(&mut self, place: u8, now: u64) -> bool {
        let Some(question) = self.open.get_mut(&place) else {
            return false;
        };
        // One answer may come twice: it counts once for each question.
        question.damaged = question.damaged.saturating_add(1).min(question.asked);
        question.again = now;
        question.damaged >= MOST_DAMAGED
    }

    /// The sources of a piece of which nothing is missing, in the order of places.
    pub fn complete(&self, needed: u8) -> Option<Vec<u8>> {
        let mut kept = self.kept.clone();
        kept.sort_unstable();
        (kept.len() >= usize::from(needed)).then_some(kept)
    }

    /// Sources to ask again, and those that have been silent for too long.
    pub fn overdue(&mut self, patience: &Patience, sources: &Sources, now: u64) -> Overdue {
        let mut overdue = Overdue::default();
        for (place, question) in &mut self.open {
            if now < question.again {
                continue;
            }
            if sources.heard_since(*place, question.last) {
                question.unheard = 0;
            }
            let most = patience.tries.saturating_mul(SLOW_TRIES);
            if question.unheard >= patience.tries || question.asked >= most {
                overdue.silent.push(*place);
                continue;
            }
            question.unheard += 1;
            question.asked += 1;
            question.last = now;
            question.again = now.saturating_add(patience.wait_ms(question.asked));
            overdue.again.push(*place);
        }
        overdue
    }
}

/// What a piece still waits for, after its time.
#[derive(Default)]
pub(super) struct Overdue {
    pub again: Vec<u8>,
    pub silent: Vec<u8>,
}
