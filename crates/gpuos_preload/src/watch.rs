//! Whether it is of use to know what a program touches: one word for each call to look at, in which nothing is set most of the time.

use std::sync::atomic::{AtomicU8, Ordering};

/// Something lies in host memory.
const COLD: u8 = 1;
/// Somebody writes it down.
const TRACED: u8 = 2;

static WHY: AtomicU8 = AtomicU8::new(0);

fn set(bit: u8, on: bool) {
    match on {
        true => WHY.fetch_or(bit, Ordering::Relaxed),
        false => WHY.fetch_and(!bit, Ordering::Relaxed),
    };
}

/// Whether it is of use at all.
#[inline]
pub(crate) fn is_on() -> bool {
    WHY.load(Ordering::Relaxed) != 0
}

/// Whether something lies in host memory: then the policy wants to know.
#[inline]
pub(crate) fn is_cold() -> bool {
    WHY.load(Ordering::Relaxed) & COLD != 0
}

pub(crate) fn set_cold(on: bool) {
    set(COLD, on);
}

/// Whether it is written to a file.
pub(crate) fn is_traced() -> bool {
    WHY.load(Ordering::Relaxed) & TRACED != 0
}

pub(crate) fn set_traced(on: bool) {
    set(TRACED, on);
}

/// In a child of `fork`: the file is its parent's. No more than one word changes.
pub(crate) fn forget_trace() {
    set(TRACED, false);
}
