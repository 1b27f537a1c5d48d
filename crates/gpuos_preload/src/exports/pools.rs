//! Stream-ordered allocations and their pools. Large ones of pools that are for this process and its device are ranges of ours; the others
//! are the driver's, and count.

use std::time::{Duration, Instant};

use gpuos_driver::{Access, LEGACY_STREAM, Location, PoolProp, Prop, THREAD_STREAM};

use super::context::key;
use super::{Call, own};
use crate::driver::code;
use crate::memory;
use crate::mutant::{self, Mutant};
use crate::ordered::{self, Stream};
use crate::process::BLOCK;
use crate::range::{Freed, Small};
use crate::vmm::{self, Answer};
use crate::{gate, pointer};

/// How long an allocation waits for memory that was freed in the order of a stream.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_micros(100);

/// Attributes of pools: `CUmemPool_attribute`.
const THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED: u32 = 7;
const USED_HIGH: u32 = 8;

/// The stream of a call. `own`: without a stream it is the thread's own default one.
fn stream(handle: u64, own: bool) -> Answer<Stream> {
    let handle = match handle {
        0 if own => THREAD_STREAM,
        0 => LEGACY_STREAM,
        handle => handle,
    };
    let context = match handle {
        LEGACY_STREAM | THREAD_STREAM => vmm::current()?,
        handle => vmm::context_of(handle)?,
    };
    if context == 0 {
        return Err(code::INVALID_CONTEXT);
    }
    Ok(Stream {
        context,
        key: key(handle),
        handle,
    })
}

fn is_capturing(stream: Stream) -> bool {
    !memory::lock().captures.is_empty() && vmm::is_capturing(stream.handle)
}

fn allocate(call: &Call<'_>, to: u64, bytes: u64, pool: Option<u64>, stream: Stream) -> Answer<()> {
    let device = vmm::device_of(stream.context)?;
    if to == 0 || bytes == 0 || is_capturing(stream) {
        return call.go();
    }
    let handle = pool.map_or_else(|| vmm::pool_of(device), Ok)?;
    let start = Instant::now();
    loop {
        let inside = gate::enter();
        let mut memory = memory::lock();
        let known = ordered::pool(&mut memory, handle);
        let known = known.map(|pool| (pool.device, pool.ours && pool.device == device));
        let Some((of, ours)) = known.filter(|(of, _)| memory.device(*of).is_some()) else {
            drop((memory, inside));
            return call.go();
        };
        let room = memory.info(of).is_none_or(|(free, _)| bytes <= free);
        let given = match ours && bytes >= BLOCK {
            true => ordered::allocate(&mut memory, (handle, of), stream, bytes).map(Some),
            false if room => Ok(None),
            false => Err(code::OUT_OF_MEMORY),
        };
        let late = start.elapsed() > PATIENCE;
        if given == Err(code::OUT_OF_MEMORY) && ordered::is_under_way(&memory, of) && !late {
            // What nothing uses any more is given back, and what streams have not come to is waited for.
            ordered::settle(&mut memory, false);
            drop((memory, inside));
            std::thread::sleep(AGAIN);
            continue;
        }
        if let Some(at) = given? {
            pointer::give(to, at);
        } else {
            drop((memory, inside));
            call.go()?;
            memory = memory::lock();
            let small = Small {
                bytes,
                device: of,
                context: stream.context,
                pool: handle,
            };
            let at = pointer::take::<u64>(to).unwrap_or(0);
            ordered::saw_small(&mut memory, at, small);
        }
        ordered::raise(&mut memory, handle);
        return Ok(());
    }
}

fn free(call: &Call<'_>, at: u64, stream: Stream) -> Answer<()> {
    let capturing = is_capturing(stream);
    // What is on NVMe is looked for among the ranges, and what is on its way there is copied without the lock: neither goes meanwhile.
    let _inside = gate::enter();
    let mut memory = memory::lock();
    let found = memory.around(at).map(|(start, _)| start);
    // A graph frees what it has allocated itself, which is the driver's.
    if found.is_some_and(|start| start != at || capturing) {
        return Err(code::INVALID);
    }
    if found.is_none() {
        call.go()?;
        // What a graph frees is there until it runs.
        let small = if capturing {
            None
        } else {
            memory.small.remove(&at)
        };
        let Some(small) = small else {
            return Ok(());
        };
        match vmm::mark(stream.context, stream.handle) {
            Ok(event) => ordered::free(&mut memory, Freed::Small(small), event, stream),
            Err(_) => memory.uncount(&small),
        }
        return Ok(());
    }
    let event = vmm::mark(stream.context, stream.handle)?;
    if let Some(range) = memory.forget(at) {
        ordered::free(&mut memory, Freed::Range(at, range), event, stream);
    }
    if mutant::is(Mutant::FreeDrain) {
        // As if the stream had come there.
        let given = memory.ordered.pop().map(|one| one.what);
        if let Some(Freed::Range(start, range)) = given {
            memory.give(start, range);
        }
    }
    ordered::settle(&mut memory, true);
    Ok(())
}

fn attribute(call: &Call<'_>, handle: u64, which: u32, to: u64) -> Answer<()> {
    call.go()?;
    let mut memory = memory::lock();
    ordered::settle(&mut memory, true);
    let Some(pool) = ordered::pool(&mut memory, handle) else {
        return Ok(());
    };
    let (used_high, own_high) = (pool.used_high, pool.own_high);
    // Those that are told here have 64 bits.
    let driver = || pointer::take::<u64>(to).unwrap_or(0);
    match which {
        RESERVED => pointer::give(to, driver() + ordered::own(&memory, handle)),
        // Both at most: they need not have been so at the same time.
        RESERVED_HIGH => pointer::give(to, driver() + own_high),
        USED => pointer::give(to, ordered::used(&memory, handle)),
        USED_HIGH => pointer::give(to, used_high),
        _ => {}
    }
    Ok(())
}

fn set_attribute(call: &Call<'_>, handle: u64, which: u32, from: u64) -> Answer<()> {
    call.go()?;
    let mut memory = memory::lock();
    let (used, own) = (
        ordered::used(&memory, handle),
        ordered::own(&memory, handle),
    );
    let Some(pool) = ordered::pool(&mut memory, handle) else {
        return Ok(());
    };
    match which {
        THRESHOLD => pool.threshold = pointer::take(from).unwrap_or(0),
        RESERVED_HIGH => pool.own_high = own,
        USED_HIGH => pool.used_high = used,
        _ => {}
    }
    ordered::settle(&mut memory, true);
    Ok(())
}

/// Others get access to all that a pool has: what it has is not moved any more, and what comes is the driver's.
fn allow(call: &Call<'_>, handle: u64, list: u64, count: u64) -> Answer<()> {
    let _inside = gate::enter();
    call.go()?;
    let size = size_of::<Access>() as u64;
    let list: Vec<Access> = (0..count)
        .map_while(|index| pointer::take(list + index * size))
        .collect();
    let mut memory = memory::lock();
    let Some(pool) = ordered::pool(&mut memory, handle) else {
        return Ok(());
    };
    let device = pool.device;
    let others = |access: &Access| access.location != Location::device(device);
    if !list.iter().any(others) {
        return Ok(());
    }
    pool.ours = false;
    ordered::settle(&mut memory, false);
    for (start, range) in &mut memory.ranges {
        if range.pool == handle && range.held.is_none() {
            range.pinned = true;
            vmm::access(*start, range.bytes, &list)?;
        }
    }
    Ok(())
}

own! { false
    fn cuMemAllocAsync(call: to, bytes, on) {
        allocate(call, to, bytes, None, stream(on, false)?)
    }
    fn cuMemAllocAsync_ptsz(call: to, bytes, on) {
        allocate(call, to, bytes, None, stream(on, true)?)
    }
    fn cuMemAllocFromPoolAsync(call: to, bytes, pool, on) {
        allocate(call, to, bytes, Some(pool), stream(on, false)?)
    }
    fn cuMemAllocFromPoolAsync_ptsz(call: to, bytes, pool, on) {
        allocate(call, to, bytes, Some(pool), stream(on, true)?)
    }
    fn cuMemFreeAsync(call: at, on) {
        free(call, at, stream(on, false)?)
    }
    fn cuMemFreeAsync_ptsz(call: at, on) {
        free(call, at, stream(on, true)?)
    }
    fn cuMemPoolCreate(call: to, props) {
        call.go()?;
        if let (Some(handle), Some(prop)) = (pointer::take::<u64>(to), pointer::take::<PoolProp>(props))
            && prop.location.kind == Location::DEVICE
        {
            let plain = prop.kind == Prop::PINNED && prop.handle_types == 0;
            let plain = plain && prop.most == 0 && prop.usage == 0;
            ordered::saw(&mut memory::lock(), handle, prop.location.id, plain);
        }
        Ok(())
    }
    fn cuMemPoolDestroy(call: pool) {
        call.go()?;
        let mut memory = memory::lock();
        memory.pools.remove(&pool);
        ordered::settle(&mut memory, true);
        Ok(())
    }
    fn cuMemPoolTrimTo(call: pool, most) {
        ordered::trim(&mut memory::lock(), pool, most);
        call.go()
    }
    fn cuMemPoolGetAttribute(call: pool, which, to) {
        attribute(call, pool, which as u32, to)
    }
    fn cuMemPoolSetAttribute(call: pool, which, from) {
        set_attribute(call, pool, which as u32, from)
    }
    fn cuMemPoolSetAccess(call: pool, list, count) {
        allow(call, pool, list, count)
    }
}
