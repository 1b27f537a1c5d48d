//! What the process does when gpuosd gives it another part of a GPU than before, or asks for host memory: extents are moved as far as that
//! goes, and nothing that works is stopped for it.

use std::collections::BTreeSet;
use std::time::Duration;

use gpuos_memory::table::Tier;

use crate::figures::Why;
use crate::lease::{self, Lease};
use crate::memory::{self, Memory};
use crate::needs::{of_tier, surplus, upto};
use crate::plan::Plan;
use crate::process::{self, BLOCK};
use crate::{gate, mover};

/// Tries that move nothing before it is given up: a call may hold the gate, or a stream capture.
const TRIES: u32 = 50;
/// Between two of them.
const AGAIN: Duration = Duration::from_millis(20);

/// The process has another lease on a device. What it has no room for any more in one tier goes to the other now; all else the policy brings,
/// as it is used. A process that is parked comes back into what there is then.
pub(crate) fn resize(device: i32, lease: Lease, works: bool) {
    lease::set(device, lease);
    let [gpu, host] = memory::lock()
        .regrant(device, lease)
        .map(|over| over && works);
    if gpu {
        batches(|memory| surplus(memory, device));
    }
    if host {
        batches(back_to_gpus);
    }
}

/// Frees host memory as far as GPUs have room: extents that lie there for want of it go back. Answers the bytes.
pub(crate) fn trim() -> u64 {
    batches(back_to_gpus)
}

/// Moves batch by batch until there is nothing to move. Answers the bytes.
fn batches(plan: impl Fn(&Memory) -> Plan) -> u64 {
    let mut moved = 0;
    let mut tries = 0;
    while tries < TRIES && !process::is_ending() && !process::is_pinned() && !gate::is_off() {
        let next = plan(&memory::lock());
        if next.is_empty() {
            break;
        }
        let bytes = mover::batch(&next, Why::Told);
        moved += bytes;
        tries = match bytes {
            0 => tries + 1,
            _ => 0,
        };
        if bytes == 0 {
            std::thread::sleep(AGAIN);
        }
    }
    if moved > 0 {
        memory::lock().look_for_cold();
    }
    moved
}

/// What lies in host memory and has room in its GPU, what was touched last first.
fn back_to_gpus(memory: &Memory) -> Plan {
    let mut up = BTreeSet::new();
    for (device, there) in &memory.devices {
        let room = there
            .as_ref()
            .map_or(0, |there| there.table.room(Tier::Hbm) * BLOCK);
        let own = of_tier(memory, Tier::Host).into_iter().rev();
        let own = own.filter(|(_, of, _)| of == device);
        up.extend(upto(own.map(|(number, _, bytes)| (number, bytes)), room));
    }
    Plan {
        up,
        ..Plan::default()
    }
}
