//! What a program touches, as far as its calls say. It is only of use to the policy: what is missed costs time, never bytes. So nobody waits for
//! it: where another thread has the memory's lock, or too much was noted already, a touch is lost.

use std::sync::Arc;

use gpuos_driver::{Kernel2, LAUNCH_BUFFER};

use crate::graphs::Word;
use crate::memory::{self, KEPT, Memory, Touch};
use crate::{pointer, vmm};

/// The most arguments of a kernel that are looked at.
const ARGUMENTS: u64 = 64;

/// Bytes of mappings that an argument is taken to lead to.
pub(crate) const MOST: u64 = 64 << 20;

/// Words that may be addresses of what a copy or fill touches: the extents that they lie in.
#[cold]
pub(crate) fn words(words: &[u64]) {
    if let Some(mut memory) = memory::try_lock() {
        note(&mut memory, |memory, each| {
            words
                .iter()
                .for_each(|word| touched(memory, *word, false, each));
        });
    }
}

/// A kernel and its arguments: all from the address on that an argument is.
#[cold]
pub(crate) fn launch(function: u64, places: u64, extra: u64) {
    let Some(mut memory) = memory::try_lock() else {
        return;
    };
    let arguments = arguments(&mut memory, function);
    note(&mut memory, |memory, each| {
        words_of(&arguments, places, extra, |word| {
            touched(memory, word, true, each);
        });
    });
}

/// The extents that a kernel's arguments lead to: of each so many bytes from its address on.
pub(crate) fn of_launch(
    memory: &mut Memory,
    function: u64,
    places: u64,
    extra: u64,
    reach: u64,
) -> Vec<u32> {
    let arguments = arguments(memory, function);
    let mut all = Vec::new();
    words_of(&arguments, places, extra, |word| {
        let mut reached = 0;
        touched(memory, word, true, &mut |number| {
            if reached < reach {
                reached += memory.bytes_of(number);
                all.push(number);
            }
        });
    });
    all
}

/// A graph that is launched: which extents it touches, the thread that moves finds out.
#[cold]
pub(crate) fn graph(exec: u64) {
    if let Some(mut memory) = memory::try_lock()
        && memory.touches.len() < KEPT
    {
        memory.touches.push(Touch::Graph(exec));
    }
}

/// Notes extents, as far as there is room for it.
pub(crate) fn note(memory: &mut Memory, body: impl FnOnce(&Memory, &mut dyn FnMut(u32))) {
    let mut touches = std::mem::take(&mut memory.touches);
    body(memory, &mut |number| {
        if touches.len() < KEPT {
            touches.push(Touch::Extent(number));
        }
    });
    memory.touches = touches;
}

/// The extents of what was touched, in its order.
pub(crate) fn extents(memory: &Memory, touches: &[Touch]) -> Vec<u32> {
    let mut all = Vec::new();
    for touch in touches {
        match touch {
            Touch::Extent(number) => all.push(*number),
            Touch::Graph(exec) => {
                for word in memory.graphs.words(*exec) {
                    if all.len() < 4 * KEPT {
                        touched(memory, word.address, word.rest, &mut |number| {
                            all.push(number)
                        });
                    }
                }
            }
        }
    }
    all
}

/// Where the arguments of a kernel lie; nothing where the driver does not tell.
pub(crate) fn arguments(memory: &mut Memory, function: u64) -> Arc<[(usize, usize)]> {
    let ask = || {
        (0..ARGUMENTS)
            .map_while(|which| vmm::argument(function, which))
            .collect()
    };
    Arc::clone(memory.kernels.entry(function).or_insert_with(ask))
}

/// Every word of an argument can be an address: structures have them inside.
pub(crate) fn words_of(
    arguments: &[(usize, usize)],
    places: u64,
    extra: u64,
    mut each: impl FnMut(u64),
) {
    let mut of_place = |at: u64, bytes: usize| {
        for offset in (0..bytes / 8).map(|word| word as u64 * 8) {
            if let Some(word) = pointer::take::<u64>(at + offset) {
                each(word);
            }
        }
    };
    if places != 0 {
        for (which, (_, bytes)) in arguments.iter().enumerate() {
            let Some(place) =
                pointer::take::<u64>(places + 8 * which as u64).filter(|place| *place != 0)
            else {
                return;
            };
            of_place(place, *bytes);
        }
    } else if let Some([LAUNCH_BUFFER, buffer]) = pointer::take::<[u64; 2]>(extra) {
        let ends = arguments.iter().map(|(offset, bytes)| offset + bytes);
        of_place(buffer, ends.max().unwrap_or(0));
    }
}

/// The words of a graph's kernel that lead to memory of ours, or may later.
pub(crate) fn kernel_words(memory: &mut Memory, kernel: &Kernel2) -> Vec<Word> {
    let function = match kernel.first.function {
        0 => kernel.kernel,
        function => function,
    };
    let arguments = arguments(memory, function);
    let mut words = Vec::new();
    words_of(
        &arguments,
        kernel.first.places,
        kernel.first.extra,
        |word| {
            words.extend(word_at(memory, word, true));
        },
    );
    words
}

/// A word, if it leads to memory of ours or may later.
pub(crate) fn word_at(memory: &Memory, address: u64, rest: bool) -> Option<Word> {
    let known = memory.at(memory.place(address)).is_some() || memory.graphs.is_reserved(address);
    known.then_some(Word { address, rest })
}

/// The extent at an address, and all after it in its range. Of memory that the program maps itself, these are those of the mappings that
/// follow without a gap, as far as the largest extent.
fn touched(memory: &Memory, address: u64, rest: bool, each: &mut dyn FnMut(u32)) {
    let place = memory.place(address);
    touched_at(memory, place, rest, each);
    if place == address || !rest {
        return;
    }
    let mut next = address;
    while let Some((start, map)) = memory.maps.around(next) {
        if next != address {
            touched_at(memory, memory.place(next), rest, each);
        }
        next = start + map.bytes;
        if next - address > MOST {
            return;
        }
    }
}

/// The same of a place among the ranges.
fn touched_at(memory: &Memory, place: u64, rest: bool, each: &mut dyn FnMut(u32)) {
    let Some((_, range)) = memory.at(place) else {
        return;
    };
    let first = range
        .extents
        .partition_point(|extent| extent.at + extent.bytes <= place);
    let count = if rest { range.extents.len() } else { 1 };
    for extent in range.extents.iter().skip(first).take(count) {
        each(extent.number);
    }
}
