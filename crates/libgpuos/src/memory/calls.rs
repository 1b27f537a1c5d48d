//! The functions of `include/gpuos.h` about memory, but for those of `saves`. No panic leaves them: it becomes `GPUOS_MEM_ERROR`.

use std::ffi::{OsStr, c_char, c_int, c_long, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuos_fabric::{Advice, Event, Fabric, Failure, ObjectId, Options, Span, TicketId, Tier, Why};

use super::place::{give, give_sized, give_text, sized, text};
use super::{opened, torch};

/// `GPUOS_MEM_HOST`.
const HOST: i32 = -1;
/// `GPUOS_MEM_READ`, `GPUOS_MEM_WRITE`.
const READ: c_uint = 1;
const WRITE: c_uint = 2;
/// `GPUOS_MEM_NO_STREAM`.
const NO_STREAM: usize = usize::MAX;

/// `gpuos_mem_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemOptions {
    size: usize,
    device: i32,
    flags: u32,
    hbm: u64,
    host: u64,
    file: u64,
    folder: *const c_char,
    extent: u64,
    policy: *const c_char,
}

/// `gpuos_mem_stats`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MemStats {
    size: usize,
    extent: u64,
    hbm_used: u64,
    hbm_limit: u64,
    host_used: u64,
    host_limit: u64,
    file_used: u64,
    file_limit: u64,
    objects: u64,
    tickets: u64,
    hits: u64,
    brought: u64,
    ahead: u64,
    copied: u64,
    dropped: u64,
    filed: u64,
    poisoned: u64,
    direct: u64,
    saves: u64,
    saved: u64,
    saved_hbm: u64,
    saved_shared: u64,
}

/// `gpuos_mem_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MemEvent {
    size: usize,
    kind: u32,
    tier: u32,
    bytes: u64,
}

pub(super) fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(Why::Wrong, text)
}

/// Runs a call; what it fails with is kept for `gpuos_mem_message`.
pub(super) fn run(call: &str, body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    let done = catch_unwind(AssertUnwindSafe(body));
    let done = done.unwrap_or_else(|_| Err(wrong("an error of gpuos; the call did nothing more")));
    done.unwrap_or_else(|failure| opened::failed(call, &failure))
}

pub(super) fn on(
    call: &str,
    mem: u64,
    body: impl FnOnce(&Fabric) -> Result<c_int, Failure>,
) -> c_int {
    run(call, || {
        let fabric = opened::get(mem)?;
        body(&fabric)
    })
}

fn limit(ms: c_long) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// Opens memory in tiers.
///
/// # Safety
/// `options` is NULL or as large as it says, with texts that end with a NUL; `mem` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_open(options: *const MemOptions, mem: *mut u64) -> c_int {
    run("gpuos_mem_open", || {
        // SAFETY: as this function's own; the structure is of numbers and pointers.
        let given = unsafe { sized(options) }?;
        if given.flags != 0 {
            return Err(wrong("unknown flags: give 0"));
        }
        // SAFETY: as this function's own.
        unsafe { give(mem, 0) }?;
        // SAFETY: as this function's own.
        let (folder, policy) = unsafe { (text(given.folder), text(given.policy)) };
        let device = match given.device {
            HOST => None,
            number => Some(number),
        };
        let fabric = Fabric::open(&Options {
            device,
            hbm: given.hbm,
            host: given.host,
            file: given.file,
            folder: folder.map(|path| PathBuf::from(OsStr::from_bytes(path.to_bytes()))),
            extent: given.extent,
            policy: policy.map_or(String::new(), |name| name.to_string_lossy().into_owned()),
        })?;
        let number = opened::add(fabric)?;
        // SAFETY: as this function's own.
        unsafe { give(mem, number) }?;
        Ok(0)
    })
}

/// Ends it, with all its objects.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_mem_close(mem: u64) -> c_int {
    run("gpuos_mem_close", || {
        if mem != 0 {
            opened::close(mem)?;
        }
        Ok(0)
    })
}

/// Why the last call of this thread that failed did.
///
/// # Safety
/// `message` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_message(message: *mut c_char, size: usize) -> c_int {
    let told = catch_unwind(opened::message).unwrap_or_default();
    // SAFETY: as this function's own.
    match unsafe { give_text(message, size, &told, true) } {
        Ok(()) => 0,
        Err(_) => -1,
    }
}

/// Makes an object.
///
/// # Safety
/// `object` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_alloc(
    mem: u64,
    size: u64,
    flags: c_uint,
    object: *mut u64,
) -> c_int {
    on("gpuos_mem_alloc", mem, |fabric| {
        if flags != 0 {
            return Err(wrong("unknown flags: give 0"));
        }
        // SAFETY: as this function's own.
        unsafe { give(object, 0) }?;
        let made = fabric.alloc(size)?;
        // SAFETY: as this function's own.
        unsafe { give(object, made.0) }?;
        Ok(0)
    })
}

/// Makes an object of a file.
///
/// # Safety
/// `path` is NULL or ends with a NUL; `object` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_map(mem: u64, path: *const c_char, object: *mut u64) -> c_int {
    on("gpuos_mem_map", mem, |fabric| {
        // SAFETY: as this function's own.
        let path = unsafe { text(path) }.ok_or_else(|| wrong("a NULL path"))?;
        // SAFETY: as this function's own.
        unsafe { give(object, 0) }?;
        let made = fabric.map(Path::new(OsStr::from_bytes(path.to_bytes())))?;
        // SAFETY: as this function's own.
        unsafe { give(object, made.0) }?;
        Ok(0)
    })
}

/// Where an object is, and its size.
///
/// # Safety
/// `address` and `size` are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_place(
    mem: u64,
    object: u64,
    address: *mut u64,
    size: *mut u64,
) -> c_int {
    on("gpuos_mem_place", mem, |fabric| {
        let (at, bytes) = fabric.place(ObjectId(object))?;
        for (place, value) in [(address, at), (size, bytes)] {
            if !place.is_null() {
                // SAFETY: as this function's own.
                unsafe { give(place, value) }?;
            }
        }
        Ok(0)
    })
}

/// Asks for a part of an object in GPU memory.
///
/// # Safety
/// `ticket` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_acquire(
    mem: u64,
    object: u64,
    offset: u64,
    length: u64,
    access: c_uint,
    stream: *mut c_void,
    ticket: *mut u64,
) -> c_int {
    on("gpuos_mem_acquire", mem, |fabric| {
        if access == 0 || access & !(READ | WRITE) != 0 {
            return Err(wrong("access is GPUOS_MEM_READ, GPUOS_MEM_WRITE or both"));
        }
        // SAFETY: as this function's own. Before anything is held that nobody could release.
        unsafe { give(ticket, 0) }?;
        let stream = Some(stream as usize).filter(|stream| *stream != NO_STREAM);
        let made = fabric.acquire(
            ObjectId(object),
            Span { offset, length },
            access & WRITE != 0,
            stream.map(|stream| stream as u64),
        )?;
        // SAFETY: as this function's own.
        unsafe { give(ticket, made.0) }?;
        Ok(0)
    })
}

/// Waits until what a ticket asks for is there.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_mem_wait(mem: u64, ticket: u64, limit_ms: c_long) -> c_int {
    on("gpuos_mem_wait", mem, |fabric| {
        fabric.wait(TicketId(ticket), limit(limit_ms))?;
        Ok(0)
    })
}

/// Gives a ticket back.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_mem_release(mem: u64, ticket: u64) -> c_int {
    on("gpuos_mem_release", mem, |fabric| {
        fabric.release(TicketId(ticket))?;
        Ok(0)
    })
}

/// Asks for a part in advance.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_mem_prefetch(mem: u64, object: u64, offset: u64, length: u64) -> c_int {
    on("gpuos_mem_prefetch", mem, |fabric| {
        fabric.prefetch(ObjectId(object), Span { offset, length })?;
        Ok(0)
    })
}

/// Says what the program knows about a part.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_mem_advise(
    mem: u64,
    object: u64,
    offset: u64,
    length: u64,
    advice: c_int,
) -> c_int {
    on("gpuos_mem_advise", mem, |fabric| {
        let advice = match advice {
            0 => Advice::Normal,
            1 => Advice::Hot,
            2 => Advice::Cold,
            3 => Advice::ReadMostly,
            4 => Advice::Pin,
            other => {
                return Err(wrong(format!(
                    "no advice {other}: they are GPUOS_MEM_NORMAL, HOT, COLD, READ_MOSTLY and PIN"
                )));
            }
        };
        fabric.advise(ObjectId(object), Span { offset, length }, advice)?;
        Ok(0)
    })
}

/// Reads bytes without moving them.
///
/// # Safety
/// `buffer` is NULL or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_read(
    mem: u64,
    object: u64,
    offset: u64,
    buffer: *mut c_void,
    length: usize,
) -> c_int {
    on("gpuos_mem_read", mem, |fabric| {
        if buffer.is_null() || length > isize::MAX as usize {
            return Err(wrong(
                "a NULL buffer, or more bytes than there are addresses",
            ));
        }
        // SAFETY: the caller names the room; bytes may have any value.
        let to = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
        fabric.read(ObjectId(object), offset, to)?;
        Ok(0)
    })
}

/// Writes bytes.
///
/// # Safety
/// `buffer` is NULL or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_write(
    mem: u64,
    object: u64,
    offset: u64,
    buffer: *const c_void,
    length: usize,
) -> c_int {
    on("gpuos_mem_write", mem, |fabric| {
        if buffer.is_null() || length > isize::MAX as usize {
            return Err(wrong(
                "a NULL buffer, or more bytes than there are addresses",
            ));
        }
        // SAFETY: the caller names the bytes, and does not change them meanwhile.
        let from = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) };
        fabric.write(ObjectId(object), offset, from)?;
        Ok(0)
    })
}

/// Frees an object.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_mem_free(mem: u64, object: u64) -> c_int {
    on("gpuos_mem_free", mem, |fabric| {
        fabric.free(ObjectId(object))?;
        Ok(0)
    })
}

/// Other limits.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_mem_limit(mem: u64, hbm: u64, host: u64, file: u64) -> c_int {
    on("gpuos_mem_limit", mem, |fabric| {
        fabric.limit([hbm, host, file])?;
        Ok(0)
    })
}

/// The descriptor that tells of pressure.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_mem_pressure_fd(mem: u64) -> c_int {
    on("gpuos_mem_pressure_fd", mem, Fabric::descriptor)
}

/// The oldest event.
///
/// # Safety
/// `event` is NULL or as large as it says, and may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_pressure(mem: u64, event: *mut MemEvent) -> c_int {
    on("gpuos_mem_pressure", mem, |fabric| {
        // SAFETY: as this function's own. An event that cannot be given is not taken.
        unsafe { sized(event.cast_const()) }?;
        let Some((found, bytes)) = fabric.event()? else {
            return Ok(0);
        };
        let (kind, tier) = match found {
            Event::Wanted(_) => (1, Tier::Hbm),
            Event::Over(tier, _) => (2, tier),
            Event::Less(tier, _) => (3, tier),
        };
        let told = MemEvent {
            size: 0,
            kind,
            tier: tier as u32,
            bytes,
        };
        // SAFETY: as this function's own.
        unsafe { give_sized(event, told) }?;
        Ok(1)
    })
}

/// What is used, and what was done.
///
/// # Safety
/// `stats` is NULL or as large as it says, and may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuos_mem_get_stats(mem: u64, stats: *mut MemStats) -> c_int {
    on("gpuos_mem_get_stats", mem, |fabric| {
        let all = fabric.stats()?;
        let [hbm_used, host_used, file_used] = all.used;
        let [hbm_limit, host_limit, file_limit] = all.limit;
        let told = MemStats {
            size: 0,
            extent: all.extent,
            hbm_used,
            hbm_limit,
            host_used,
            host_limit,
            file_used,
            file_limit,
            objects: all.objects,
            tickets: all.tickets,
            hits: all.counts.hits,
            brought: all.counts.brought,
            ahead: all.counts.ahead,
            copied: all.counts.copied,
            dropped: all.counts.dropped,
            filed: all.counts.filed,
            poisoned: all.counts.poisoned,
            direct: all.direct.into(),
            saves: all.saves.times,
            saved: all.saves.bytes,
            saved_hbm: all.saves.near,
            saved_shared: all.saves.shared,
        };
        // SAFETY: as this function's own.
        unsafe { give_sized(stats, told) }?;
        Ok(0)
    })
}

/// Has PyTorch's memory of a device come from here.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_torch_use(mem: u64, device: c_int) -> c_int {
    run("gpuos_torch_use", || torch::select(mem, device).map(|()| 0))
}

/// Allocates a segment, as `CUDAPluggableAllocator` wants it. NULL: there is no room, or another error.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_torch_malloc(
    size: isize,
    device: c_int,
    _stream: *mut c_void,
) -> *mut c_void {
    let mut address = 0_usize;
    run("gpuos_torch_malloc", || {
        address = torch::malloc(size, device)?;
        Ok(0)
    });
    address as *mut c_void
}

/// Frees a segment.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_torch_free(
    address: *mut c_void,
    _size: isize,
    device: c_int,
    _stream: *mut c_void,
) {
    run("gpuos_torch_free", || {
        torch::free(address as usize, device).map(|()| 0)
    });
}

/// Lets all segments of a device leave GPU memory.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_torch_pause(device: c_int) -> c_int {
    run("gpuos_torch_pause", || torch::pause(device).map(|()| 0))
}

/// Has them all in GPU memory again.
#[unsafe(no_mangle)]
pub extern "C" fn gpuos_torch_resume(device: c_int) -> c_int {
    run("gpuos_torch_resume", || torch::resume(device).map(|()| 0))
}
