//! What the process knows of its memory, for gpuosd and who asks it: when extents were touched, what was moved and why, and for how long
//! nothing could begin.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpuos_memory::protocol::Figures;

use crate::memory::{self, Memory};
use crate::watch;

/// Why something was moved, as sums of bytes; what is parked is not among it.
static FETCHED: AtomicU64 = AtomicU64::new(0);
static EVICTED: AtomicU64 = AtomicU64::new(0);
static PRESSED: AtomicU64 = AtomicU64::new(0);
/// Microseconds for which the gate was closed to move something.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Extents that were moved, and bytes to host memory and back.
static MOVED: AtomicU64 = AtomicU64::new(0);
static DOWN: AtomicU64 = AtomicU64::new(0);
static UP: AtomicU64 = AtomicU64::new(0);

/// Counts an extent that was moved, to host memory or back.
pub(crate) fn count(down: bool, bytes: u64) {
    MOVED.fetch_add(1, Ordering::Relaxed);
    let way = if down { &DOWN } else { &UP };
    way.fetch_add(bytes, Ordering::Relaxed);
}

/// Bytes that were moved to host memory and back.
pub(crate) fn sums() -> (u64, u64) {
    (DOWN.load(Ordering::Relaxed), UP.load(Ordering::Relaxed))
}

/// Extents that were moved.
pub(crate) fn extents() -> u64 {
    MOVED.load(Ordering::Relaxed)
}

/// What is hot was touched within so many milliseconds, and what is warm.
const HOT: u64 = 1000;
const WARM: u64 = 60_000;

/// Why extents are moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// The policy has it so.
    Used,
    /// gpuosd has.
    Told,
}

/// Bytes went to host memory and to that of GPUs.
pub(crate) fn moved(why: Why, down: u64, up: u64) {
    let add = |to: &AtomicU64, bytes| to.fetch_add(bytes, Ordering::Relaxed);
    match why {
        Why::Used => {
            add(&EVICTED, down);
            add(&FETCHED, up);
        }
        Why::Told => {
            add(&PRESSED, down + up);
        }
    }
}

/// The gate was closed for so long.
pub(crate) fn held(time: Duration) {
    HELD.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
}

/// Milliseconds since the first look, and one: 0 is never.
pub(crate) fn now() -> u64 {
    micros() / 1000 + 1
}

/// Microseconds since the first look.
pub(crate) fn micros() -> u64 {
    static SINCE: OnceLock<Instant> = OnceLock::new();
    SINCE.get_or_init(Instant::now).elapsed().as_micros() as u64
}

/// What is known now. Touches are known while something lies in host memory; else there is no heat.
pub(crate) fn now_known() -> Figures {
    let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let heat = match watch::is_cold() {
        true => heat(&memory::lock(), now()),
        false => [0; 3],
    };
    Figures {
        heat,
        fetched: load(&FETCHED),
        evicted: load(&EVICTED),
        pressed: load(&PRESSED),
        held_ms: load(&HELD) / 1000,
    }
}

/// Bytes that were touched within a second, within a minute, and longer ago.
fn heat(memory: &Memory, now: u64) -> [u64; 3] {
    let mut heat = [0; 3];
    for extent in memory.ranges.values().flat_map(|range| &range.extents) {
        let age = match memory.last_touch(extent.number) {
            0 => u64::MAX,
            at => now.saturating_sub(at),
        };
        let which = usize::from(age > HOT) + usize::from(age > WARM);
        heat[which] += extent.bytes;
    }
    heat
}
