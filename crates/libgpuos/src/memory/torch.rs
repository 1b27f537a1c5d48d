//! Segments of PyTorch's memory pools: objects that are held from allocation on, as PyTorch uses them at any time. Paused, they are held by nobody, and keep their
//! addresses.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuos_fabric::{Fabric, Failure, ObjectId, Span, TicketId, Why};

use super::opened;

/// Devices that can be named.
const MOST: usize = 64;
/// For a segment that others have to make room for: it is there as soon as they were moved.
const LIMIT: Duration = Duration::from_secs(60);

/// The handle for each device; 0: none.
static CHOSEN: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

struct Segment {
    mem: u64,
    device: usize,
    object: ObjectId,
    bytes: u64,
    /// `None`: it is paused.
    ticket: Option<TicketId>,
}

static SEGMENTS: Mutex<BTreeMap<usize, Segment>> = Mutex::new(BTreeMap::new());

fn segments() -> MutexGuard<'static, BTreeMap<usize, Segment>> {
    SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(Why::Wrong, text)
}

fn number(device: i32) -> Result<usize, Failure> {
    let device = usize::try_from(device).ok().filter(|device| *device < MOST);
    device.ok_or_else(|| wrong("a device that cannot be"))
}

/// A device's segments come from this handle from now on; 0: from none.
pub(super) fn select(mem: u64, device: i32) -> Result<(), Failure> {
    if mem != 0 {
        opened::get(mem)?;
    }
    CHOSEN[number(device)?].store(mem, Ordering::Release);
    Ok(())
}

fn chosen(device: usize) -> Result<u64, Failure> {
    match CHOSEN[device].load(Ordering::Acquire) {
        0 => Err(wrong(
            "no memory was chosen for this device: gpuos_torch_use does",
        )),
        mem => Ok(mem),
    }
}

fn take(fabric: &Fabric, object: ObjectId, bytes: u64) -> Result<TicketId, Failure> {
    let free = fabric.unheld()?;
    if bytes > free {
        return Err(Failure::new(
            Why::Full,
            format!("{bytes} bytes, and {free} of GPU memory are not held"),
        ));
    }
    let span = Span {
        offset: 0,
        length: bytes,
    };
    let ticket = fabric.acquire(object, span, true, None)?;
    if let Err(failure) = fabric.wait(ticket, Some(LIMIT)) {
        // Where the time is over it still waits.
        let _ = fabric.release(ticket);
        return Err(failure);
    }
    Ok(ticket)
}

/// Allocates a segment, and gives its address.
pub(super) fn malloc(size: isize, device: i32) -> Result<usize, Failure> {
    let device = number(device)?;
    let mem = chosen(device)?;
    let fabric = opened::get(mem)?;
    let bytes = u64::try_from(size).map_err(|_| wrong("a negative size"))?;
    let object = fabric.alloc(bytes)?;
    let taken = take(&fabric, object, bytes);
    let ticket = match taken {
        Ok(ticket) => ticket,
        Err(failure) => {
            fabric.free(object)?;
            return Err(failure);
        }
    };
    let address = fabric.place(object)?.0 as usize;
    let segment = Segment {
        mem,
        device,
        object,
        bytes,
        ticket: Some(ticket),
    };
    segments().insert(address, segment);
    Ok(address)
}

/// Frees a segment.
pub(super) fn free(address: usize, device: i32) -> Result<(), Failure> {
    if address == 0 {
        return Ok(());
    }
    // In a child of `fork` this ends here, before a lock that another thread may have had.
    opened::get(chosen(number(device)?)?)?;
    let segment = segments().remove(&address);
    let segment = segment.ok_or_else(|| wrong("no segment begins at this address"))?;
    let fabric = opened::get(segment.mem)?;
    // PyTorch uses it on streams that nobody tells of.
    fabric.drain()?;
    if let Some(ticket) = segment.ticket {
        fabric.release(ticket)?;
    }
    fabric.free(segment.object)
}

/// Lets a device's segments leave GPU memory.
pub(super) fn pause(device: i32) -> Result<(), Failure> {
    let device = number(device)?;
    let fabric = opened::get(chosen(device)?)?;
    fabric.drain()?;
    let mut segments = segments();
    for segment in segments.values_mut().filter(|it| it.device == device) {
        if let Some(ticket) = segment.ticket.take() {
            opened::get(segment.mem)?.release(ticket)?;
        }
    }
    Ok(())
}

/// Has them in GPU memory again.
pub(super) fn resume(device: i32) -> Result<(), Failure> {
    let device = number(device)?;
    opened::get(chosen(device)?)?;
    let mut segments = segments();
    for segment in segments.values_mut().filter(|it| it.device == device) {
        if segment.ticket.is_none() {
            let fabric = opened::get(segment.mem)?;
            segment.ticket = Some(take(&fabric, segment.object, segment.bytes)?);
        }
    }
    Ok(())
}
