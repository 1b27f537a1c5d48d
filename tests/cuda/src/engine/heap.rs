//! Allocations: device memory (large ones have blocks of their own, small ones share them, as the
//! driver does it), memory of the host, managed memory, and what programs registered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{Answer, code};
use crate::engine::context::Context;
use crate::engine::driver::Driver;
use crate::memory::BLOCK;
use crate::space::{Backing, Mapping, Rights};

/// Allocations of at least so many bytes have blocks of their own.
const LARGE: u64 = 1 << 20;
/// Alignment of small allocations.
const SMALL: u64 = 512;

/// An allocation.
#[derive(Clone)]
pub(crate) struct Allocation {
    /// Bytes that were asked for.
    pub(crate) length: u64,
    pub(crate) kind: Kind,
    /// Handle of the context that it was made in.
    pub(crate) context: u64,
    /// Index of the device of that context.
    pub(crate) device: usize,
    /// A number that no other allocation of the process had.
    pub(crate) id: u64,
    /// Flags of host memory.
    pub(crate) flags: u32,
}

/// What kind of allocation it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Device memory, with the handle of its pool or 0.
    Device(u64),
    /// Host memory of ours.
    Host,
    /// Memory of the program that it registered.
    Registered,
    /// Managed memory.
    Managed,
}

/// All allocations of the process by their addresses.
pub(crate) struct Allocations(Mutex<(u64, BTreeMap<u64, Allocation>)>);

impl Allocations {
    pub(crate) const fn new() -> Allocations {
        Allocations(Mutex::new((0, BTreeMap::new())))
    }

    fn add(&self, address: u64, length: u64, kind: Kind, context: &Context, flags: u32) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.0 += 1;
        let allocation = Allocation {
            length,
            kind,
            context: context.handle,
            device: context.device.index,
            id: all.0,
            flags,
        };
        all.1.insert(address, allocation);
    }

    /// The allocation that holds an address, and where it begins.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, Allocation)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, allocation) = all.1.range(..=address).next_back()?;
        (address - start < allocation.length).then(|| (*start, allocation.clone()))
    }

    /// Takes the allocation at this address out, if it is `wanted`.
    fn take(&self, address: u64, wanted: impl Fn(Kind) -> bool) -> Option<Allocation> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.1.get(&address).is_some_and(|a| wanted(a.kind));
        if found { all.1.remove(&address) } else { None }
    }

    /// Bytes of the allocations of a pool.
    pub(crate) fn of_pool(&self, pool: u64) -> u64 {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.1.values().filter(|a| a.kind == Kind::Device(pool));
        own.map(|allocation| allocation.length).sum()
    }

    fn of_context(&self, context: u64) -> Vec<(u64, Allocation)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.1.iter().filter(|(_, a)| a.context == context);
        own.map(|(address, a)| (*address, a.clone())).collect()
    }
}

/// Blocks that small allocations of a context share: for each, its gaps by their offsets.
pub(crate) struct Heap(Mutex<BTreeMap<u64, BTreeMap<u64, u64>>>);

impl Heap {
    pub(crate) fn new() -> Heap {
        Heap(Mutex::new(BTreeMap::new()))
    }

    fn small(&self, driver: &Driver, context: &Context, length: u64) -> Answer<u64> {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let length = length.next_multiple_of(SMALL);
        for (start, gaps) in blocks.iter_mut() {
            let gap = gaps.iter().find(|(_, size)| **size >= length);
            if let Some((offset, size)) = gap.map(|(offset, size)| (*offset, *size)) {
                gaps.remove(&offset);
                if size > length {
                    gaps.insert(offset + length, size - length);
                }
                return Ok(start + offset);
            }
        }
        let start = backed(driver, context, BLOCK)?;
        blocks.insert(start, BTreeMap::from([(length, BLOCK - length)]));
        Ok(start)
    }

    /// Gives a small allocation back; the address of its block when nothing else is in it.
    fn give(&self, address: u64, length: u64) -> Option<u64> {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, gaps) = blocks.range_mut(..=address).next_back()?;
        let start = *start;
        let mut offset = address - start;
        let mut size = length.next_multiple_of(SMALL);
        if let Some(next) = gaps.remove(&(offset + size)) {
            size += next;
        }
        let before = gaps
            .range(..offset)
            .next_back()
            .map(|(at, len)| (*at, *len));
        if let Some((at, len)) = before.filter(|(at, len)| at + len == offset) {
            gaps.remove(&at);
            (offset, size) = (at, size + len);
        }
        gaps.insert(offset, size);
        let empty = size == BLOCK;
        if empty {
            blocks.remove(&start);
        }
        empty.then_some(start)
    }
}

/// Addresses with device memory behind them.
fn backed(driver: &Driver, context: &Context, length: u64) -> Answer<u64> {
    let physical = context.device.memory.take(length)?;
    let address = driver.space.reserve(length, BLOCK, 0)?;
    let mapping = Mapping {
        length,
        backing: Backing::Physical(Arc::new(physical), 0),
        rights: Rights {
            owner: Some(context.device.index),
            ..Rights::default()
        },
    };
    driver.space.map(address, mapping)?;
    Ok(address)
}

fn unbacked(driver: &Driver, address: u64, length: u64) -> Answer<()> {
    driver.space.unmap(address, length)?;
    driver.space.free(address, length)
}

/// Allocates device memory, of a pool unless that is 0.
pub(crate) fn device(driver: &Driver, context: &Context, length: u64, pool: u64) -> Answer<u64> {
    if length == 0 {
        return Err(code::INVALID);
    }
    let address = match length < LARGE {
        true => context.heap.small(driver, context, length)?,
        false => {
            let whole = length.checked_next_multiple_of(BLOCK);
            backed(driver, context, whole.ok_or(code::OUT_OF_MEMORY)?)?
        }
    };
    driver
        .allocations
        .add(address, length, Kind::Device(pool), context, 0);
    Ok(address)
}

/// Frees device or managed memory.
pub(crate) fn free(driver: &Driver, address: u64) -> Answer<()> {
    let wanted = |kind| matches!(kind, Kind::Device(_) | Kind::Managed);
    let gone = driver.allocations.take(address, wanted);
    let gone = gone.ok_or(code::INVALID)?;
    let_go(driver, address, &gone)
}

fn let_go(driver: &Driver, address: u64, gone: &Allocation) -> Answer<()> {
    match gone.kind {
        Kind::Device(_) if gone.length < LARGE => {
            let Ok(context) = driver.contexts.get(gone.context) else {
                return Ok(());
            };
            match context.heap.give(address, gone.length) {
                Some(block) => unbacked(driver, block, BLOCK),
                None => Ok(()),
            }
        }
        Kind::Device(_) => unbacked(driver, address, gone.length.next_multiple_of(BLOCK)),
        Kind::Registered => driver.space.unmap(address, gone.length).map(|_| ()),
        Kind::Host | Kind::Managed => {
            let whole = gone.length.next_multiple_of(PAGE);
            driver.space.unmap(address, whole)?;
            // SAFETY: `host` made this mapping with that length, and kernels reach it no more. That the
            // program does not touch what it freed is its part.
            unsafe { libc::munmap(address as *mut libc::c_void, whole as usize) };
            Ok(())
        }
    }
}

const PAGE: u64 = 4096;

/// Allocates memory of the host that devices reach at the same address.
pub(crate) fn host(
    driver: &Driver,
    context: &Context,
    length: u64,
    kind: Kind,
    flags: u32,
) -> Answer<u64> {
    let whole = length.checked_next_multiple_of(PAGE).filter(|l| *l > 0);
    let whole = whole.ok_or(code::INVALID)?;
    // SAFETY: a fresh mapping at an address that the kernel chooses.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            whole as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(code::OUT_OF_MEMORY);
    }
    let address = memory as u64;
    driver.space.map(address, of_process(whole))?;
    driver
        .allocations
        .add(address, length, kind, context, flags);
    Ok(address)
}

fn of_process(length: u64) -> Mapping {
    Mapping {
        length,
        backing: Backing::Process,
        rights: Rights {
            read: u32::MAX,
            write: u32::MAX,
            host: 3,
            owner: None,
        },
    }
}

/// Registers memory of the program.
pub(crate) fn register(
    driver: &Driver,
    context: &Context,
    address: u64,
    length: u64,
    flags: u32,
) -> Answer<()> {
    if address == 0 || length == 0 || driver.space.holds(address) {
        return Err(code::INVALID);
    }
    let mapped = driver.space.map(address, of_process(length));
    mapped.map_err(|_| code::REGISTERED)?;
    driver
        .allocations
        .add(address, length, Kind::Registered, context, flags);
    Ok(())
}

/// Frees or unregisters memory of the host.
pub(crate) fn release(driver: &Driver, address: u64, kind: Kind) -> Answer<()> {
    let gone = driver.allocations.take(address, |found| found == kind);
    let_go(driver, address, &gone.ok_or(code::INVALID)?)
}

/// Frees all that was allocated in a context.
pub(crate) fn clear(driver: &Driver, context: &Context) {
    for (address, allocation) in driver.allocations.of_context(context.handle) {
        let gone = driver
            .allocations
            .take(address, |kind| kind == allocation.kind);
        // Small ones go with their blocks, below.
        let small = matches!(allocation.kind, Kind::Device(_)) && allocation.length < LARGE;
        if gone.is_some() && !small {
            let _ = let_go(driver, address, &allocation);
        }
    }
    let mut blocks = context
        .heap
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    for (block, _) in std::mem::take(&mut *blocks) {
        let _ = unbacked(driver, block, BLOCK);
    }
}
