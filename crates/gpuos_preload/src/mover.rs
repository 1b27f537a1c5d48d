//! The thread that moves extents: it closes the gate, waits for all work, has them moved, and opens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, TryLockError};
use std::time::{Duration, Instant};

use crate::driver::code;
use crate::exchange::exchange;
use crate::figures::{self, Why};
use crate::memory;
use crate::mutant::{self, Mutant};
use crate::plan::Plan;
use crate::{ahead, budget, gate, needs, ordered, process, record, staging, vmm, watch};

/// How long the thread sleeps when there is nothing to do, and between looks at what was touched.
const IDLE: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(2);
/// It never sleeps longer for what it has moved.
const MOST: Duration = Duration::from_secs(1);
/// Between two tries of what could not be moved and is wanted.
const AGAIN: Duration = Duration::from_millis(100);
/// The gate is open for so many times as long as it was closed.
const OPEN_TIMES: u32 = 4;
/// How long the end of the process waits for a batch.
const END: Duration = Duration::from_secs(1);

/// Held while the mover uses contexts: none ends meanwhile.
static BUSY: Mutex<()> = Mutex::new(());

/// How often a closed gate was given up.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

fn count_given_up() {
    GIVEN_UP.fetch_add(1, Ordering::Relaxed);
}

/// Keeps the mover from using contexts.
pub(crate) fn hold(patience: Duration) -> Option<MutexGuard<'static, ()>> {
    let start = Instant::now();
    loop {
        match BUSY.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) if start.elapsed() > patience => return None,
            Err(TryLockError::WouldBlock) => {}
        }
        if start.elapsed() > gate::patience() {
            gate::give_up();
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The process ends: what is being moved is brought to its end, and nothing more is.
pub(crate) fn stop() {
    process::end();
    if gate::is_off() {
        return;
    }
    drop(hold(END));
    // Who was parked has its memory again while the driver is there.
    gate::wait_until_open(END);
    ahead::wait(END);
    record::finish(END);
    if std::env::var_os("GPUOS_MEM_REPORT").is_some() {
        let (down, up) = figures::sums();
        let (moved, given_up) = (figures::extents(), GIVEN_UP.load(Ordering::Relaxed));
        process::say(format_args!(
            "moved {moved} extents of {} MiB in all; given up {given_up} times; {} kernels waited for what they needed",
            (down + up) >> 20,
            staging::waited()
        ));
    }
}

/// A seed for moves at random, in tests: builds without debug assertions have none.
fn shake() -> Option<u64> {
    let seed = std::env::var("GPUOS_PRELOAD_SHAKE")
        .ok()
        .filter(|_| cfg!(debug_assertions))?;
    seed.parse().ok()
}

/// Starts a thread of this library's. Signals are the program's: its handlers run on its threads.
///
/// # Errors
/// There can be no more threads.
pub(crate) fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_string());
    // SAFETY: sets of signals of this frame; the thread inherits the mask, and the old one is set again.
    let started = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = builder.spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        started
    };
    started.map(drop)
}

/// Starts the thread that moves.
pub(crate) fn begin() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        if let Err(error) = thread("gpuos-mover", run) {
            process::pin(format_args!("no thread can be started: {error}"));
        }
    });
}

fn run() {
    let shaken = std::panic::catch_unwind(|| {
        vmm::relax();
        let mut looks = Looks {
            shaken: shake(),
            ahead: Instant::now(),
            wanted: Instant::now(),
        };
        while !process::is_ending() && !process::is_pinned() {
            if let Some(_busy) = hold(Duration::MAX).filter(|_| !process::is_ending()) {
                memory::reap();
                let mut memory = memory::lock();
                if !memory.ordered.is_empty() {
                    ordered::settle(&mut memory, true);
                }
            }
            staging::wait(turn(&mut looks));
        }
    });
    if shaken.is_err() {
        process::pin(format_args!(
            "an error of gpuos ended the thread that moves memory"
        ));
    }
}

/// What the thread knows from look to look.
struct Looks {
    /// The state of moves at random.
    shaken: Option<u64>,
    /// When it looks again for something to make ahead, ...
    ahead: Instant,
    /// ... and for something to move that was wanted and could not be.
    wanted: Instant,
}

/// What is wanted whatever the policy says: by who waits for it, or since the driver's own allocations have taken its place.
fn wanted() -> Plan {
    let memory = memory::lock();
    let asked = needs::asked_for(&memory);
    match asked.is_empty() {
        true => needs::relief(&memory),
        false => asked,
    }
}

/// One look at what is to be done; answers how long to sleep.
fn turn(looks: &mut Looks) -> Duration {
    if let Some((plan, number)) = staging::take() {
        let begun = Instant::now();
        // Before the gate closes: others that come to it are not kept from what this waits for.
        let moved = match !gate::is_closed() && settle(Duration::MAX) {
            true => batch(&plan, Why::Used),
            false => 0,
        };
        staging::done(number, moved, begun.elapsed());
        return Duration::ZERO;
    }
    let rest = match ahead::look(&mut looks.ahead) {
        true => LOOK,
        false => IDLE,
    };
    if Instant::now() >= looks.wanted && !gate::is_closed() {
        let plan = wanted();
        if !plan.is_empty() {
            if batch(&plan, Why::Told) > 0 {
                return LOOK;
            }
            // A capture, a call that does not end, or the driver has no memory: the policy goes on meanwhile.
            looks.wanted = Instant::now() + AGAIN;
        }
    }
    let plan = match &mut looks.shaken {
        Some(seed) => {
            let mut random = || {
                // Xorshift of 64 bits (Marsaglia).
                *seed |= 1;
                *seed ^= *seed << 13;
                *seed ^= *seed >> 7;
                *seed ^= *seed << 17;
                *seed >> 8
            };
            memory::lock().shake(&mut random)
        }
        None if !watch::is_cold() => return rest,
        // What the program needs is exchanged before it begins.
        None if staging::is_used() => return rest,
        None => memory::lock().plan(),
    };
    if plan.is_empty() {
        return LOOK;
    }
    let start = Instant::now();
    let moved = batch(&plan, Why::Used);
    match looks.shaken {
        Some(_) => {
            (start.elapsed() * 2).clamp(Duration::from_micros(200), Duration::from_millis(5))
        }
        None => {
            let open = (start.elapsed() * OPEN_TIMES).clamp(LOOK, MOST);
            // Its part of the link is for more than a batch.
            open.max(budget::pause(moved, start.elapsed()))
        }
    }
}

/// Waits for all work that was given, with an open gate. Answers false where that cannot be, or others use contexts for longer than that.
pub(crate) fn settle(patience: Duration) -> bool {
    let Some(_busy) = hold(patience) else {
        return false;
    };
    memory::lock().captures.is_empty() && drain()
}

/// Opens the gate, whatever happens.
struct Opens;

impl Drop for Opens {
    fn drop(&mut self) {
        gate::open();
    }
}

/// Moves what a plan has, if the work of all contexts ends in time. Answers the bytes.
pub(crate) fn batch(plan: &Plan, why: Why) -> u64 {
    ahead::prepare(plan);
    let Some(_busy) = hold(Duration::MAX) else {
        return 0;
    };
    let (before, closed) = (figures::sums(), Instant::now());
    shut(plan);
    let now = figures::sums();
    let (down, up) = (now.0 - before.0, now.1 - before.1);
    figures::moved(why, down, up);
    figures::held(closed.elapsed());
    down + up
}

/// Closes the gate, moves, and opens it. Nobody else moves meanwhile.
fn shut(plan: &Plan) {
    if process::is_ending() || !memory::lock().captures.is_empty() {
        return;
    }
    if !mutant::is(Mutant::Inside) && !gate::close() {
        count_given_up();
        return;
    }
    let _opens = Opens;
    if !memory::lock().captures.is_empty() || process::is_pinned() {
        return;
    }
    if !drain() || (!mutant::is(Mutant::Inside) && !gate::seal()) {
        count_given_up();
        return;
    }
    let mut memory = memory::lock();
    for device in memory.devices.keys().copied().collect::<Vec<i32>>() {
        exchange(&mut memory, device, &plan.down, &plan.up);
    }
    // Whoever moves it: what is touched is of use to know from now on, or not any more.
    memory.look_for_cold();
}

/// Waits for the work of all contexts. Answers false where that cannot be.
pub(crate) fn drain() -> bool {
    if mutant::is(Mutant::Drain) {
        return true;
    }
    let contexts: Vec<u64> = memory::lock().contexts.keys().copied().collect();
    let count = if mutant::is(Mutant::OneContext) {
        1
    } else {
        contexts.len()
    };
    for context in contexts.into_iter().take(count) {
        match vmm::within(context, vmm::synchronize) {
            Err(code::INVALID_CONTEXT | code::CONTEXT_DESTROYED) => {
                memory::lock().contexts.remove(&context);
            }
            // Something captures that this library has not seen.
            Err(code::CAPTURE_UNSUPPORTED) => return false,
            // A context that has failed has no work any more.
            _ => {}
        }
    }
    true
}
