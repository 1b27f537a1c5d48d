//! The gate: calls that give work to the driver go in, and nothing moves while one of them is inside or while work is not done.
//!
//! ```text
//!   OPEN --close--> DRAINING --seal--> MOVING --open--> OPEN
//!                       |  who waits too long: give_up
//!                       +----------------> OPEN
//! ```
//!
//! A call adds one to a counter and looks at the state; the mover sets the state and looks at the counters. Both orders are
//! sequentially consistent, so either the call sees a closed gate or the mover sees the call. There are many counters, so that
//! threads do not share cache lines.
//!
//! Draining may never end: a kernel can wait for a word that another thread writes by a copy, which waits at the gate. So those who wait
//! give up a closed gate that drains for too long, and the mover tries again later. Once it is sealed there is only copying left.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

const OPEN: u32 = 0;
const DRAINING: u32 = 1;
const MOVING: u32 = 2;
/// Nothing is ever moved, and nobody waits.
const OFF: u32 = 3;

/// How long a call waits for draining before it gives it up, where nobody says otherwise.
const PATIENCE: Duration = Duration::from_millis(50);

/// As many counters as there are. A power of two.
const SHARDS: usize = 64;

/// A counter in a cache line of its own; two lines are fetched at once on many processors.
#[repr(align(128))]
struct Counter(AtomicUsize);

static INSIDE: [Counter; SHARDS] = [const { Counter(AtomicUsize::new(0)) }; SHARDS];
static STATE: AtomicU32 = AtomicU32::new(OFF);
/// The same in milliseconds, as it is now.
static PATIENCE_MS: AtomicU64 = AtomicU64::new(PATIENCE.as_millis() as u64);
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// Somebody came since [`take_touched`]. It is written only when it changes, so that threads do not take it from each other.
static TOUCHED: Touched = Touched(AtomicBool::new(false));

#[repr(align(128))]
struct Touched(AtomicBool);
static WAITING: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

struct Here {
    /// The thread's counter, from 1.
    shard: Cell<usize>,
    /// Calls of the thread that are inside: one that the driver makes itself inside another must not wait.
    depth: Cell<usize>,
}

thread_local! {
    static HERE: Here = const { Here { shard: Cell::new(0), depth: Cell::new(0) } };
}

/// A call that is inside, until it is dropped.
pub(crate) struct Inside {
    shard: usize,
}

impl Inside {
    /// Of a call that the gate does not know of.
    const NONE: Inside = Inside { shard: SHARDS };
}

/// Goes in; waits where the gate is closed.
#[inline]
pub(crate) fn enter() -> Inside {
    HERE.with(|here| {
        let depth = here.depth.get();
        here.depth.set(depth + 1);
        if depth > 0 {
            return Inside::NONE;
        }
        if here.shard.get() == 0 {
            here.shard
                .set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS + 1);
        }
        let shard = here.shard.get() - 1;
        if !TOUCHED.0.load(Ordering::Relaxed) {
            TOUCHED.0.store(true, Ordering::Relaxed);
        }
        INSIDE[shard].0.fetch_add(1, Ordering::SeqCst);
        if STATE.load(Ordering::SeqCst) != OPEN {
            wait(shard);
        }
        Inside { shard }
    })
}

/// How long a call waits for draining before it gives it up.
pub(crate) fn patience() -> Duration {
    Duration::from_millis(PATIENCE_MS.load(Ordering::Relaxed))
}

/// Calls wait longer for draining than usual, until this is dropped: another job's turn is worth more than a pause.
pub(crate) struct Patient;

impl Patient {
    /// They wait for so long.
    pub(crate) fn of(patience: Duration) -> Patient {
        let ms = patience.as_millis() as u64;
        PATIENCE_MS.store(ms, Ordering::Relaxed);
        Patient
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        PATIENCE_MS.store(PATIENCE.as_millis() as u64, Ordering::Relaxed);
    }
}

/// Whether this thread is inside: a call that the driver makes itself, or one of its callbacks.
pub(crate) fn is_inside() -> bool {
    HERE.with(|here| here.depth.get() > 0)
}

/// Waits until it is open, for so long at most.
pub(crate) fn wait_until_open(most: Duration) {
    let begun = Instant::now();
    while is_closed() && begun.elapsed() < most {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A call that does not go through the gate: planted errors of tests.
pub(crate) fn around() -> Inside {
    HERE.with(|here| here.depth.set(here.depth.get() + 1));
    Inside::NONE
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        HERE.with(|here| here.depth.set(here.depth.get() - 1));
        if self.shard < SHARDS {
            INSIDE[self.shard].0.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cold]
fn wait(shard: usize) {
    while is_closed() {
        INSIDE[shard].0.fetch_sub(1, Ordering::SeqCst);
        let guard = WAITING.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = WAITING
            .1
            .wait_timeout_while(guard, patience(), |()| is_closed());
        if waited.is_ok_and(|(_, waited)| waited.timed_out()) {
            give_up();
        }
        INSIDE[shard].0.fetch_add(1, Ordering::SeqCst);
    }
}

fn change(from: u32, to: u32) -> bool {
    let changed = STATE
        .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok();
    if changed && to == OPEN {
        // Under the lock, so that nobody goes to sleep between looking and this.
        let _guard = WAITING.0.lock().unwrap_or_else(PoisonError::into_inner);
        WAITING.1.notify_all();
    }
    changed
}

/// Opens a gate that drains.
pub(crate) fn give_up() {
    change(DRAINING, OPEN);
}

/// Turns the gate on.
pub(crate) fn on() {
    change(OFF, OPEN);
}

/// Turns the gate on, closed as after [`seal`]: nobody comes in before [`open`].
pub(crate) fn on_sealed() {
    change(OFF, MOVING);
}

/// Whether somebody came, in or only to the gate, since this was asked last.
pub(crate) fn take_touched() -> bool {
    TOUCHED.0.load(Ordering::Relaxed) && TOUCHED.0.swap(false, Ordering::Relaxed)
}

/// Whether a call is inside. Those that wait for the gate are not.
pub(crate) fn is_used() -> bool {
    let mut counters = INSIDE.iter();
    counters.any(|counter| counter.0.load(Ordering::SeqCst) != 0)
}

/// Turns it off for good: in a child of `fork`, which has no driver.
pub(crate) fn off() {
    STATE.store(OFF, Ordering::SeqCst);
}

/// Whether it is off.
#[inline]
pub(crate) fn is_off() -> bool {
    STATE.load(Ordering::Relaxed) == OFF
}

/// Whether calls wait for it to open.
pub(crate) fn is_closed() -> bool {
    matches!(STATE.load(Ordering::SeqCst), DRAINING | MOVING)
}

/// Whether it is on and somebody drains.
fn is_draining() -> bool {
    STATE.load(Ordering::SeqCst) == DRAINING
}

/// Closes the gate and waits until no call is inside. Answers false where that was given up.
pub(crate) fn close() -> bool {
    if !change(OPEN, DRAINING) {
        return false;
    }
    for counter in &INSIDE {
        let mut turns = 0_u32;
        while counter.0.load(Ordering::SeqCst) != 0 {
            if !is_draining() {
                return false;
            }
            turns += 1;
            match turns {
                0..100 => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_micros(20)),
            }
        }
    }
    is_draining()
}

/// The work is done: from now on those who wait wait until the end. Answers false where they gave up before.
pub(crate) fn seal() -> bool {
    change(DRAINING, MOVING)
}

/// Opens it.
pub(crate) fn open() {
    let _ = change(MOVING, OPEN) || change(DRAINING, OPEN);
}

#[cfg(test)]
pub(crate) static ALONE: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn alone() -> std::sync::MutexGuard<'static, ()> {
        let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        on();
        guard
    }

    #[test]
    fn nobody_is_inside_while_it_is_sealed() {
        let _alone = alone();
        let (moving, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        let _inside = enter();
                        assert!(!moving.load(Ordering::SeqCst));
                    }
                });
            }
            let mut times = 0;
            while times < 200 {
                if close() && seal() {
                    moving.store(true, Ordering::SeqCst);
                    std::thread::yield_now();
                    moving.store(false, Ordering::SeqCst);
                    open();
                    times += 1;
                }
            }
            stop.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn who_waits_for_draining_gives_it_up_and_for_moving_does_not() {
        let _alone = alone();
        let inside = enter();
        std::thread::scope(|scope| {
            let mover = scope.spawn(close);
            // Who comes before that goes through, and the mover would wait for ever.
            while !is_draining() {
                std::thread::yield_now();
            }
            let other = scope.spawn(|| drop(enter()));
            other.join().unwrap();
            assert!(!mover.join().unwrap());
        });
        drop(inside);
        assert!(close() && seal());
        let entered = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _inside = enter();
                entered.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(PATIENCE * 3);
            assert!(!entered.load(Ordering::SeqCst));
            open();
        });
        assert!(entered.load(Ordering::SeqCst));
    }

    #[test]
    fn who_comes_to_a_gate_is_seen_in_and_before_it() {
        let _alone = alone();
        take_touched();
        assert!(!take_touched());
        let inside = enter();
        assert!(take_touched() && is_used());
        drop(inside);
        assert!(close() && seal());
        take_touched();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(enter()));
            while !take_touched() {
                std::thread::yield_now();
            }
            // It goes out again to wait, so that the mover is not kept.
            while is_used() {
                std::thread::yield_now();
            }
            assert!(!waits.is_finished());
            open();
        });
    }

    #[test]
    fn a_call_inside_a_call_does_not_wait() {
        let _alone = alone();
        let outer = enter();
        std::thread::scope(|scope| {
            let mover = scope.spawn(close);
            while !is_draining() {
                std::thread::yield_now();
            }
            drop(enter());
            drop(outer);
            assert!(mover.join().unwrap());
        });
        open();
    }

    /// Nanoseconds that a call through the open gate may take.
    const GOAL: f64 = 20.0;

    /// `GPUOS_LONG=1 cargo test -p gpuos_preload --release --lib -- --nocapture open_gate`. It fails where the goal is missed by what programs get:
    /// a build with debug assertions is slower.
    #[test]
    fn what_an_open_gate_costs() {
        if std::env::var_os("GPUOS_LONG").is_none() {
            return;
        }
        let _alone = alone();
        let mut best = f64::INFINITY;
        for _ in 0..50 {
            let start = Instant::now();
            for _ in 0..100_000 {
                std::hint::black_box(enter());
            }
            best = best.min(start.elapsed().as_nanos() as f64 / 100_000.0);
        }
        let word = if best <= GOAL { "reached" } else { "missed" };
        println!("open gate: {best:.1} ns, goal {GOAL} ns: {word}");
        assert!(
            cfg!(debug_assertions) || best <= GOAL,
            "{best:.1} ns are more than the goal of {GOAL} ns"
        );
    }
}
