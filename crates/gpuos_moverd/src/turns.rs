//! Whose copy may use the shared file system: one at a time on a node, users in turn.
//!
//! Who has copied least goes next, and a copy that takes long gives way to those of other users now and then, so that nobody's last checkpoint
//! waits for all of another's. A user who comes begins with the least that those have who are there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After so long a copy gives way, where others wait.
const SLICE: Duration = Duration::from_secs(1);
/// Between two looks whether the job of one that waits has ended.
const LOOK: Duration = Duration::from_millis(200);

/// The queue.
#[derive(Default)]
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The user whose copy is under way.
    holder: Option<u32>,
    /// Who waits, by the order in which they came.
    waiting: BTreeMap<u64, u32>,
    next: u64,
    /// For how long users had it, of those who are there.
    used: BTreeMap<u32, Duration>,
}

impl State {
    /// Whose turn is next: of the user who had it least, the first.
    fn first(&self) -> Option<u64> {
        let used = |uid: &u32| self.used.get(uid).copied().unwrap_or_default();
        let first = self
            .waiting
            .iter()
            .min_by_key(|(ticket, uid)| (used(uid), **ticket));
        first.map(|(ticket, _)| *ticket)
    }

    fn come(&mut self, uid: u32) -> u64 {
        let least = self.used.values().min().copied().unwrap_or_default();
        self.used.entry(uid).or_insert(least);
        self.next += 1;
        self.waiting.insert(self.next, uid);
        self.next
    }

    fn leave(&mut self, uid: u32, since: Instant) {
        *self.used.entry(uid).or_default() += since.elapsed();
        self.holder = None;
    }

    /// Forgets users who are not there any more.
    fn forget(&mut self) {
        let State {
            holder,
            waiting,
            used,
            ..
        } = self;
        used.retain(|uid, _| *holder == Some(*uid) || waiting.values().any(|of| of == uid));
    }
}

/// A turn, until it is dropped.
pub struct Turn<'a> {
    turns: &'a Turns,
    uid: u32,
    since: Instant,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of a user. `None`: the job has ended meanwhile.
    pub fn enter(&self, uid: u32, ended: &AtomicBool) -> Option<Turn<'_>> {
        let state = self.lock();
        self.wait(state, uid, ended).then(|| Turn {
            turns: self,
            uid,
            since: Instant::now(),
        })
    }

    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>, uid: u32, ended: &AtomicBool) -> bool {
        let ticket = state.come(uid);
        loop {
            let goes_on = !ended.load(Ordering::Relaxed);
            let mine = state.holder.is_none() && state.first() == Some(ticket);
            if mine || !goes_on {
                state.waiting.remove(&ticket);
                if mine && goes_on {
                    state.holder = Some(uid);
                }
                state.forget();
                self.changed.notify_all();
                return mine && goes_on;
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn leave(&self, uid: u32, since: Instant) {
        let mut state = self.lock();
        state.leave(uid, since);
        state.forget();
        self.changed.notify_all();
    }
}

impl Turn<'_> {
    /// Gives way to others, where a copy has taken long and others than its user wait. `Some(true)`: it did, and goes on. `None`: the job has
    /// ended meanwhile, and the turn is another's.
    pub fn give_way(&mut self, ended: &AtomicBool) -> Option<bool> {
        if self.since.elapsed() < SLICE {
            return Some(false);
        }
        let mut state = self.turns.lock();
        if state.waiting.values().all(|uid| *uid == self.uid) {
            return Some(false);
        }
        state.leave(self.uid, self.since);
        self.turns.changed.notify_all();
        let again = self.turns.wait(state, self.uid, ended);
        self.since = Instant::now();
        if !again {
            // Nothing is held that a drop would give back.
            self.uid = NOBODY;
            return None;
        }
        Some(true)
    }
}

/// No user: the turn is over.
const NOBODY: u32 = u32::MAX;

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.uid != NOBODY {
            self.turns.leave(self.uid, self.since);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// Copies that take so many slices each; who had which of them, in order.
    fn order(copies: &[(u32, usize)]) -> Vec<u32> {
        let (turns, goes_on) = (Turns::default(), AtomicBool::new(false));
        let (tell, told) = channel();
        let first = turns.enter(1, &goes_on).unwrap();
        thread::scope(|scope| {
            for (at, (uid, slices)) in copies.iter().enumerate() {
                let (turns, goes_on, tell) = (&turns, &goes_on, tell.clone());
                scope.spawn(move || {
                    let mut turn = turns.enter(*uid, goes_on).unwrap();
                    for slice in 0..*slices {
                        if slice > 0 {
                            turn.give_way(goes_on).unwrap();
                        }
                        tell.send(*uid).unwrap();
                        // As long as a slice takes.
                        turn.since -= SLICE;
                    }
                });
                while turns.lock().waiting.len() <= at {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        drop(tell);
        assert!(turns.lock().used.is_empty() && turns.lock().holder.is_none());
        told.into_iter().collect()
    }

    #[test]
    fn a_users_many_and_long_copies_keep_another_waiting_for_one_slice() {
        let order = order(&[(1, 5), (1, 5), (1, 5), (2, 2), (3, 1)]);
        assert_eq!(order.len(), 18);
        for uid in [2, 3] {
            let first = order.iter().position(|it| *it == uid).unwrap();
            assert!(first <= 2, "{order:?}");
        }
        // The second slice of one comes before the third of another.
        let last = order.iter().rposition(|it| *it == 2).unwrap();
        assert!(last <= 5, "{order:?}");
    }

    #[test]
    fn copies_of_one_user_are_made_one_after_the_other() {
        assert_eq!(order(&[(1, 2), (1, 1)]), [1, 1, 1]);
    }

    #[test]
    fn who_waits_for_a_job_that_ends_keeps_no_place() {
        let turns = Turns::default();
        let (goes_on, ended) = (AtomicBool::new(false), AtomicBool::new(true));
        let mut first = turns.enter(1, &goes_on).unwrap();
        assert!(turns.enter(2, &ended).is_none());
        assert!(turns.lock().waiting.is_empty());
        // One whose own job ends while it has given way has nothing any more.
        first.since -= SLICE;
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                let turn = turns.enter(2, &goes_on);
                while turns.lock().waiting.is_empty() {
                    thread::yield_now();
                }
                drop(turn);
            });
            while turns.lock().waiting.is_empty() {
                thread::yield_now();
            }
            assert_eq!(first.give_way(&ended), None);
            // The other one waits for somebody to come.
            let next = scope.spawn(|| drop(turns.enter(3, &goes_on)));
            other.join().unwrap();
            next.join().unwrap();
        });
        drop(first);
        assert!(turns.enter(4, &goes_on).is_some());
    }
}
