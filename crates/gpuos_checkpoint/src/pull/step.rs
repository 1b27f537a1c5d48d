//! What happens to a shard that is made, and what follows from it.

use std::collections::BTreeMap;
use std::fmt;

use super::gather::{Gather, Loss, Sources};
use super::plan::{Plan, PlanError};

/// Something that happened. Sources are named by their places in the stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// It begins.
    Start,
    /// An answer came.
    Piece {
        /// Whose.
        source: u8,
        /// To which question.
        piece: u64,
        /// Whether its bytes are those that the source's manifest describes.
        checked: bool,
    },
    /// A source cannot be had.
    Refused {
        /// Which.
        source: u8,
        /// Why.
        why: Loss,
    },
    /// [`Effect::Combine`] is done; the answers that it was made of are given back.
    Combined {
        /// The piece.
        piece: u64,
    },
    /// [`Effect::Write`] is done; the piece is given back.
    Written {
        /// The piece.
        piece: u64,
    },
    /// Time went by; a few times in [`Patience::retry_ms`](super::Patience::retry_ms). Answers that have arrived come first:
    /// else a caller that was asleep takes its sources for silent.
    Tick,
}

/// Something to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Ask a source for the bytes of a piece.
    Ask {
        /// Whom.
        source: u8,
        /// For what.
        piece: u64,
    },
    /// Keep the bytes that just came. Without this effect they are not needed.
    Keep {
        /// Whose.
        source: u8,
        /// Of which piece.
        piece: u64,
    },
    /// Make the piece of the answers that are kept of these sources, of which there are k.
    Combine {
        /// The piece.
        piece: u64,
        /// In the order of places.
        sources: Vec<u8>,
    },
    /// Write the piece that was combined, behind the one before.
    Write {
        /// The piece.
        piece: u64,
    },
    /// All is written.
    Done,
    /// It cannot go on. All that is kept can be given back; [`Pull::written`] is what is on disc.
    Failed(TooFew),
}

/// Too few sources are left for a piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TooFew {
    /// How many a piece is made of.
    pub needed: u8,
    /// How many can still be asked.
    pub left: usize,
    /// The others, and why not.
    pub lost: Vec<(u8, Loss)>,
}

impl fmt::Display for TooFew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a shard needs {} others of its stripe, and {} can be had",
            self.needed, self.left
        )?;
        for (place, why) in &self.lost {
            write!(f, "; at place {place}: {why}")?;
        }
        f.write_str(
            "; it can go on where it stopped when more can be had, else take an older checkpoint",
        )
    }
}

/// A shard that is being made.
#[derive(Clone, Debug)]
pub struct Pull {
    plan: Plan,
    sources: Sources,
    /// Pieces in flight, at most the window.
    flight: BTreeMap<u64, Stage>,
    /// The first piece that nobody was asked for.
    next: u64,
    /// Pieces before this one were handed over to be written.
    handed: u64,
    /// Pieces before this one are written.
    written: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    Running,
    Ended,
}

/// How far a piece is.
#[derive(Clone, Debug)]
enum Stage {
    Gathering(Gather),
    Combining,
    Combined,
    Writing,
    /// Before one of the pieces in front of it is.
    Written,
}

impl Pull {
    /// A pull that waits for its [`Event::Start`].
    ///
    /// # Errors
    ///
    /// The plan has numbers that cannot be followed.
    pub fn new(plan: Plan) -> Result<Pull, PlanError> {
        plan.check()?;
        let done = plan.resume_from;
        Ok(Pull {
            sources: Sources::of(&plan),
            flight: BTreeMap::new(),
            next: done,
            handed: done,
            written: done,
            state: State::Waiting,
            plan,
        })
    }

    /// What it follows.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How many pieces are written, from the first without a gap.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// What follows from an event. `now` is in milliseconds, of a clock that does not jump back.
    pub fn step(&mut self, event: Event, now: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        match (self.state, event) {
            (State::Waiting, Event::Start) => self.state = State::Running,
            (State::Waiting, Event::Refused { source, why }) => self.sources.lose(source, why),
            (State::Running, _) => self.take(event, now, &mut effects),
            (State::Waiting | State::Ended, _) => {}
        }
        if self.state == State::Running {
            self.go_on(now, &mut effects);
        }
        effects
    }

    fn take(&mut self, event: Event, now: u64, effects: &mut Vec<Effect>) {
        match event {
            Event::Start => {}
            Event::Piece {
                source,
                piece,
                checked,
            } => {
                self.sources.hear(source, now);
                self.answer(source, piece, checked, now, effects);
            }
            Event::Refused { source, why } => self.sources.lose(source, why),
            Event::Combined { piece } => {
                if let Some(stage @ Stage::Combining) = self.flight.get_mut(&piece) {
                    *stage = Stage::Combined;
                }
            }
            Event::Written { piece } => {
                if let Some(stage @ Stage::Writing) = self.flight.get_mut(&piece) {
                    *stage = Stage::Written;
                }
            }
            Event::Tick => self.repeat(now, effects),
        }
    }

    fn answer(
        &mut self,
        source: u8,
        piece: u64,
        checked: bool,
        now: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(Stage::Gathering(gather)) = self.flight.get_mut(&piece) else {
            return;
        };
        if !checked {
            if gather.damaged(source, now) {
                self.sources.lose(source, Loss::Damaged);
            }
        } else if gather.keep(source) {
            effects.push(Effect::Keep { source, piece });
        }
    }

    fn repeat(&mut self, now: u64, effects: &mut Vec<Effect>) {
        let mut silent = Vec::new();
        for (piece, stage) in &mut self.flight {
            let Stage::Gathering(gather) = stage else {
                continue;
            };
            let overdue = gather.overdue(&self.plan.patience, &self.sources, now);
            silent.extend(overdue.silent);
            let piece = *piece;
            let ask = |source| Effect::Ask { source, piece };
            effects.extend(overdue.again.into_iter().map(ask));
        }
        for source in silent {
            self.sources.lose(source, Loss::Silent);
        }
    }

    /// Whatever can be done now: pieces that are written leave, others come in, what is complete is combined and written.
    fn go_on(&mut self, now: u64, effects: &mut Vec<Effect>) {
        while let Some(Stage::Written) = self.flight.get(&self.written) {
            self.flight.remove(&self.written);
            self.written += 1;
        }
        if self.written == self.plan.pieces() {
            self.state = State::Ended;
            effects.push(Effect::Done);
            return;
        }
        while self.flight.len() < usize::from(self.plan.window) && self.next < self.plan.pieces() {
            let fresh = Stage::Gathering(Gather::default());
            self.flight.insert(self.next, fresh);
            self.next += 1;
        }
        for (piece, stage) in &mut self.flight {
            let Stage::Gathering(gather) = stage else {
                continue;
            };
            let piece = *piece;
            if let Some(sources) = gather.complete(self.plan.needed) {
                *stage = Stage::Combining;
                effects.push(Effect::Combine { piece, sources });
                continue;
            }
            let Some(fresh) = gather.fill(&self.plan, &self.sources, now) else {
                self.fail(effects);
                return;
            };
            let ask = |source| Effect::Ask { source, piece };
            effects.extend(fresh.into_iter().map(ask));
        }
        while let Some(stage @ Stage::Combined) = self.flight.get_mut(&self.handed) {
            *stage = Stage::Writing;
            effects.push(Effect::Write { piece: self.handed });
            self.handed += 1;
        }
    }

    /// What is on its way to the disc may arrive there; nobody waits for it.
    fn fail(&mut self, effects: &mut Vec<Effect>) {
        self.state = State::Ended;
        self.flight.clear();
        effects.push(Effect::Failed(TooFew {
            needed: self.plan.needed,
            left: self.sources.left().count(),
            lost: self.sources.lost(),
        }));
    }
}
