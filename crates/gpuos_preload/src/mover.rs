//! The thread that moves extents: it closes the gate, waits for all work, copies, maps anew, and opens.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, TryLockError};
use std::time::{Duration, Instant};

use gpuos_memory::table::{State, Tier};

use crate::driver::code;
use crate::figures::{self, Why};
use crate::memory::{self, BATCH, Memory};
use crate::mutant::{self, Mutant};
use crate::plan::Plan;
use crate::{budget, gate, process, vmm};

/// How long the thread sleeps when there is nothing to do, and between looks at what was touched.
const IDLE: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(2);
/// It never sleeps longer for what it has moved.
const MOST: Duration = Duration::from_secs(1);
/// The gate is open for so many times as long as it was closed.
const OPEN_TIMES: u32 = 4;
/// How long the end of the process waits for a batch.
const END: Duration = Duration::from_secs(1);

/// Held while the mover uses contexts: none ends meanwhile.
static BUSY: Mutex<()> = Mutex::new(());
static STOP: AtomicBool = AtomicBool::new(false);

/// What was done: extents that were moved, bytes to host memory and back, and how often a closed gate was given up.
static MOVED: AtomicU64 = AtomicU64::new(0);
static DOWN: AtomicU64 = AtomicU64::new(0);
static UP: AtomicU64 = AtomicU64::new(0);
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

fn count(what: &AtomicU64, more: u64) {
    what.fetch_add(more, Ordering::Relaxed);
}

/// Bytes that were moved to host memory and back.
pub(crate) fn moved() -> (u64, u64) {
    (DOWN.load(Ordering::Relaxed), UP.load(Ordering::Relaxed))
}

/// Whether the process ends.
pub(crate) fn is_stopping() -> bool {
    STOP.load(Ordering::SeqCst)
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
        if start.elapsed() > gate::PATIENCE {
            gate::give_up();
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The process ends: what is being moved is brought to its end, and nothing more is.
pub(crate) fn stop() {
    STOP.store(true, Ordering::SeqCst);
    if gate::is_off() {
        return;
    }
    drop(hold(END));
    if std::env::var_os("GPUOS_MEM_REPORT").is_some() {
        let [moved, down, up, given_up] =
            [&MOVED, &DOWN, &UP, &GIVEN_UP].map(|what| what.load(Ordering::Relaxed));
        process::say(format_args!(
            "moved {moved} extents of {} MiB in all; given up {given_up} times",
            (down + up) >> 20
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
        let mut state = shake();
        while !STOP.load(Ordering::SeqCst) && !process::is_pinned() {
            if let Some(_busy) = hold(Duration::MAX).filter(|_| !STOP.load(Ordering::SeqCst)) {
                memory::reap();
            }
            std::thread::sleep(turn(&mut state));
        }
    });
    if shaken.is_err() {
        process::pin(format_args!(
            "an error of gpuos ended the thread that moves memory"
        ));
    }
}

/// One look at what is to be done; answers how long to sleep.
fn turn(shaken: &mut Option<u64>) -> Duration {
    let plan = match shaken {
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
        None if !memory::is_cold() => return IDLE,
        None => memory::lock().plan(),
    };
    if plan.is_empty() {
        return LOOK;
    }
    let start = Instant::now();
    let moved = batch(&plan, Why::Used);
    match shaken {
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

/// Opens the gate, whatever happens.
struct Opens;

impl Drop for Opens {
    fn drop(&mut self) {
        gate::open();
    }
}

/// Moves what a plan has, if the work of all contexts ends in time. Answers the bytes.
pub(crate) fn batch(plan: &Plan, why: Why) -> u64 {
    let Some(_busy) = hold(Duration::MAX) else {
        return 0;
    };
    let (before, closed) = (moved(), Instant::now());
    shut(plan);
    let now = moved();
    let (down, up) = (now.0 - before.0, now.1 - before.1);
    figures::moved(why, down, up);
    figures::held(closed.elapsed());
    down + up
}

/// Closes the gate, moves, and opens it. Nobody else moves meanwhile.
fn shut(plan: &Plan) {
    if STOP.load(Ordering::SeqCst) || !memory::lock().captures.is_empty() {
        return;
    }
    if !mutant::is(Mutant::Inside) && !gate::close() {
        count(&GIVEN_UP, 1);
        return;
    }
    let _opens = Opens;
    if !memory::lock().captures.is_empty() || process::is_pinned() {
        return;
    }
    if !drain() || (!mutant::is(Mutant::Inside) && !gate::seal()) {
        count(&GIVEN_UP, 1);
        return;
    }
    let mut memory = memory::lock();
    for (numbers, tier) in [(&plan.down, Tier::Host), (&plan.up, Tier::Hbm)] {
        for device in memory.devices.keys().copied().collect::<Vec<i32>>() {
            memory.shift(device, numbers.iter().copied(), tier);
        }
    }
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

/// An extent on its way.
struct Moving {
    start: u64,
    at: usize,
    context: u64,
    /// Its new physical memory.
    handle: u64,
    /// Where that is mapped for the copy.
    scratch: u64,
}

impl Memory {
    /// Moves extents of a device to a tier; those that cannot be stay.
    pub(crate) fn shift(&mut self, device: i32, numbers: impl Iterator<Item = u32>, tier: Tier) {
        let mut moving = Vec::new();
        let mut used = 0;
        for number in numbers {
            if let Some(one) = self.begin(device, number, tier, used) {
                used += self.ranges[&one.start].extents[one.at].bytes;
                moving.push(one);
            }
        }
        // Copies run beside each other, on one stream for each context.
        let contexts: Vec<u64> = moving.iter().map(|one| one.context).collect();
        let copied: Vec<bool> = contexts
            .iter()
            .map(|context| self.finish(*context))
            .collect();
        for (one, copied) in moving.into_iter().zip(copied) {
            self.end(device, &one, copied);
        }
    }

    fn stream(&mut self, context: u64) -> Option<u64> {
        let stream = self.contexts.get_mut(&context)?;
        if stream.is_none() {
            *stream = vmm::within(context, vmm::stream).ok();
        }
        *stream
    }

    fn finish(&mut self, context: u64) -> bool {
        let stream = self.stream(context);
        stream.is_some_and(|stream| vmm::within(context, || vmm::finish(stream)).is_ok())
    }

    /// Begins to copy an extent.
    fn begin(&mut self, device: i32, number: u32, tier: Tier, used: u64) -> Option<Moving> {
        let (start, at) = (*self.numbers.get(number as usize)?)?;
        let range = self
            .ranges
            .get(&start)
            .filter(|range| range.device == device)?;
        if range.pinned && !mutant::is(Mutant::Pinned) {
            return None;
        }
        let context = range.context;
        let extent = &range.extents[at];
        let (from, bytes, id) = (extent.at, extent.bytes, extent.id);
        if used + bytes > BATCH {
            return None;
        }
        let stream = self.stream(context)?;
        let there = self.devices.get_mut(&device)?.as_mut()?;
        if there.scratch.is_none() {
            there.scratch = vmm::reserve(BATCH).ok();
        }
        let scratch = there.scratch? + used;
        there.table.begin(id, tier).ok()?;
        let place = there.place(device, tier);
        let copied = if mutant::is(Mutant::NoCopy) {
            0
        } else if mutant::is(Mutant::ShortCopy) {
            bytes - 4096
        } else {
            bytes
        };
        let begun = vmm::create(bytes, place).and_then(|handle| {
            let begun = vmm::map(scratch, bytes, handle).and_then(|()| {
                let begun = vmm::access(scratch, bytes, &[device], true).and_then(|()| {
                    if copied == 0 {
                        Ok(())
                    } else {
                        vmm::within(context, || vmm::copy(scratch, from, copied, stream))
                    }
                });
                if begun.is_err() {
                    let _ = vmm::unmap(scratch, bytes);
                }
                begun
            });
            if begun.is_err() {
                vmm::release(handle);
            }
            begun.map(|()| handle)
        });
        let Ok(handle) = begun else {
            let _ = there.table.end(id, false);
            return None;
        };
        Some(Moving {
            start,
            at,
            context,
            handle,
            scratch,
        })
    }

    /// Puts the new memory in the place of the old.
    fn end(&mut self, device: i32, one: &Moving, copied: bool) {
        let Some(there) = self.devices.get_mut(&device).and_then(Option::as_mut) else {
            return;
        };
        let devices = there.sharers(device);
        let Some(range) = self.ranges.get_mut(&one.start) else {
            return;
        };
        let extent = &mut range.extents[one.at];
        let _ = vmm::unmap(one.scratch, extent.bytes);
        let (at, bytes) = (extent.at, extent.bytes);
        let show = |handle: u64| {
            vmm::map(at, bytes, handle)?;
            if mutant::is(Mutant::NoAccess) {
                return Ok(());
            }
            vmm::access(at, bytes, &devices, !mutant::is(Mutant::ReadOnly))
        };
        let moved = copied
            && vmm::unmap(extent.at, extent.bytes).is_ok()
            && {
                let shown = show(one.handle).is_ok();
                if !shown {
                    // Back to what was there, whose bytes are still good.
                    let _ = vmm::unmap(extent.at, extent.bytes);
                    if show(extent.handle).is_err() {
                        process::pin(format_args!(
                            "{} MiB at {:#x} could not be mapped again and are lost: the next work that touches them fails",
                            extent.bytes >> 20,
                            extent.at
                        ));
                    }
                }
                shown
            };
        let _ = there.table.end(extent.id, moved);
        if moved {
            // Nobody can tell what a kernel writes: a copy of the bytes in host memory would be good for nothing.
            if there.table.state(extent.id) == Ok(State::HbmWithShadow) {
                let _ = there.table.drop_shadow(extent.id);
            }
            vmm::release(std::mem::replace(&mut extent.handle, one.handle));
            count(&MOVED, 1);
            let way = match there.table.state(extent.id) {
                Ok(State::Host) => &DOWN,
                _ => &UP,
            };
            count(way, extent.bytes);
        } else {
            vmm::release(one.handle);
        }
    }
}
