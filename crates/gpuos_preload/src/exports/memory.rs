//! Allocating and freeing.

use super::{Call, own};
use crate::driver::code;
use crate::memory;
use crate::mutant::{self, Mutant};
use crate::ordered;
use crate::process::BLOCK;
use crate::range::Small;
use crate::vmm::{self, Answer};
use crate::{gate, pointer};

/// Rows begin at multiples of it.
const PITCH: u64 = 512;

/// Allocates in tiers what is large enough and on a device that can; else the driver does.
fn allocate(call: &Call<'_>, to: u64, bytes: u64) -> Answer<()> {
    let (context, device) = (vmm::current()?, vmm::device());
    // Without a context the driver says what is wrong.
    let (Ok(device), true) = (device, to != 0 && bytes > 0) else {
        return call.go();
    };
    memory::reap();
    let inside = gate::enter();
    let mut memory = memory::lock();
    ordered::make_room(&mut memory, device, bytes);
    if bytes >= BLOCK && memory.device(device).is_some() {
        pointer::give(to, memory.allocate(device, context, bytes)?);
        return Ok(());
    }
    if memory.info(device).is_some_and(|(free, _)| bytes > free) {
        return Err(code::OUT_OF_MEMORY);
    }
    drop((memory, inside));
    call.go()?;
    if let Some(at) = pointer::take::<u64>(to) {
        let small = Small {
            bytes,
            device,
            context,
            pool: 0,
        };
        memory::lock().saw_small(at, small);
    }
    Ok(())
}

/// Frees. As with the driver's own, all work of the context is done before.
fn free(call: &Call<'_>, at: u64) -> Answer<()> {
    let mut memory = memory::lock();
    let found = memory
        .around(at)
        .map(|(start, range)| (start, range.context));
    let Some((start, context)) = found else {
        memory.freed_small(at);
        drop(memory);
        return call.go();
    };
    if start != at {
        return Err(code::INVALID);
    }
    // To wait for work would spoil a capture.
    let capturing = !memory.captures.is_empty();
    drop(memory);
    let done = match mutant::is(Mutant::FreeDrain) {
        true => Ok(()),
        false if capturing => Err(code::CAPTURE_UNSUPPORTED),
        false => vmm::within(context, vmm::synchronize),
    };
    let _inside = gate::enter();
    // A context that has failed frees its memory all the same.
    match done {
        Err(code::CAPTURE_UNSUPPORTED) => memory::lock().defer(start),
        _ => memory::lock().free(start),
    }
    done.or_else(|error| {
        if error == code::CAPTURE_UNSUPPORTED {
            Ok(())
        } else {
            Err(error)
        }
    })
}

own! { false
    fn cuMemAlloc_v2(call: to, bytes) {
        allocate(call, to, bytes)
    }
    fn cuMemAllocPitch_v2(call: to, pitch, width, height, element) {
        let row = width.checked_next_multiple_of(PITCH);
        let bytes = row.and_then(|row| row.checked_mul(height));
        let large = bytes.is_some_and(|bytes| bytes >= BLOCK) && matches!(element as u32, 4 | 8 | 16);
        let Some((row, bytes)) = row.zip(bytes).filter(|_| large) else {
            return call.go();
        };
        // Only what is in tiers has our pitch.
        let in_tiers = vmm::device().is_ok_and(|device| memory::lock().device(device).is_some());
        if !in_tiers {
            return call.go();
        }
        allocate(call, to, bytes)?;
        pointer::give(pitch, row);
        Ok(())
    }
    fn cuMemFree_v2(call: at) {
        free(call, at)
    }
}
