//! The driver's functions that this library calls itself, under names of their own. Each takes and gives values; the pointers that the
//! driver wants are to places of this module that live until the call is done.

use crate::driver::{self, Code, code};
use crate::table::index;

/// A result, or CUDA's error.
pub(crate) type Answer<T> = Result<T, Code>;

fn call(index: usize, words: &[u64]) -> Answer<()> {
    // SAFETY: each caller in this module gives the arguments of that function, as CUDA's documentation has them.
    match unsafe { driver::call(driver::real(index), words) } {
        code::OK => Ok(()),
        error => Err(error),
    }
}

/// The same of a function that gives a word by its first argument. One of fewer bytes leaves zeros above.
fn get(index: usize, rest: &[u64]) -> Answer<u64> {
    let mut value = 0_u64;
    let mut words = [0; 6];
    words[0] = &raw mut value as u64;
    words[1..=rest.len()].copy_from_slice(rest);
    call(index, &words[..=rest.len()])?;
    Ok(value)
}

/// Where physical memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// On a device.
    Device(i32),
    /// On a NUMA node of the host.
    Node(i32),
}

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: u32,
    id: i32,
}

/// CUmemAllocationProp.
#[repr(C)]
struct Prop {
    /// Pinned, the only one.
    kind: u32,
    handle_types: u32,
    location: Location,
    win32: usize,
    flags: [u8; 8],
}

/// CUmemAccessDesc.
#[repr(C)]
#[derive(Clone, Copy)]
struct Access {
    location: Location,
    flags: u32,
}

impl Place {
    fn location(self) -> Location {
        match self {
            Place::Device(id) => Location { kind: 1, id },
            Place::Node(id) => Location { kind: 3, id },
        }
    }

    fn prop(self) -> Prop {
        Prop {
            kind: 1,
            handle_types: 0,
            location: self.location(),
            win32: 0,
            flags: [0; 8],
        }
    }
}

/// Bytes that addresses and physical memory of a place are multiples of.
pub(crate) fn granularity(place: Place) -> Answer<u64> {
    let prop = place.prop();
    get(
        index::cuMemGetAllocationGranularity,
        &[&raw const prop as u64, 0],
    )
}

/// Addresses.
pub(crate) fn reserve(bytes: u64) -> Answer<u64> {
    get(index::cuMemAddressReserve, &[bytes, 0, 0, 0])
}

/// Gives addresses back.
pub(crate) fn unreserve(at: u64, bytes: u64) -> Answer<()> {
    call(index::cuMemAddressFree, &[at, bytes])
}

/// Physical memory, by a handle.
pub(crate) fn create(bytes: u64, place: Place) -> Answer<u64> {
    let prop = place.prop();
    get(index::cuMemCreate, &[bytes, &raw const prop as u64, 0])
}

/// Lets go of it: it is free when it is mapped nowhere.
pub(crate) fn release(handle: u64) {
    // A handle of ours is one of the driver's; after the driver has ended there is nothing left to free.
    let _ = call(index::cuMemRelease, &[handle]);
}

/// Maps physical memory, without access.
pub(crate) fn map(at: u64, bytes: u64, handle: u64) -> Answer<()> {
    call(index::cuMemMap, &[at, bytes, 0, handle, 0])
}

/// Ends a mapping.
pub(crate) fn unmap(at: u64, bytes: u64) -> Answer<()> {
    call(index::cuMemUnmap, &[at, bytes])
}

/// Lets devices read a mapping, and write it too.
pub(crate) fn access(at: u64, bytes: u64, devices: &[i32], write: bool) -> Answer<()> {
    let flags = if write { 3 } else { 1 };
    let list: Vec<Access> = devices
        .iter()
        .map(|id| Access {
            location: Place::Device(*id).location(),
            flags,
        })
        .collect();
    call(
        index::cuMemSetAccess,
        &[at, bytes, list.as_ptr() as u64, list.len() as u64],
    )
}

/// A property of a device.
pub(crate) fn attribute(number: u64, device: i32) -> Answer<i32> {
    let value = get(
        index::cuDeviceGetAttribute,
        &[number, u64::from(device.cast_unsigned())],
    )?;
    Ok((value as u32).cast_signed())
}

/// How many devices there are.
pub(crate) fn count() -> Answer<i32> {
    Ok((get(index::cuDeviceGetCount, &[])? as u32).cast_signed())
}

/// The device of a number.
pub(crate) fn nth(number: i32) -> Answer<i32> {
    let device = get(index::cuDeviceGet, &[u64::from(number.cast_unsigned())])?;
    Ok((device as u32).cast_signed())
}

/// Who a device is.
pub(crate) fn uuid(device: i32) -> Answer<[u8; 16]> {
    let mut uuid = [0_u8; 16];
    let words = [&raw mut uuid as u64, u64::from(device.cast_unsigned())];
    call(index::cuDeviceGetUuid_v2, &words).or_else(|_| call(index::cuDeviceGetUuid, &words))?;
    Ok(uuid)
}

/// All memory of a device.
pub(crate) fn total(device: i32) -> Answer<u64> {
    get(
        index::cuDeviceTotalMem_v2,
        &[u64::from(device.cast_unsigned())],
    )
}

/// The thread's context; zero where it has none.
pub(crate) fn current() -> Answer<u64> {
    get(index::cuCtxGetCurrent, &[])
}

/// The device of the thread's context.
pub(crate) fn device() -> Answer<i32> {
    Ok((get(index::cuCtxGetDevice, &[])? as u32).cast_signed())
}

/// The device of a context.
pub(crate) fn device_of(context: u64) -> Answer<i32> {
    within(context, device)
}

/// Runs with another context.
pub(crate) fn within<T>(context: u64, body: impl FnOnce() -> Answer<T>) -> Answer<T> {
    call(index::cuCtxPushCurrent_v2, &[context])?;
    let done = body();
    get(index::cuCtxPopCurrent_v2, &[])?;
    done
}

/// Waits for all work of the thread's context.
pub(crate) fn synchronize() -> Answer<()> {
    call(index::cuCtxSynchronize, &[])
}

/// A stream that waits for no other.
pub(crate) fn stream() -> Answer<u64> {
    get(index::cuStreamCreate, &[1])
}

/// Waits for a stream.
pub(crate) fn finish(stream: u64) -> Answer<()> {
    call(index::cuStreamSynchronize, &[stream])
}

/// Copies on a stream.
pub(crate) fn copy(to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    call(index::cuMemcpyDtoDAsync_v2, &[to, from, bytes, stream])
}

/// Copies to memory of this process, on a stream.
pub(crate) fn download(to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    call(index::cuMemcpyDtoHAsync_v2, &[to, from, bytes, stream])
}

/// Copies from memory of this process, on a stream.
pub(crate) fn upload(to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    call(index::cuMemcpyHtoDAsync_v2, &[to, from, bytes, stream])
}

/// Pins memory of this process, for all contexts: copies are faster then.
pub(crate) fn register(at: u64, bytes: u64) -> Answer<()> {
    call(index::cuMemHostRegister_v2, &[at, bytes, 1])
}

/// The end of that.
pub(crate) fn unregister(at: u64) -> Answer<()> {
    call(index::cuMemHostUnregister, &[at])
}

/// Whether the primary context of a device is there.
pub(crate) fn primary_is_active(device: i32) -> bool {
    let mut active = 0_i32;
    let mut flags = 0_u32;
    let words = [
        u64::from(device.cast_unsigned()),
        &raw mut flags as u64,
        &raw mut active as u64,
    ];
    call(index::cuDevicePrimaryCtxGetState, &words).is_ok() && active != 0
}

/// Whether a stream captures.
pub(crate) fn is_capturing(stream: u64) -> bool {
    let mut status = 0_u32;
    call(
        index::cuStreamIsCapturing,
        &[stream, &raw mut status as u64],
    )
    .is_ok()
        && status != 0
}

/// Lets this thread do what a capture of another one forbids it else: `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) fn relax() {
    let mut mode = 2_u32;
    let _ = call(
        index::cuThreadExchangeStreamCaptureMode,
        &[&raw mut mode as u64],
    );
}

/// Where an argument of a kernel lies among them, and its bytes. `None` past the last one.
pub(crate) fn argument(function: u64, which: u64) -> Option<(usize, usize)> {
    let (mut offset, mut size) = (0_usize, 0_usize);
    let words = [
        function,
        which,
        &raw mut offset as u64,
        &raw mut size as u64,
    ];
    let found = call(index::cuFuncGetParamInfo, &words)
        .or_else(|_| call(index::cuKernelGetParamInfo, &words));
    found.is_ok().then_some((offset, size))
}
