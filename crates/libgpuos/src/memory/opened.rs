//! Which fabric a `gpuos_mem *` is.
//!
//! It is a number and no address: a wrong one, or one that was closed, is an error and no crash. The table of them takes no lock that another thread may have
//! had when the process was forked.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gpuos_fabric::{Fabric, Failure, Why};

/// Fabrics that can be open at once.
const MOST: usize = 256;
/// No address of a program has these first bits.
const MARK: u64 = 0x6770 << 48;

struct Slot {
    /// The process that has it; 0: none.
    owner: AtomicU32,
    /// How many there were before in this place.
    times: AtomicU32,
    fabric: Mutex<Option<Arc<Fabric>>>,
}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        owner: AtomicU32::new(0),
        times: AtomicU32::new(0),
        fabric: Mutex::new(None),
    }
}; MOST];

thread_local! {
    static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

fn wrong(text: &str) -> Failure {
    Failure::new(Why::Wrong, text)
}

/// Notes a fabric, and gives its number.
pub(super) fn add(fabric: Fabric) -> Result<u64, Failure> {
    let own = std::process::id();
    let taken = |slot: &&Slot| {
        let taken = slot
            .owner
            .compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok()
    };
    let index = SLOTS.iter().position(|slot| taken(&slot));
    let index = index.ok_or_else(|| wrong("256 are open: close one first"))?;
    let slot = &SLOTS[index];
    *slot.fabric.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(fabric));
    let times = u64::from(slot.times.load(Ordering::Acquire));
    Ok(MARK | times << 8 | index as u64)
}

fn slot(number: u64) -> Result<&'static Slot, Failure> {
    if number == 0 {
        return Err(wrong("a NULL handle: gpuos_mem_open gives one"));
    }
    let slot = &SLOTS[(number & 0xFF) as usize];
    let times = (number & !MARK) >> 8;
    let owner = slot.owner.load(Ordering::Acquire);
    if number & MARK != MARK || times != u64::from(slot.times.load(Ordering::Acquire)) || owner == 0
    {
        return Err(wrong("no handle of gpuos_mem_open, or one that was closed"));
    }
    if owner != std::process::id() {
        return Err(Failure::new(
            Why::Forked,
            "this process is a child of the one that opened it, and a child has no GPU: open one of its own after fork and exec",
        ));
    }
    Ok(slot)
}

/// The fabric of a number.
pub(super) fn get(number: u64) -> Result<Arc<Fabric>, Failure> {
    let fabric = &slot(number)?.fabric;
    let fabric = fabric.lock().unwrap_or_else(PoisonError::into_inner);
    let fabric = fabric.as_ref().map(Arc::clone);
    fabric.ok_or_else(|| wrong("no handle of gpuos_mem_open, or one that was closed"))
}

/// Closes one; it ends when the last call that uses it has returned.
pub(super) fn close(number: u64) -> Result<(), Failure> {
    let slot = slot(number)?;
    let mut fabric = slot.fabric.lock().unwrap_or_else(PoisonError::into_inner);
    let fabric = fabric.take();
    slot.times.fetch_add(1, Ordering::AcqRel);
    slot.owner.store(0, Ordering::Release);
    drop(fabric);
    Ok(())
}

/// `GPUOS_MEM_ERROR` and so on.
fn code(why: Why) -> c_int {
    match why {
        Why::Wrong => -1,
        Why::Full => -2,
        Why::Timeout => -3,
        Why::Poisoned => -4,
        Why::NoDriver => -5,
        Why::Forked => -6,
        Why::File => -7,
    }
}

/// Keeps why a call of this thread failed, and gives the code.
pub(super) fn failed(call: &str, failure: &Failure) -> c_int {
    // A thread that is ending has no place for it any more.
    let _ = MESSAGE.try_with(|message| {
        *message.borrow_mut() = format!("{call}: {}", failure.text);
    });
    code(failure.why)
}

/// Why the last call of this thread that failed did.
pub(super) fn message() -> String {
    let told = MESSAGE.try_with(|message| message.borrow().clone());
    told.unwrap_or_default()
}
