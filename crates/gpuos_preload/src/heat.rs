//! What a program touches, as far as its calls say. It is only of use to the policy: what is missed costs time, never bytes. So nobody waits for
//! it: where another thread has the memory's lock, or too much was noted already, a touch is lost.

use std::sync::Arc;

use crate::memory::{self, KEPT, Memory};
use crate::{pointer, vmm};

/// The most arguments of a kernel that are looked at.
const ARGUMENTS: u64 = 64;

/// Bytes of mappings that an argument is taken to lead to.
const MOST: u64 = 64 << 20;

/// Words that may be addresses of what a copy or fill touches: the extents that they lie in.
#[cold]
pub(crate) fn words(words: &[u64]) {
    if let Some(mut memory) = memory::try_lock() {
        for word in words {
            touch(&mut memory, *word, false);
        }
    }
}

/// A kernel and its arguments: all from the address on that an argument is.
#[cold]
pub(crate) fn launch(function: u64, places: u64, extra: u64) {
    let Some(mut memory) = memory::try_lock() else {
        return;
    };
    let arguments = arguments(&mut memory, function);
    if places != 0 {
        for (which, (_, bytes)) in arguments.iter().enumerate() {
            let Some(place) =
                pointer::take::<u64>(places + 8 * which as u64).filter(|place| *place != 0)
            else {
                return;
            };
            touch_words(&mut memory, place, *bytes);
        }
    } else if let Some([1, buffer]) = pointer::take::<[u64; 2]>(extra) {
        // CU_LAUNCH_PARAM_BUFFER_POINTER: all arguments in a row.
        let bytes = arguments
            .iter()
            .map(|(offset, bytes)| offset + bytes)
            .max()
            .unwrap_or(0);
        touch_words(&mut memory, buffer, bytes);
    }
}

/// Where the arguments of a kernel lie; nothing where the driver does not tell.
fn arguments(memory: &mut Memory, function: u64) -> Arc<[(usize, usize)]> {
    let ask = || {
        (0..ARGUMENTS)
            .map_while(|which| vmm::argument(function, which))
            .collect()
    };
    Arc::clone(memory.kernels.entry(function).or_insert_with(ask))
}

/// Every word of an argument can be an address: structures have them inside.
fn touch_words(memory: &mut Memory, at: u64, bytes: usize) {
    for offset in (0..bytes / 8).map(|word| word as u64 * 8) {
        if let Some(word) = pointer::take::<u64>(at + offset) {
            touch(memory, word, true);
        }
    }
}

/// Notes a touch of the extent at an address, and of all after it in its range. Of memory that the program maps itself, these are those of
/// the mappings that follow without a gap, as far as the largest extent.
fn touch(memory: &mut Memory, address: u64, rest: bool) {
    let place = memory.place(address);
    touch_at(memory, place, rest);
    if place == address || !rest {
        return;
    }
    let mut next = address;
    while let Some((start, map)) = memory.maps.around(next) {
        let after = start + map.bytes;
        if next != address {
            let place = memory.place(next);
            touch_at(memory, place, rest);
        }
        if after - address > MOST {
            return;
        }
        next = after;
    }
}

/// The same of a place among the ranges.
fn touch_at(memory: &mut Memory, address: u64, rest: bool) {
    let Some((start, range)) = memory.at(address) else {
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
        if memory.touches.len() >= KEPT {
            return;
        }
        if let Some(range) = memory.ranges.get(&start) {
            memory.touches.push(range.extents[at].number);
        }
    }
}
