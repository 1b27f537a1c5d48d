//! Stream-ordered allocation. Memory is there when the call returns, which is earlier than its order in
//! the stream asks for, and goes when the stream comes to its free. A pool keeps nothing back.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{cuda, enqueue, stream_of};
use crate::abi::{AccessDesc, Answer, LOCATION_DEVICE, Location, PoolProps, code};
use crate::engine::driver::{Pool, driver};
use crate::engine::heap;
use crate::engine::work::Work;
use crate::pointer::{In, Out, bytes, give};

/// Pool attributes of 64 bits begin here; those before are numbers of 32.
const RELEASE_THRESHOLD: c_uint = 4;
const USED_CURRENT: c_uint = 7;
const RESERVED_CURRENT: c_uint = 5;

fn pools(ordinal: c_int) -> Answer<MutexGuard<'static, [u64; 2]>> {
    let pools = &driver()?.device(ordinal)?.pools;
    Ok(pools.lock().unwrap_or_else(PoisonError::into_inner))
}

fn alloc(out: &Out<u64>, length: usize, pool: Option<u64>, stream: u64) -> Answer<()> {
    let driver = driver()?;
    let (context, stream) = stream_of(stream)?;
    if stream.is_capturing() {
        eprintln!("simulated libcuda: allocations are not captured");
        return Err(code::CAPTURE_UNSUPPORTED);
    }
    let current = pools(context.device.index as c_int)?[1];
    let pool = pool.unwrap_or(current);
    if driver.pools.get(pool)?.device != context.device.index {
        return Err(code::INVALID);
    }
    out.set(heap::device(driver, &context, length as u64, pool)?)
}

cuda! {
    fn cuMemAllocAsync(out: Out<u64>, length: usize, stream: u64) / cuMemAllocAsync_ptsz {
        alloc(&out, length, None, stream)
    }
    fn cuMemAllocFromPoolAsync(out: Out<u64>, length: usize, pool: u64, stream: u64) / cuMemAllocFromPoolAsync_ptsz {
        alloc(&out, length, Some(pool), stream)
    }
    fn cuMemFreeAsync(address: u64, stream: u64) / cuMemFreeAsync_ptsz {
        let found = driver()?.allocations.around(address);
        match found {
            Some((start, found)) if start == address && matches!(found.kind, heap::Kind::Device(_)) => {
                enqueue(stream, Work::Free(address)).map(|_| ())
            }
            _ => Err(code::INVALID),
        }
    }
    fn cuDeviceGetDefaultMemPool(out: Out<u64>, ordinal: c_int) {
        out.set(pools(ordinal)?[0])
    }
    fn cuDeviceGetMemPool(out: Out<u64>, ordinal: c_int) {
        out.set(pools(ordinal)?[1])
    }
    fn cuDeviceSetMemPool(ordinal: c_int, pool: u64) {
        let found = driver()?.pools.get(pool)?;
        if found.device as c_int != ordinal {
            return Err(code::INVALID);
        }
        pools(ordinal)?[1] = pool;
        Ok(())
    }
    fn cuMemPoolCreate(out: Out<u64>, props: In<PoolProps>) {
        let (driver, props) = (driver()?, props.get()?);
        if props.location.kind != LOCATION_DEVICE || props.handle_types != 0 {
            return Err(code::NOT_SUPPORTED);
        }
        let device = driver.device(props.location.id)?.index;
        out.set(driver.pools.add(Pool { device, attributes: Mutex::new([0; 9]) }))
    }
    fn cuMemPoolDestroy(pool: u64) {
        let driver = driver()?;
        let device = driver.pools.get(pool)?.device as c_int;
        let mut pools = pools(device)?;
        if pools[0] == pool {
            return Err(code::INVALID);
        }
        if pools[1] == pool {
            pools[1] = pools[0];
        }
        driver.pools.remove(pool).map(|_| ())
    }
    fn cuMemPoolTrimTo(pool: u64, _keep: usize) {
        driver()?.pools.get(pool).map(|_| ())
    }
    fn cuMemPoolGetAttribute(pool: u64, number: c_uint, value: *mut c_void) {
        let driver = driver()?;
        let found = driver.pools.get(pool)?;
        let attributes = found.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        let current = match number {
            USED_CURRENT | RESERVED_CURRENT => driver.allocations.of_pool(pool),
            1..=8 => attributes[number as usize],
            _ => return Err(code::INVALID),
        };
        match number < RELEASE_THRESHOLD {
            true => give(value, &(current as u32).to_le_bytes()),
            false => give(value, &current.to_le_bytes()),
        }
    }
    fn cuMemPoolSetAttribute(pool: u64, number: c_uint, value: *mut c_void) {
        let found: Arc<Pool> = driver()?.pools.get(pool)?;
        if value.is_null() || !matches!(number, 1..=4 | 6 | 8) {
            return Err(code::INVALID);
        }
        let size = if number < RELEASE_THRESHOLD { 4 } else { 8 };
        let mut word = [0; 8];
        word[..size].copy_from_slice(&bytes(value, size));
        let mut attributes = found.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        attributes[number as usize] = u64::from_le_bytes(word);
        Ok(())
    }
    fn cuMemPoolGetAccess(flags: Out<c_uint>, pool: u64, place: In<Location>) {
        let found = driver()?.pools.get(pool)?;
        let place = place.get()?;
        let own = place.kind == LOCATION_DEVICE && place.id == found.device as i32;
        flags.set(if own { 3 } else { 0 })
    }
    fn cuMemPoolSetAccess(pool: u64, list: In<AccessDesc>, count: usize) {
        let found = driver()?.pools.get(pool)?;
        for desc in list.list(count)? {
            if desc.location.kind != LOCATION_DEVICE || desc.location.id != found.device as i32 {
                eprintln!("simulated libcuda: cuMemPoolSetAccess: only the pool's own device has access");
                return Err(code::NOT_SUPPORTED);
            }
        }
        Ok(())
    }
}
