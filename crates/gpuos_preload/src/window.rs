//! How much work a program in turns gives to its GPUs without waiting for it, from its first switch on.
//!
//! A switch waits for all work that was given, so a program that launches far ahead keeps the next job waiting. From then on a launch waits now and
//! then until what was given before is done: after so many launches that this takes about [`TARGET`]. A kernel may wait for what its program
//! does after a later launch; so nobody waits for longer than [`PATIENCE`], and where that is seen twice, launches are free again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{gate, memory, mover, vmm};

/// Work that is given at once is to take about so long.
const TARGET: Duration = Duration::from_secs(1);
/// Launches at most that are not waited for.
const MOST: u32 = 2048;
/// A launch waits so long at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// Work that ends so soon after a launch was let through was waiting for it.
const SOON: Duration = Duration::from_secs(1);
/// So often that is seen before launches are free.
const SEEN: u32 = 2;

/// Launches after which one waits; 0: none does.
static LIMIT: AtomicU32 = AtomicU32::new(0);
/// Launches since one has waited.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Who waits, one at a time.
static TURN: Mutex<()> = Mutex::new(());
static STATE: (Mutex<State>, Condvar) = (
    Mutex::new(State {
        begun: false,
        waits: false,
        passed: None,
        seen: 0,
    }),
    Condvar::new(),
);

struct State {
    /// There is a thread that waits for work.
    begun: bool,
    /// It is to wait, or waits.
    waits: bool,
    /// When a launch was let through all the same.
    passed: Option<Instant>,
    /// How often work was done soon after that.
    seen: u32,
}

fn state() -> MutexGuard<'static, State> {
    STATE.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on launches wait, if they do not already.
pub(crate) fn begin() {
    let mut state = state();
    if !state.begun && mover::thread("gpuos-window", serve).is_ok() {
        state.begun = true;
        LIMIT.store(1, Ordering::Relaxed);
    }
}

/// Before a launch that is not inside another call.
#[inline]
pub(crate) fn before_launch() {
    let limit = LIMIT.load(Ordering::Relaxed);
    if limit != 0 && COUNT.fetch_add(1, Ordering::Relaxed) >= limit {
        full();
    }
}

#[cold]
fn full() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = LIMIT.load(Ordering::Relaxed);
    // Another thread has waited meanwhile; what is captured is no work; and who has to park waits at the gate.
    let other = COUNT.load(Ordering::Relaxed) <= limit;
    let skip = gate::is_inside() || gate::is_closed() || !memory::lock().captures.is_empty();
    if limit == 0 || other || skip {
        return;
    }
    let begun = Instant::now();
    let mut state = state();
    if !state.waits {
        (state.waits, state.passed) = (true, None);
        STATE.1.notify_all();
    }
    let waited = STATE
        .1
        .wait_timeout_while(state, PATIENCE, |state| state.waits);
    let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
    if waited.timed_out() {
        state.passed.get_or_insert_with(Instant::now);
        return;
    }
    COUNT.store(1, Ordering::Relaxed);
    if LIMIT.load(Ordering::Relaxed) != 0 {
        LIMIT.store(next(limit, begun.elapsed()), Ordering::Relaxed);
    }
}

/// After how many launches one waits next, where waiting for so many took so long.
fn next(limit: u32, took: Duration) -> u32 {
    match took {
        took if took > TARGET => (limit / 2).max(1),
        took if took * 2 < TARGET => (limit * 2).min(MOST),
        _ => limit,
    }
}

/// The thread that waits for work.
fn serve() {
    vmm::relax();
    loop {
        let waits = STATE.1.wait_while(state(), |state| !state.waits);
        drop(waits);
        mover::settle(Duration::MAX);
        let mut state = state();
        state.waits = false;
        match state.passed.take() {
            Some(passed) if passed.elapsed() < SOON => state.seen += 1,
            Some(_) => state.seen = 0,
            None => {}
        }
        if state.seen >= SEEN {
            LIMIT.store(0, Ordering::Relaxed);
        }
        STATE.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_as_many_as_take_about_the_target() {
        let settled = |each: Duration| {
            let mut limit = 1;
            for _ in 0..40 {
                limit = next(limit, each * limit);
            }
            limit
        };
        assert_eq!(settled(Duration::from_secs(4)), 1);
        assert_eq!(settled(Duration::from_micros(10)), MOST);
        for ms in [1, 5, 20, 100, 300] {
            let all = Duration::from_millis(ms) * settled(Duration::from_millis(ms));
            assert!(all <= TARGET * 2 && all >= TARGET / 4, "{ms}: {all:?}");
        }
    }
}
