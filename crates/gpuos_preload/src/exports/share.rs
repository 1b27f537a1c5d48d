//! Memory that the program hands to others: by a handle of its own, or under an address that a network adapter or a multicast object gets.
//! It comes to the GPU's memory first, and stays there from then on.

use std::time::Duration;

use gpuos_memory::table::{State, Tier};

use super::own;
use crate::driver::code;
use crate::figures::Why;
use crate::memory::{self, Memory};
use crate::plan::Plan;
use crate::process::{self, BLOCK};
use crate::vmm::{self, Answer};
use crate::{gate, mover, resize};

/// Tries that move nothing before it is given up.
const TRIES: u32 = 50;
/// Between two of them.
const AGAIN: Duration = Duration::from_millis(20);

impl Memory {
    /// What of these places lies in host memory and can be moved.
    fn below(&self, places: &[u64]) -> Vec<u32> {
        let ranges = places
            .iter()
            .filter_map(|place| self.at(self.place(*place)).map(|(_, range)| range));
        let numbers = ranges.flat_map(|range| range.extents.iter().map(|extent| extent.number));
        numbers
            .filter(|number| matches!(self.movable(*number), Some((_, Tier::Host, _))))
            .collect()
    }

    /// Brings some of these to their GPU, and for that what was not touched for longest out of it. Nothing where there is no room.
    fn raise(&self, numbers: &[u32]) -> Plan {
        let mut plan = Plan::default();
        let Some((device, _, bytes)) = numbers.first().and_then(|number| self.movable(*number))
        else {
            return plan;
        };
        let there = self.devices.get(&device).and_then(Option::as_ref);
        let room = there.map_or(0, |there| there.table.room(Tier::Hbm) * BLOCK);
        let mut lacking = bytes.saturating_sub(room);
        for (number, of, bytes) in resize::of_tier(self, Tier::Hbm) {
            if lacking == 0 {
                break;
            }
            if of == device {
                plan.down.insert(number);
                lacking = lacking.saturating_sub(bytes);
            }
        }
        match lacking {
            0 => drop(plan.up.insert(numbers[0])),
            _ => plan.down.clear(),
        }
        plan
    }
}

/// Brings what lies at these places to the memory of GPUs, as far as there is room. The caller has no lock and is not in the gate.
pub(crate) fn bring(places: &[u64]) {
    let mut tries = 0;
    while tries < TRIES && !process::is_pinned() {
        let plan = {
            let memory = memory::lock();
            memory.raise(&memory.below(places))
        };
        if plan.is_empty() {
            return;
        }
        if mover::batch(&plan, Why::Told) > 0 {
            tries = 0;
        } else {
            tries += 1;
            std::thread::sleep(AGAIN);
        }
    }
}

/// The driver's handle behind one of ours, whose memory is in the GPU's from now on. `None`: it is none of ours.
fn hand_out(call: &str, handle: u64) -> Answer<Option<u64>> {
    let is_ours = |memory: &Memory| {
        let range = memory.ranges.get(&handle);
        range.is_some_and(|range| range.held.is_some())
    };
    if !is_ours(&memory::lock()) {
        return Ok(None);
    }
    bring(&[handle]);
    let mut memory = memory::lock();
    memory.pin(&[handle]);
    let range = memory.ranges.get(&handle).ok_or(code::INVALID)?;
    if !range.is_for_others() {
        process::say(format_args!(
            "{call}: memory in tiers has no such handle; ask cuMemCreate for one by its handle type, or run without {}",
            process::GRANT
        ));
        return Err(code::NOT_SUPPORTED);
    }
    let device = memory.devices.get(&range.device).and_then(Option::as_ref);
    let there = |id| device.is_some_and(|device| device.table.state(id) == Ok(State::Hbm));
    match &range.extents[..] {
        [extent] if there(extent.id) => Ok(Some(extent.handle)),
        _ => {
            process::say(format_args!(
                "{call}: the GPU has no room for memory that the program gives to others"
            ));
            Err(code::OUT_OF_MEMORY)
        }
    }
}

own! { false
    fn cuMemExportToShareableHandle(call: to, handle, kind, flags) {
        match hand_out("cuMemExportToShareableHandle", handle)? {
            Some(own) => vmm::export(to, own, kind, flags),
            None => call.go(),
        }
    }
    fn cuMulticastBindMem(call: object, offset, handle, from, bytes, flags) {
        match hand_out("cuMulticastBindMem", handle)? {
            Some(own) => vmm::bind(&[object, offset, own, from, bytes, flags]),
            None => call.go(),
        }
    }
    fn cuMulticastBindMem_v2(call: object, device, offset, handle, from, bytes, flags) {
        match hand_out("cuMulticastBindMem", handle)? {
            Some(own) => vmm::bind(&[object, device, offset, own, from, bytes, flags]),
            None => call.go(),
        }
    }
}

/// What is at these words goes to others by its address: it is in the GPU's memory, and stays.
pub(crate) fn pin(words: &[u64]) {
    if gate::is_off() {
        return;
    }
    bring(words);
    memory::lock().pin(words);
}
