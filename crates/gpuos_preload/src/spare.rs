//! Host memory that nothing is in and that is kept, as a driver makes it slowly: the kernel clears and pins each page, at some 4 GB/s where
//! copies run at 55 (docs/results/gpu.md). So what extents leave in host memory is for those that go there next, what will go there is made
//! before the gate closes, and a process in turns has made what it parks in before it is told to.
//!
//! It is within what the process has of host memory, it is the process's own, and it goes when memory is short.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use gpuos_driver::{Access, Location};
use gpuos_memory::table::Tier;

use crate::device::Device;
use crate::memory::{self, Memory};
use crate::plan::Plan;
use crate::process::BLOCK;
use crate::vmm::{self, Answer, Place};
use crate::{gate, mover, process, short};

/// Held while a piece is made: the end of the process waits for it.
static MAKING: Mutex<()> = Mutex::new(());

/// How long the mover makes pieces without looking at what else is to be done.
const SPELL: Duration = Duration::from_millis(50);

/// How long it does not look whether there is something to make, after there was nothing.
const REST: Duration = Duration::from_secs(1);

/// A piece of host memory.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) handle: u64,
    /// Where it is mapped, for a copy into it; 0: nowhere.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

impl Piece {
    /// Memory by its handle, mapped nowhere for a copy.
    pub(crate) fn new(handle: u64, bytes: u64) -> Piece {
        Piece {
            handle,
            at: 0,
            bytes,
        }
    }

    /// New memory.
    fn make(bytes: u64, place: Place) -> Answer<Piece> {
        vmm::create(bytes, place).map(|handle| Piece::new(handle, bytes))
    }

    /// Maps it for a device, at addresses of its own. Where that fails it is mapped when it is used.
    fn map(&mut self, device: i32) {
        let access = Access {
            location: Location::device(device),
            flags: Access::READ_WRITE,
        };
        let Ok(at) = vmm::reserve(self.bytes) else {
            return;
        };
        if vmm::map(at, self.bytes, self.handle, 0).is_err() {
            let _ = vmm::unreserve(at, self.bytes);
            return;
        }
        self.at = at;
        if vmm::access(at, self.bytes, &[access]).is_err() {
            self.unmap();
        }
    }

    /// It is mapped no more.
    pub(crate) fn unmap(&mut self) {
        if self.at != 0 {
            let _ = vmm::unmap(self.at, self.bytes);
            let _ = vmm::unreserve(self.at, self.bytes);
            self.at = 0;
        }
    }

    /// Gives it back to the driver.
    pub(crate) fn give(mut self) {
        self.unmap();
        vmm::release(self.handle);
    }
}

/// Pieces that are kept, by their size.
#[derive(Default)]
pub(crate) struct Spare {
    pieces: BTreeMap<u64, Vec<Piece>>,
    bytes: u64,
}

impl Spare {
    /// One of a size: one that is mapped before others.
    fn take(&mut self, bytes: u64) -> Option<Piece> {
        let list = self.pieces.get_mut(&bytes)?;
        let mapped = list.iter().rposition(|piece| piece.at != 0);
        let at = mapped.or_else(|| list.len().checked_sub(1))?;
        self.bytes -= bytes;
        Some(list.swap_remove(at))
    }

    /// One of a size that is mapped nowhere.
    fn take_unmapped(&mut self, bytes: u64) -> Option<Piece> {
        let list = self.pieces.get_mut(&bytes)?;
        let at = list.iter().rposition(|piece| piece.at == 0)?;
        self.bytes -= bytes;
        Some(list.swap_remove(at))
    }

    /// How many of a size are mapped.
    fn ready(&self, bytes: u64) -> usize {
        let list = self.pieces.get(&bytes);
        list.map_or(0, |list| list.iter().filter(|piece| piece.at != 0).count())
    }

    fn put(&mut self, piece: Piece) {
        self.bytes += piece.bytes;
        self.pieces.entry(piece.bytes).or_default().push(piece);
    }

    /// Gives one back of a size that is not wanted. Answers whether there was one.
    fn give_other(&mut self, wanted: impl Fn(u64) -> bool) -> bool {
        let mut lists = self.pieces.iter_mut();
        let other = lists.find(|(bytes, list)| !list.is_empty() && !wanted(**bytes));
        let Some(piece) = other.and_then(|(_, list)| list.pop()) else {
            return false;
        };
        self.bytes -= piece.bytes;
        piece.give();
        true
    }

    /// Gives pieces back until no more than `most` bytes are kept, large ones first.
    pub(crate) fn shrink(&mut self, most: u64) {
        while self.bytes > most {
            let Some(mut last) = self.pieces.last_entry() else {
                return;
            };
            match last.get_mut().pop() {
                Some(piece) => {
                    self.bytes -= piece.bytes;
                    piece.give();
                }
                None => drop(last.remove()),
            }
        }
    }
}

impl Device {
    /// What of host memory is granted and in no extent.
    fn host_room(&self) -> u64 {
        self.table.room(Tier::Host) * BLOCK
    }

    /// Host memory for an extent whose place there is in the books: kept, or new.
    pub(crate) fn host_memory(&mut self, device: i32, bytes: u64) -> Answer<Piece> {
        if let Some(piece) = self.spare.take(bytes) {
            return Ok(piece);
        }
        self.keep_within();
        let place = self.place(device, Tier::Host);
        Piece::make(bytes, place).or_else(|error| {
            if self.spare.bytes == 0 {
                return Err(error);
            }
            self.spare.shrink(0);
            Piece::make(bytes, place)
        })
    }

    /// What is kept is within what is granted.
    pub(crate) fn keep_within(&mut self) {
        let room = self.host_room();
        self.spare.shrink(room);
    }

    /// Keeps host memory that no extent has any more, where the process has that much.
    pub(crate) fn keep(&mut self, piece: Piece) {
        let none = short::is_short() || process::is_pinned() || PAUSED.load(Ordering::SeqCst);
        if none || self.spare.bytes + piece.bytes > self.host_room() {
            piece.give();
        } else {
            self.spare.put(piece);
        }
    }
}

/// Nothing is kept or made for now.
static PAUSED: AtomicBool = AtomicBool::new(false);

/// Keeps nothing and makes nothing from now on, or does again: the process is about to be saved as a whole.
pub(crate) fn pause(paused: bool) {
    PAUSED.store(paused, Ordering::SeqCst);
    if paused {
        let _made = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        drop_all();
    }
}

/// Waits until no piece is being made, for so long at most: the process ends.
pub(crate) fn wait(most: Duration) {
    let begun = Instant::now();
    while matches!(MAKING.try_lock(), Err(TryLockError::WouldBlock)) && begun.elapsed() < most {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Gives back all that is kept: memory is short.
pub(crate) fn drop_all() {
    let mut memory = memory::lock();
    for there in memory.devices.values_mut().flatten() {
        there.spare.shrink(0);
    }
}

/// How many pieces of each size are to be ready, by device.
type Wanted = BTreeMap<(i32, u64), usize>;

/// Makes and maps pieces, without the lock while the driver works, until they are there, nothing more has room or so much time is over.
/// Answers whether it stopped for the time.
fn make_ready(wanted: &Wanted, spell: Duration) -> bool {
    let begun = Instant::now();
    for ((device, bytes), count) in wanted {
        loop {
            if begun.elapsed() >= spell {
                return true;
            }
            let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
            let paused = PAUSED.load(Ordering::SeqCst);
            if paused || mover::is_stopping() || process::is_pinned() || short::is_short() {
                return false;
            }
            let mut memory = memory::lock();
            let Some(there) = memory.devices.get_mut(device).and_then(Option::as_mut) else {
                break;
            };
            if there.spare.ready(*bytes) >= *count {
                break;
            }
            let kept = there.spare.take_unmapped(*bytes);
            let room = there.spare.bytes + bytes <= there.host_room();
            let place = there.place(*device, Tier::Host);
            drop(memory);
            let made = match kept {
                Some(piece) => Ok(piece),
                None if !room => {
                    let mut memory = memory::lock();
                    let there = memory.devices.get_mut(device).and_then(Option::as_mut);
                    let wanted = |bytes| wanted.contains_key(&(*device, bytes));
                    match there.is_some_and(|there| there.spare.give_other(wanted)) {
                        true => continue,
                        false => break,
                    }
                }
                None => Piece::make(*bytes, place),
            };
            let Ok(mut piece) = made else { return false };
            piece.map(*device);
            let failed = piece.at == 0;
            let mut memory = memory::lock();
            match memory.devices.get_mut(device).and_then(Option::as_mut) {
                Some(there) => there.keep(piece),
                None => piece.give(),
            }
            if failed {
                break;
            }
        }
    }
    false
}

/// Has ready what extents of a plan go to: the gate is open still.
pub(crate) fn prepare(plan: &Plan) {
    let mut wanted = Wanted::new();
    {
        let memory = memory::lock();
        for number in &plan.down {
            if let Some((device, _, bytes)) = memory.movable(*number) {
                *wanted.entry((device, bytes)).or_default() += 1;
            }
        }
    }
    make_ready(&wanted, Duration::MAX);
}

/// A device of the process is shared in turns: what it parks in is made ahead.
static AHEAD: AtomicBool = AtomicBool::new(false);

/// The process parks in host memory when it is told to.
pub(crate) fn make_ahead() {
    AHEAD.store(true, Ordering::Relaxed);
}

/// Makes some of what the process will park in, while it works. `next` is when it looks again, where it had nothing to do. Answers whether
/// there is more to make.
pub(crate) fn ahead(next: &mut Instant) -> bool {
    if !AHEAD.load(Ordering::Relaxed) || Instant::now() < *next || gate::is_closed() {
        return false;
    }
    let more = is_plenty() && {
        let wanted = memory::lock().resident_sizes();
        make_ready(&wanted, SPELL)
    };
    if !more {
        *next = Instant::now() + REST;
    }
    more
}

impl Memory {
    /// Extents in the memory of GPUs, by device and bytes.
    fn resident_sizes(&self) -> Wanted {
        let mut wanted = Wanted::new();
        for number in 0..self.numbers.len() as u32 {
            if let Some((device, Tier::Hbm, bytes)) = self.movable(number) {
                *wanted.entry((device, bytes)).or_default() += 1;
            }
        }
        wanted
    }
}

/// Whether a quarter of the host's memory could be had: what is made ahead is not used yet, and others' need goes first.
fn is_plenty() -> bool {
    std::fs::read_to_string("/proc/meminfo").is_ok_and(|text| plenty(&text))
}

fn plenty(meminfo: &str) -> bool {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    match (kib("MemTotal:"), kib("MemAvailable:")) {
        (Some(total), Some(available)) => available >= total / 4,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::plenty;

    #[test]
    fn nothing_is_made_ahead_where_memory_is_not_plenty() {
        let text = |total: u64, available: u64| {
            format!("MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n")
        };
        assert!(plenty(&text(100, 25)));
        assert!(!plenty(&text(100, 24)));
        assert!(!plenty("MemTotal: 100 kB\n"));
        assert!(!plenty(""));
    }
}
