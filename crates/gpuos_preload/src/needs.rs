//! What has to move whatever a policy says, as lists for the mover: out of a GPU of which the process has less, and into one for who waits.

use std::collections::BTreeSet;

use gpuos_memory::table::Tier;

use crate::device::BATCH;
use crate::memory::Memory;
use crate::plan::Plan;
use crate::process::BLOCK;

/// As many of these as move at once, the first ones first.
pub(crate) fn upto(extents: impl Iterator<Item = (u32, u64)>, most: u64) -> BTreeSet<u32> {
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
pub(crate) fn surplus(memory: &Memory, device: i32) -> Plan {
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

/// Brings an extent to its GPU, and for that what was not touched for longest out of it. Nothing where there is no room.
pub(crate) fn raise(memory: &Memory, number: u32) -> Plan {
    let mut plan = Plan::default();
    let Some((device, Tier::Host, bytes)) = memory.movable(number) else {
        return plan;
    };
    let there = memory.devices.get(&device).and_then(Option::as_ref);
    let room = there.map_or(0, |there| there.table.room(Tier::Hbm) * BLOCK);
    let mut lacking = bytes.saturating_sub(room);
    for (other, of, bytes) in of_tier(memory, Tier::Hbm) {
        if lacking == 0 {
            break;
        }
        if of == device && !memory.asked.contains(&other) {
            plan.down.insert(other);
            lacking = lacking.saturating_sub(bytes);
        }
    }
    match lacking {
        0 => drop(plan.up.insert(number)),
        _ => plan.down.clear(),
    }
    plan
}

/// What somebody waits for.
pub(crate) fn asked_for(memory: &Memory) -> Plan {
    let mut plans = memory.asked.iter().map(|number| raise(memory, *number));
    plans.find(|plan| !plan.is_empty()).unwrap_or_default()
}
