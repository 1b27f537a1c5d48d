//! What tells of memory: programs see the grant as the GPU's memory, and allocations as the driver's own.

use gpuos_driver::{MEMORY_DEVICE, pointer as about};

use super::own;
use crate::memory::{self, Memory};
use crate::{gate, ordered, pointer, vmm};

/// Gives an attribute of an address of ours. Answers false where the driver's answer is right.
fn attribute(memory: &mut Memory, to: u64, which: u32, at: u64) -> bool {
    if which == about::P2P_TOKENS {
        memory.pin(&[at]);
        return false;
    }
    let mapped = memory
        .maps
        .around(at)
        .map(|(start, map)| (start, map.bytes));
    let Some((place, range)) = memory.at(memory.place(at)) else {
        return false;
    };
    match (which, mapped) {
        (about::KIND, _) => pointer::give(to, MEMORY_DEVICE),
        (about::ORDINAL, _) => pointer::give(to, range.device),
        // The driver has mappings of its own for the extents.
        (about::START | about::MAPPING_START, Some((start, _))) => pointer::give(to, start),
        (about::SIZE | about::MAPPING_SIZE, Some((_, bytes))) => pointer::give(to, bytes),
        (about::POOL, None) if range.pool != 0 => pointer::give(to, range.pool),
        (about::CONTEXT, None) => pointer::give(to, range.context),
        (about::START, None) => pointer::give(to, place),
        (about::SIZE, None) => pointer::give(to, range.asked),
        _ => return false,
    }
    true
}

/// Waits for the turn of a process that is parked, where an address is one of ours: until then the driver may know nothing of it.
fn when_there(at: u64) -> Option<gate::Inside> {
    memory::knows(&[at]).then(gate::enter)
}

own! { false
    fn cuMemGetInfo_v2(call: free, total) {
        let mut memory = memory::lock();
        if !memory.ordered.is_empty() {
            ordered::settle(&mut memory, true);
        }
        let info = vmm::device().ok().and_then(|device| memory.info(device));
        let Some(info) = info else {
            return call.go();
        };
        pointer::give(free, info.0);
        pointer::give(total, info.1);
        Ok(())
    }
    fn cuDeviceTotalMem_v2(call: to, device) {
        match memory::lock().info((device as u32).cast_signed()) {
            Some((_, total)) => {
                pointer::give(to, total);
                Ok(())
            }
            None => call.go(),
        }
    }
    fn cuMemGetAddressRange_v2(call: to, size, at) {
        let memory = memory::lock();
        let found = memory.around(at).map(|(start, range)| (start, range.asked));
        let mapped = memory.maps.around(at).map(|(start, map)| (start, map.bytes));
        let Some((start, asked)) = found.or(mapped) else {
            return call.go();
        };
        pointer::give(to, start);
        pointer::give(size, asked);
        Ok(())
    }
    fn cuPointerGetAttribute(call: to, which, at) {
        let known = |which| to != 0 && attribute(&mut memory::lock(), to, which, at);
        let which = which as u32;
        // What is known of it waits for nothing.
        if which != about::P2P_TOKENS && known(which) {
            return Ok(());
        }
        let _inside = when_there(at);
        match known(which) {
            true => Ok(()),
            false => call.go(),
        }
    }
    fn cuPointerGetAttributes(call: count, which, to, at) {
        let _inside = when_there(at);
        call.go()?;
        let mut memory = memory::lock();
        for index in 0..u64::from(count as u32) {
            let which = pointer::take::<u32>(which + 4 * index);
            let to = pointer::take::<u64>(to + 8 * index).filter(|to| *to != 0);
            if let (Some(which), Some(to)) = (which, to) {
                attribute(&mut memory, to, which, at);
            }
        }
        Ok(())
    }
}
