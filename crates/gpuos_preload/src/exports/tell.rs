//! What tells of memory: programs see the grant as the GPU's memory, and allocations as the driver's own.

use super::own;
use crate::memory::{self, Memory};
use crate::{pointer, vmm};

/// Attributes of pointers that a range answers otherwise than virtual memory does, and what RDMA asks for.
const CONTEXT: u32 = 1;
const KIND: u32 = 2;
const P2P_TOKENS: u32 = 5;
const ORDINAL: u32 = 9;
const START: u32 = 11;
const SIZE: u32 = 12;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: u32 = 2;

/// Gives an attribute of an address of ours. Answers false where the driver's answer is right.
fn attribute(memory: &mut Memory, to: u64, which: u32, at: u64) -> bool {
    let Some((start, range)) = memory.around(at) else {
        return false;
    };
    match which {
        CONTEXT => pointer::give(to, range.context),
        KIND => pointer::give(to, DEVICE),
        ORDINAL => pointer::give(to, range.device),
        START => pointer::give(to, start),
        SIZE => pointer::give(to, range.asked),
        _ => {
            if which == P2P_TOKENS {
                memory.pin(&[at]);
            }
            return false;
        }
    }
    true
}

own! { false
    fn cuMemGetInfo_v2(call: free, total) {
        let info = vmm::device().ok().and_then(|device| memory::lock().info(device));
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
        let found = memory::lock().around(at).map(|(start, range)| (start, range.asked));
        let Some((start, asked)) = found else {
            return call.go();
        };
        pointer::give(to, start);
        pointer::give(size, asked);
        Ok(())
    }
    fn cuPointerGetAttribute(call: to, which, at) {
        match to != 0 && attribute(&mut memory::lock(), to, which as u32, at) {
            true => Ok(()),
            false => call.go(),
        }
    }
    fn cuPointerGetAttributes(call: count, which, to, at) {
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
