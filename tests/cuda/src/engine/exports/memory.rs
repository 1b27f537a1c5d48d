//! Allocating and freeing.

use std::ffi::{c_int, c_uint};

use super::cuda;
use crate::abi::{Answer, Location, code};
use crate::engine::context::current;
use crate::engine::driver::driver;
use crate::engine::heap::{self, Kind};
use crate::pointer::{Name, Out};

/// The pitch of rows: a multiple of it.
const PITCH: usize = 512;

pub(super) fn info() -> Answer<(u64, u64)> {
    let memory = &current()?.device.memory;
    Ok((memory.left(), memory.capacity()))
}

pub(super) fn alloc(bytes: u64) -> Answer<u64> {
    heap::device(driver()?, &*current()?, bytes, 0)
}

/// Frees device memory: the driver waits for the context's work first.
pub(super) fn free(address: u64) -> Answer<()> {
    if address == 0 {
        return Ok(());
    }
    let (driver, context) = (driver()?, current()?);
    let (start, allocation) = driver.allocations.around(address).ok_or(code::INVALID)?;
    if start != address {
        return Err(code::INVALID);
    }
    let owner = driver.contexts.get(allocation.context).unwrap_or(context);
    // A context that has failed frees memory all the same.
    let outcome = owner.synchronize();
    heap::free(driver, address)?;
    outcome
}

pub(super) fn host(bytes: usize, flags: c_uint) -> Answer<usize> {
    let context = current()?;
    heap::host(driver()?, &context, bytes as u64, Kind::Host, flags).map(|at| at as usize)
}

fn register(address: usize, bytes: usize, flags: c_uint) -> Answer<()> {
    heap::register(driver()?, &*current()?, address as u64, bytes as u64, flags)
}

/// The location of advice and prefetching must be one.
fn location(location: Location) -> Answer<()> {
    match location.kind {
        1 => driver()?.device(location.id).map(|_| ()),
        2..=4 => Ok(()),
        _ => Err(code::INVALID),
    }
}

/// Advice and prefetching: hints, which only managed memory takes and which change nothing here.
fn hint(address: u64, bytes: usize) -> Answer<()> {
    current()?;
    let around = driver()?.allocations.around(address);
    let (start, found) = around.ok_or(code::INVALID)?;
    match found.kind == Kind::Managed && address - start + bytes as u64 <= found.length {
        true => Ok(()),
        false => Err(code::INVALID),
    }
}

cuda! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (left, all) = info()?;
        free.set(left as usize)?;
        total.set(all as usize)
    }
    fn cuMemAlloc_v2(out: Out<u64>, bytes: usize) {
        out.set(alloc(bytes as u64)?)
    }
    fn cuMemAllocPitch_v2(
        out: Out<u64>,
        pitch: Out<usize>,
        width: usize,
        height: usize,
        element: c_uint,
    ) {
        if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
            return Err(code::INVALID);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(code::INVALID)?;
        let bytes = row.checked_mul(height).ok_or(code::OUT_OF_MEMORY)?;
        out.set(alloc(bytes as u64)?)?;
        pitch.set(row)
    }
    fn cuMemFree_v2(address: u64) {
        free(address)
    }
    fn cuMemGetAddressRange_v2(start: Out<u64>, size: Out<usize>, address: u64) {
        current()?;
        let around = driver()?.allocations.around(address);
        let (at, found) = around.ok_or(code::NOT_FOUND)?;
        start.offer(at);
        size.offer(found.length as usize);
        Ok(())
    }
    fn cuMemAllocManaged(out: Out<u64>, bytes: usize, flags: c_uint) {
        if !matches!(flags, 1 | 2) {
            return Err(code::INVALID);
        }
        let context = current()?;
        out.set(heap::host(driver()?, &context, bytes as u64, Kind::Managed, flags)?)
    }
    fn cuMemAllocHost_v2(out: Out<usize>, bytes: usize) {
        out.set(host(bytes, 0)?)
    }
    fn cuMemHostAlloc(out: Out<usize>, bytes: usize, flags: c_uint) {
        out.set(host(bytes, flags)?)
    }
    fn cuMemFreeHost(address: usize) {
        let context = current()?;
        let outcome = context.synchronize();
        heap::release(driver()?, address as u64, Kind::Host)?;
        outcome
    }
    fn cuMemHostRegister(address: usize, bytes: usize, flags: c_uint) {
        register(address, bytes, flags)
    }
    fn cuMemHostRegister_v2(address: usize, bytes: usize, flags: c_uint) {
        register(address, bytes, flags)
    }
    fn cuMemHostUnregister(address: usize) {
        current()?;
        heap::release(driver()?, address as u64, Kind::Registered)
            .map_err(|_| code::NOT_REGISTERED)
    }
    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, address: usize, flags: c_uint) {
        current()?;
        let around = driver()?.allocations.around(address as u64);
        let host = around.filter(|(_, found)| matches!(found.kind, Kind::Host | Kind::Registered));
        match flags == 0 && host.is_some() {
            true => out.set(address as u64),
            false => Err(code::INVALID),
        }
    }
    fn cuMemHostGetFlags(out: Out<c_uint>, address: usize) {
        current()?;
        let around = driver()?.allocations.around(address as u64);
        let host = around.filter(|(_, found)| found.kind == Kind::Host);
        out.set(host.ok_or(code::INVALID)?.1.flags)
    }
    fn cuMemAdvise(address: u64, bytes: usize, _advice: c_uint, _device: c_int) {
        hint(address, bytes)
    }
    fn cuMemAdvise_v2(address: u64, bytes: usize, _advice: c_uint, place: Location) {
        location(place)?;
        hint(address, bytes)
    }
    fn cuMemPrefetchAsync(address: u64, bytes: usize, _device: c_int, stream: u64) / cuMemPrefetchAsync_ptsz {
        super::stream_of(stream)?;
        hint(address, bytes)
    }
    fn cuMemPrefetchAsync_v2(
        address: u64,
        bytes: usize,
        place: Location,
        _flags: c_uint,
        stream: u64,
    ) / cuMemPrefetchAsync_v2_ptsz {
        super::stream_of(stream)?;
        location(place)?;
        hint(address, bytes)
    }
    fn cuIpcGetMemHandle(_handle: Out<[u8; 64]>, _address: u64) {
        eprintln!("simulated libcuda: cuIpcGetMemHandle: memory is not shared between processes");
        Err(code::NOT_SUPPORTED)
    }
    fn cuModuleGetGlobal_v2(_address: Out<u64>, _size: Out<usize>, module: u64, _name: Name) {
        driver()?.images.get(module)?;
        // Modules have no variables.
        Err(code::NOT_FOUND)
    }
}
