//! Memory that the program hands to others by a handle. It comes to the GPU's memory first, and stays there from then on.

use std::time::{Duration, Instant};

use gpuos_memory::table::State;

use super::own;
use crate::driver::code;
use crate::memory::{self, Memory};
use crate::vmm::{self, Answer};
use crate::{gate, needs, process};

/// How long the mover may take to bring an extent. To move, work that was given has to end, and that may wait for the thread that asks.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks whether it is there.
const LOOK: Duration = Duration::from_millis(1);

/// The driver's handle behind one of ours, whose memory is in the GPU's from now on, and the way in: nothing is parked before that is given
/// back. `None`: it is none of ours.
fn hand_out(call: &str, handle: u64) -> Answer<Option<(u64, gate::Inside)>> {
    let mut until = Instant::now() + PATIENCE;
    loop {
        // A process that is parked has its turn first.
        let before = Instant::now();
        let inside = gate::enter();
        until += before.elapsed();
        let mut memory = memory::lock();
        let range = memory.ranges.get(&handle);
        let Some(range) = range.filter(|range| range.held.is_some()) else {
            return Ok(None);
        };
        let [extent] = &range.extents[..] else {
            return refused(&mut memory, call, handle);
        };
        if !range.is_for_others() {
            return refused(&mut memory, call, handle);
        }
        let (number, own, id) = (extent.number, extent.handle, extent.id);
        if own == 0 {
            // Its bytes were lost.
            return Err(code::INVALID);
        }
        let device = memory.devices.get(&range.device).and_then(Option::as_ref);
        if device.is_some_and(|device| device.table.state(id) == Ok(State::Hbm)) {
            memory.asked.remove(&number);
            memory.pin(&[handle]);
            return Ok(Some((own, inside)));
        }
        let may = !process::is_pinned() && !process::is_ending() && memory.captures.is_empty();
        if !may || Instant::now() >= until || needs::raise(&memory, number).is_empty() {
            memory.asked.remove(&number);
            process::say(format_args!(
                "{call}: memory that the program gives to others cannot be brought to the GPU"
            ));
            return Err(code::OUT_OF_MEMORY);
        }
        memory.asked.insert(number);
        drop((memory, inside));
        std::thread::sleep(LOOK);
    }
}

/// Of ours, and not for others.
fn refused<T>(memory: &mut Memory, call: &str, handle: u64) -> Answer<Option<T>> {
    memory.pin(&[handle]);
    process::say(format_args!(
        "{call}: memory in tiers has no such handle; ask cuMemCreate for one by its handle type, or run without {}",
        process::GRANT
    ));
    Err(code::NOT_SUPPORTED)
}

own! { false
    fn cuMemExportToShareableHandle(call: to, handle, kind, flags) {
        match hand_out("cuMemExportToShareableHandle", handle)? {
            Some((own, _inside)) => vmm::export(to, own, kind, flags),
            None => call.go(),
        }
    }
    fn cuMulticastBindMem(call: object, offset, handle, from, bytes, flags) {
        match hand_out("cuMulticastBindMem", handle)? {
            Some((own, _inside)) => vmm::bind(&[object, offset, own, from, bytes, flags]),
            None => call.go(),
        }
    }
    fn cuMulticastBindMem_v2(call: object, device, offset, handle, from, bytes, flags) {
        match hand_out("cuMulticastBindMem", handle)? {
            Some((own, _inside)) => vmm::bind(&[object, device, offset, own, from, bytes, flags]),
            None => call.go(),
        }
    }
}
