//! Which move goes over a link next.
//!
//! A program that waits for an extent goes first. What is moved in advance, to make room or because a hint says so, has a budget in
//! bytes a second, a smaller number of moves at the same time than the link takes, and a time for which an extent that was moved
//! stays where it is. So a storm of such moves costs one that a program waits for at most the move that has just begun.
//!
//! Times are in nanoseconds of a clock that only goes forward; the caller has it.

use std::collections::{HashMap, VecDeque};

/// Why something is moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// A program waits for it.
    Demand,
    /// In advance, or to make room.
    Ahead,
}

/// A move that is asked for. `K` names it, as extent and direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish<K> {
    /// What is moved.
    pub what: K,
    /// Its bytes.
    pub bytes: u64,
    /// Why.
    pub why: Why,
}

/// What a link takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Bytes a second for moves that nobody waits for. 0: none are made.
    pub ahead_rate: u64,
    /// Moves at the same time, at least 1.
    pub at_once: usize,
    /// Of these, moves that nobody waits for, at most.
    pub ahead_at_once: usize,
    /// Wishes that wait at most; more that nobody waits for are refused.
    pub waiting: usize,
    /// For how long an extent that was moved is not moved again ahead.
    pub stays: u64,
}

/// Why a wish is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It was moved a moment ago.
    Stays,
    /// Too many wait.
    Full,
    /// It waits or is being moved already.
    Known,
}

/// The budget is gathered for so long at most.
const BURST: u64 = 100_000_000;
const SECOND: u128 = 1_000_000_000;

/// A link.
pub struct Link<K> {
    bounds: Bounds,
    demand: VecDeque<Wish<K>>,
    ahead: VecDeque<Wish<K>>,
    moving: HashMap<K, Why>,
    /// When what was moved of late had arrived.
    moved: HashMap<K, u64>,
    /// In the order in which they arrived.
    arrivals: VecDeque<(u64, K)>,
    /// Budget in bytes; one move may overdraw it.
    budget: i128,
    /// Since when it is gathered.
    since: u64,
}

impl<K: Copy + Eq + std::hash::Hash> Link<K> {
    /// An idle link.
    pub fn new(bounds: Bounds) -> Link<K> {
        Link {
            bounds: Bounds {
                at_once: bounds.at_once.max(1),
                ..bounds
            },
            demand: VecDeque::new(),
            ahead: VecDeque::new(),
            moving: HashMap::new(),
            moved: HashMap::new(),
            arrivals: VecDeque::new(),
            budget: 0,
            since: 0,
        }
    }

    /// Asks for a move. A wish that waits ahead goes over to those that a program waits for when such a one comes.
    ///
    /// # Errors
    /// It is not taken. One that a program waits for is taken, unless it is known.
    pub fn wish(&mut self, now: u64, wish: Wish<K>) -> Result<(), Refused> {
        if self.moving.contains_key(&wish.what) || self.demand.iter().any(|it| it.what == wish.what)
        {
            return Err(Refused::Known);
        }
        let ahead = self.ahead.iter().position(|it| it.what == wish.what);
        match (wish.why, ahead) {
            (Why::Ahead, Some(_)) => Err(Refused::Known),
            (Why::Demand, at) => {
                if let Some(at) = at {
                    self.ahead.remove(at);
                }
                self.demand.push_back(wish);
                Ok(())
            }
            (Why::Ahead, None) => {
                self.forget(now);
                if self.moved.contains_key(&wish.what) {
                    return Err(Refused::Stays);
                }
                if self.ahead.len() >= self.bounds.waiting {
                    return Err(Refused::Full);
                }
                self.ahead.push_back(wish);
                Ok(())
            }
        }
    }

    fn forget(&mut self, now: u64) {
        while let Some((at, what)) = self.arrivals.front().copied()
            && now.saturating_sub(at) >= self.bounds.stays
        {
            self.arrivals.pop_front();
            if self.moved.get(&what) == Some(&at) {
                self.moved.remove(&what);
            }
        }
    }

    fn gather(&mut self, now: u64) {
        let rate = u128::from(self.bounds.ahead_rate);
        let of = |time: u64| (rate * u128::from(time) / SECOND) as i128;
        let passed = now.saturating_sub(self.since).min(BURST);
        self.budget = (self.budget + of(passed)).min(of(BURST));
        self.since = now;
    }

    /// The move that begins now, if one may. Call it again until it answers `None`.
    pub fn begin(&mut self, now: u64) -> Option<Wish<K>> {
        if self.moving.len() >= self.bounds.at_once {
            return None;
        }
        if let Some(wish) = self.demand.pop_front() {
            self.moving.insert(wish.what, Why::Demand);
            return Some(wish);
        }
        let ahead = self
            .moving
            .values()
            .filter(|why| **why == Why::Ahead)
            .count();
        if ahead >= self.bounds.ahead_at_once || self.ahead.is_empty() {
            return None;
        }
        self.gather(now);
        if self.budget <= 0 {
            return None;
        }
        let wish = self.ahead.pop_front()?;
        self.budget -= i128::from(wish.bytes);
        self.moving.insert(wish.what, Why::Ahead);
        Some(wish)
    }

    /// A move has ended, in whatever way.
    pub fn ended(&mut self, now: u64, what: K) {
        if self.moving.remove(&what).is_some() && self.bounds.stays > 0 {
            self.forget(now);
            self.moved.insert(what, now);
            self.arrivals.push_back((now, what));
        }
    }

    /// Takes a wish back that has not begun. Whether there was one.
    pub fn give_up(&mut self, what: K) -> bool {
        let before = self.demand.len() + self.ahead.len();
        self.demand.retain(|wish| wish.what != what);
        self.ahead.retain(|wish| wish.what != what);
        before > self.demand.len() + self.ahead.len()
    }

    /// When to ask again although nothing has ended: the budget lacks something until then.
    pub fn again_at(&self) -> Option<u64> {
        let rate = u128::from(self.bounds.ahead_rate);
        if self.ahead.is_empty() || self.budget > 0 || rate == 0 {
            return None;
        }
        let lacks = self.budget.unsigned_abs() + 1;
        let time = u64::try_from((lacks * SECOND).div_ceil(rate)).unwrap_or(u64::MAX);
        // A budget that is gathered in shorter pieces than it is kept for.
        Some(self.since.saturating_add(time.min(BURST)))
    }
}
