//! Parking: everything leaves the memory of GPUs, and nothing runs until it is the process's turn again.
//!
//! The gate stays sealed meanwhile, so calls that give work wait. Nobody ends a context then, for that goes through the gate as well: so
//! the mover's lock is held while the gate closes, and not while the process is parked, when a program that ends a context may have it.
//!
//! What goes to host memory that was made and mapped ahead stays mapped there alone: to enter it into the GPU's page table at the program's addresses
//! takes about as long as the copy, and until the turn nobody looks at these. What has no room when the turn comes is mapped there then.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpuos_memory::table::Tier;

use crate::memory::{self, Memory};
use crate::mutant::{self, Mutant};
use crate::{gate, mover, ordered, process};

/// Between two tries to close the gate.
const AGAIN: Duration = Duration::from_millis(2);
/// How long calls wait at the gate while work of before ends, at first and at most. A kernel that waits for one of them has it come in then.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(300);

/// What became of it.
#[derive(Default, Debug)]
pub(crate) struct Parked {
    /// Extents that have left the memory of GPUs, by number.
    pub(crate) extents: BTreeSet<u32>,
    /// Their bytes.
    pub(crate) moved: u64,
    /// Bytes that could not leave it.
    pub(crate) left: u64,
}

/// Closes the gate and waits for all work. The gate is sealed when this answers true. False: the process ends, or nothing of it can be
/// moved; the gate is as it was.
///
/// Work that was given at once may take longer than calls wait, and a program that gives more as soon as they are let in would never park: what
/// it took is waited for the next time.
pub(crate) fn close() -> bool {
    let mut patience = PATIENCE;
    loop {
        let begun = Instant::now();
        let patient = gate::Patient::of(patience);
        if seal() {
            return true;
        }
        drop(patient);
        if process::is_ending() || process::is_pinned() {
            return false;
        }
        if begun.elapsed() >= patience {
            patience = (begun.elapsed() * 2).min(MOST);
        }
        std::thread::sleep(AGAIN);
    }
}

/// Moves everything that is in the memory of GPUs to host memory. The gate is sealed.
pub(crate) fn leave() -> Parked {
    if mutant::is(Mutant::ParkNothing) {
        return Parked::default();
    }
    // All streams have come to what was freed in them.
    ordered::settle(&mut memory::lock(), false);
    let mut parked = Parked::default();
    memory::lock().parked = true;
    shift(Tier::Host, resident, &mut parked);
    parked.left = memory::lock().bytes_in_hbm();
    parked
}

/// Extents in the memory of GPUs of so many bytes together, or one more; `all`: every extent that can be moved, wherever it lies.
pub(crate) fn first(bytes: u64, all_of_them: bool) -> Vec<u32> {
    let memory = memory::lock();
    if all_of_them {
        return all(&memory).map(|(number, _)| number).collect();
    }
    some_of(resident(&memory), bytes)
}

/// The same of these, where they are in host memory.
pub(crate) fn first_of(extents: &BTreeSet<u32>, bytes: u64) -> Vec<u32> {
    some_of(of_these_on_host(&memory::lock(), extents), bytes)
}

fn some_of(extents: Vec<(i32, u32, u64)>, bytes: u64) -> Vec<u32> {
    let mut sum = 0;
    let more = |(_, number, of): (i32, u32, u64)| {
        let wanted = sum < bytes;
        sum += of;
        wanted.then_some(number)
    };
    extents.into_iter().map_while(more).collect()
}

/// Brings back what was in the memory of GPUs, as far as there is room, and opens the gate. Answers the bytes that came.
pub(crate) fn back(extents: &BTreeSet<u32>) -> u64 {
    let mut came = Parked::default();
    shift(
        Tier::Hbm,
        |memory| of_these_on_host(memory, extents),
        &mut came,
    );
    open();
    came.moved
}

/// Opens the gate with everything where it is: GPUs read it in place.
pub(crate) fn open() {
    let mut memory = memory::lock();
    memory.show_parked();
    memory.look_for_cold();
    drop(memory);
    gate::open();
}

/// Whether the program has no work under way. It may take as long as that work does.
pub(crate) fn settled() -> bool {
    !gate::is_used() && mover::settle(Duration::from_millis(1))
}

fn seal() -> bool {
    let Some(_busy) = mover::hold(Duration::MAX) else {
        return false;
    };
    let captures = || !memory::lock().captures.is_empty();
    if process::is_ending() || process::is_pinned() || captures() || !gate::close() {
        return false;
    }
    if !captures() && mover::drain() && gate::seal() {
        return true;
    }
    gate::open();
    false
}

/// Moves what `which` names to a tier, batch by batch, until nothing more goes.
fn shift(tier: Tier, which: impl Fn(&Memory) -> Vec<(i32, u32, u64)>, done: &mut Parked) {
    loop {
        // The lock is let go between two batches: what only asks goes on.
        let mut memory = memory::lock();
        let wanted = which(&memory);
        let devices: BTreeSet<i32> = wanted.iter().map(|(device, ..)| *device).collect();
        for device in devices {
            let own = wanted.iter().filter(|(of, ..)| *of == device);
            memory.shift(device, own.map(|(_, number, _)| *number), tier);
        }
        let before = done.extents.len();
        for (_, number, bytes) in wanted {
            let moved = memory
                .movable(number)
                .is_some_and(|(_, now, _)| now == tier);
            if moved && done.extents.insert(number) {
                done.moved += bytes;
            }
        }
        if done.extents.len() == before {
            return;
        }
    }
}

/// All extents that can be moved, with their device, tier and bytes.
fn all(memory: &Memory) -> impl Iterator<Item = (u32, (i32, Tier, u64))> {
    let numbers = 0..memory.numbers.len() as u32;
    numbers.filter_map(|number| Some((number, memory.movable(number)?)))
}

/// Those in the memory of GPUs.
fn resident(memory: &Memory) -> Vec<(i32, u32, u64)> {
    let there = all(memory).filter(|(_, (_, tier, _))| *tier == Tier::Hbm);
    there
        .map(|(number, (device, _, bytes))| (device, number, bytes))
        .collect()
}

/// Those of a set that are in host memory.
fn of_these_on_host(memory: &Memory, extents: &BTreeSet<u32>) -> Vec<(i32, u32, u64)> {
    let own = |number: &u32| {
        let (device, tier, bytes) = memory.movable(*number)?;
        (tier == Tier::Host).then_some((device, *number, bytes))
    };
    extents.iter().filter_map(own).collect()
}
