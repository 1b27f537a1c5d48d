//! Host memory that is made before it is needed ([`crate::spare`]): for a plan before the gate closes, and what a process in turns parks in
//! while it works.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use gpuos_memory::table::Tier;

use crate::memory::{self, Memory};
use crate::plan::Plan;
use crate::spare::Piece;
use crate::{gate, process, short};

/// Held while a piece is made: the end of the process waits for it.
static MAKING: Mutex<()> = Mutex::new(());

/// How long the mover makes pieces without looking at what else is to be done.
const SPELL: Duration = Duration::from_millis(50);

/// How long it does not look whether there is something to make, after there was nothing.
const REST: Duration = Duration::from_secs(1);

/// Keeps nothing and makes nothing from now on, or does again: the process is about to be saved as a whole.
pub(crate) fn pause(paused: bool) {
    short::pause(paused);
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

/// Makes pieces, and maps them where that is wanted, without the lock while the driver works, until they are there, nothing more has room or
/// so much time is over.
/// Answers whether it stopped for the time.
fn make_ready(wanted: &Wanted, mapped: bool, spell: Duration) -> bool {
    let begun = Instant::now();
    for ((device, bytes), count) in wanted {
        loop {
            if begun.elapsed() >= spell {
                return true;
            }
            let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
            if process::is_ending() || !short::may_keep() {
                return false;
            }
            let mut memory = memory::lock();
            let Some(there) = memory.devices.get_mut(device).and_then(Option::as_mut) else {
                break;
            };
            let ready = match mapped {
                true => there.spare.ready(*bytes),
                false => there.spare.count(*bytes),
            };
            if ready >= *count {
                break;
            }
            let kept = match mapped {
                true => there.spare.take_unmapped(*bytes),
                false => None,
            };
            let room = there.spare.bytes() + bytes <= there.host_room();
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
            if mapped {
                piece.map(*device);
            }
            let failed = mapped && piece.at == 0;
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
    let wanted = resident(&memory::lock(), plan.down.iter().copied());
    make_ready(&wanted, false, Duration::MAX);
}

/// A device of the process is shared in turns: what it parks in is made ahead.
static AHEAD: AtomicBool = AtomicBool::new(false);

/// The process parks in host memory when it is told to.
pub(crate) fn make_ahead() {
    AHEAD.store(true, Ordering::Relaxed);
}

/// Makes some of what the process will park in, while it works. `next` is when it looks again, where it had nothing to do. Answers whether
/// there is more to make.
pub(crate) fn look(next: &mut Instant) -> bool {
    if !AHEAD.load(Ordering::Relaxed) || Instant::now() < *next || gate::is_closed() {
        return false;
    }
    let more = is_plenty() && {
        let memory = memory::lock();
        let wanted = resident(&memory, 0..memory.numbers.len() as u32);
        drop(memory);
        make_ready(&wanted, true, SPELL)
    };
    if !more {
        *next = Instant::now() + REST;
    }
    more
}

/// Those of these extents that are in the memory of GPUs, by device and bytes.
fn resident(memory: &Memory, numbers: impl Iterator<Item = u32>) -> Wanted {
    let mut wanted = Wanted::new();
    for number in numbers {
        if let Some((device, Tier::Hbm, bytes)) = memory.movable(number) {
            *wanted.entry((device, bytes)).or_default() += 1;
        }
    }
    wanted
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
