//! What the process does when gpuosd gives it another part of a GPU than before, or asks for host memory: extents are moved as far as that
//! goes, and nothing that works is stopped for it.

use std::collections::BTreeSet;
use std::time::Duration;

use gpuos_memory::table::Tier;

use crate::device::BATCH;
use crate::figures::Why;
use crate::lease::{self, Lease};
use crate::memory::{self, Memory};
use crate::plan::Plan;
use crate::process::{self, BLOCK};
use crate::{gate, mover};

/// Tries that move nothing before it is given up: a call may hold the gate, or a stream capture.
const TRIES: u32 = 50;
/// Between two of them.
const AGAIN: Duration = Duration::from_millis(20);

/// The process has another lease on a device. What it has no room for any more in one tier goes to the other now; all else the policy brings,
/// as it is used.
pub(crate) fn resize(device: i32, lease: Lease) {
    lease::set(device, lease);
    let [gpu, host] = memory::lock().regrant(device, lease);
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
    while tries < TRIES && !mover::is_stopping() && !process::is_pinned() && !gate::is_off() {
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

/// As many of these as move at once, the first ones first.
fn upto(extents: impl Iterator<Item = (u32, u64)>, most: u64) -> BTreeSet<u32> {
    let mut bytes = 0;
    let mut taken = BTreeSet::new();
    for (number, more) in extents {
        if bytes + more > most.min(BATCH / 2) {
            break;
        }
        bytes += more;
        taken.insert(number);
    }
    taken
}

/// Extents of a tier with their device and bytes, those first that were touched longest ago.
pub(crate) fn of_tier(memory: &Memory, tier: Tier) -> Vec<(u32, i32, u64)> {
    let numbers = 0..memory.numbers.len() as u32;
    let mut found: Vec<(u32, i32, u64)> = numbers
        .filter_map(|number| {
            let (device, now, bytes) = memory.movable(number)?;
            (now == tier).then_some((number, device, bytes))
        })
        .collect();
    found.sort_by_key(|(number, ..)| memory.last_touch(*number));
    found
}

/// What has to leave a GPU, as far as it moves at once. One extent more than exceeds what is granted goes, too: extents are whole.
fn surplus(memory: &Memory, device: i32) -> Plan {
    let there = memory.devices.get(&device).and_then(Option::as_ref);
    let over = there.map_or(0, |there| there.over() * BLOCK);
    let mut left = over;
    let own = of_tier(memory, Tier::Hbm).into_iter();
    let own = own.filter(|(_, of, _)| *of == device);
    let needed = own.take_while(|(.., bytes)| {
        let needed = left > 0;
        left = left.saturating_sub(*bytes);
        needed
    });
    let needed = needed.map(|(number, _, bytes)| (number, bytes));
    Plan {
        down: upto(needed, u64::MAX),
        ..Plan::default()
    }
}

/// What has to leave GPUs as the driver's own allocations have taken its place, as far as the host has room.
pub(crate) fn relief(memory: &Memory) -> Plan {
    for (device, there) in &memory.devices {
        let Some(there) = there.as_ref().filter(|there| there.over() > 0) else {
            continue;
        };
        let mut plan = surplus(memory, *device);
        let mut room = there.table.room(Tier::Host) * BLOCK;
        plan.down.retain(|number| {
            let bytes = memory.movable(*number).map_or(0, |(.., bytes)| bytes);
            let fits = bytes <= room;
            room -= bytes * u64::from(fits);
            fits
        });
        if !plan.is_empty() {
            return plan;
        }
    }
    Plan::default()
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
