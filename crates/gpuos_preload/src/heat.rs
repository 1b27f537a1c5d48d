//! What a program touches, as far as its calls say. It is only of use to the policy: what is missed costs time, never bytes. So nobody waits for
//! it: where another thread has the memory's lock, or too much was noted already, a touch is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::memory::{self, Memory};
use crate::{pointer, vmm};

/// Touches that are kept until the mover takes them.
pub(crate) const KEPT: usize = 4096;

/// The most arguments of a kernel that are looked at.
const ARGUMENTS: u64 = 64;

static ON: AtomicBool = AtomicBool::new(false);

/// Turns it on or off.
pub(crate) fn turn(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// Whether touches are wanted.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Words that may be addresses of what a copy or fill touches: the extents that they lie in.
#[cold]
pub(crate) fn words(words: &[u64]) {
    if let Some(mut memory) = memory::try_lock() {
        for word in words {
            memory.touch(*word, false);
        }
    }
}

/// A kernel and its arguments: all from the address on that an argument is.
#[cold]
pub(crate) fn launch(function: u64, places: u64, extra: u64) {
    let Some(mut memory) = memory::try_lock() else {
        return;
    };
    let arguments = memory.arguments(function);
    if places != 0 {
        for (which, (_, bytes)) in arguments.iter().enumerate() {
            let Some(place) =
                pointer::take::<u64>(places + 8 * which as u64).filter(|place| *place != 0)
            else {
                return;
            };
            memory.touch_words(place, *bytes);
        }
    } else if let Some([1, buffer]) = pointer::take::<[u64; 2]>(extra) {
        // CU_LAUNCH_PARAM_BUFFER_POINTER: all arguments in a row.
        let bytes = arguments
            .iter()
            .map(|(offset, bytes)| offset + bytes)
            .max()
            .unwrap_or(0);
        memory.touch_words(buffer, bytes);
    }
}

impl Memory {
    /// Where the arguments of a kernel lie; nothing where the driver does not tell.
    fn arguments(&mut self, function: u64) -> Arc<[(usize, usize)]> {
        let ask = || {
            (0..ARGUMENTS)
                .map_while(|which| vmm::argument(function, which))
                .collect()
        };
        Arc::clone(self.kernels.entry(function).or_insert_with(ask))
    }

    /// Every word of an argument can be an address: structures have them inside.
    fn touch_words(&mut self, at: u64, bytes: usize) {
        for offset in (0..bytes / 8).map(|word| word as u64 * 8) {
            if let Some(word) = pointer::take::<u64>(at + offset) {
                self.touch(word, true);
            }
        }
    }

    /// Notes a touch of the extent at an address, and of all after it in its range.
    fn touch(&mut self, address: u64, rest: bool) {
        let Some((start, range)) = self.around(address) else {
            return;
        };
        let first = range
            .extents
            .partition_point(|extent| extent.at + extent.bytes <= address);
        let last = if rest {
            range.extents.len()
        } else {
            (first + 1).min(range.extents.len())
        };
        for at in first..last {
            if self.touches.len() >= KEPT {
                return;
            }
            if let Some(range) = self.ranges.get(&start) {
                self.touches.push(range.extents[at].number);
            }
        }
    }
}
