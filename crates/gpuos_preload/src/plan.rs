//! What is to move: touches go to the policy, and what it answers becomes a list.

use std::collections::BTreeSet;

use gpuos_memory::policy::{Answer, Learned, named};
use gpuos_memory::table::{State, Tier};
use gpuos_memory::trace;

use crate::device::BATCH;
use crate::figures;
use crate::heat;
use crate::memory::Memory;
use crate::mutant::{self, Mutant};
use crate::process::{self, BLOCK};

/// Extents by number, in order: what goes down goes first, and makes room.
#[derive(Default, Debug)]
pub(crate) struct Plan {
    pub(crate) down: BTreeSet<u32>,
    pub(crate) up: BTreeSet<u32>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.down.is_empty() && self.up.is_empty()
    }
}

impl Memory {
    /// The device of an extent and the tier that it is in; `None` if it cannot be moved.
    pub(crate) fn movable(&self, number: u32) -> Option<(i32, Tier, u64)> {
        let (_, range, at) = self.extent(number)?;
        if range.pinned && !mutant::is(Mutant::Pinned) {
            return None;
        }
        let extent = &range.extents[at];
        if extent.stowed.is_some() || extent.handle == 0 {
            return None;
        }
        let device = self.devices.get(&range.device)?.as_ref()?;
        let tier = match device.table.state(extent.id).ok()? {
            State::Hbm => Tier::Hbm,
            State::Host => Tier::Host,
            _ => return None,
        };
        Some((range.device, tier, extent.bytes))
    }

    /// Hands what was touched to the policies.
    pub(crate) fn plan(&mut self) -> Plan {
        let mut plan = Plan::default();
        let touches = std::mem::take(&mut self.touches);
        let mut moved = [0_u64; 2];
        let now = figures::now();
        for number in &heat::extents(self, &touches) {
            self.touched_at(*number, now);
            let Some((device, tier, bytes)) = self.movable(*number) else {
                continue;
            };
            self.learn(device);
            let Some(there) = self.devices.get_mut(&device).and_then(Option::as_mut) else {
                continue;
            };
            let full = there.table.room(Tier::Hbm) * BLOCK < moved[1] + bytes;
            let Some(policy) = there.policy.as_mut() else {
                continue;
            };
            let extent = trace::Extent(*number);
            if tier == Tier::Hbm && !plan.down.contains(number) {
                policy.hit(extent);
                continue;
            }
            if plan.up.contains(number) {
                policy.hit(extent);
                continue;
            }
            match policy.miss(extent, full) {
                Answer::Leave => continue,
                Answer::Take => {}
                Answer::Replace(trace::Extent(other)) => {
                    // The policy may take an extent for one that is there and is not: sizes differ, and moves can fail.
                    if other == *number || plan.up.remove(&other) {
                        continue;
                    }
                    match self.movable(other) {
                        Some((_, Tier::Hbm, bytes)) => {
                            plan.down.insert(other);
                            moved[0] += bytes;
                        }
                        _ => continue,
                    }
                }
            }
            if tier == Tier::Host {
                plan.up.insert(*number);
                moved[1] += bytes;
            } else {
                plan.down.remove(number);
            }
            if moved.iter().any(|bytes| *bytes > BATCH / 2) {
                break;
            }
        }
        // The room for touches stays: nothing is allocated while a program launches.
        self.touches = touches;
        self.touches.clear();
        plan
    }

    /// Makes the policy of a device, once something of it lies in host memory.
    fn learn(&mut self, device: i32) {
        let Some(there) = self.devices.get_mut(&device).and_then(Option::as_mut) else {
            return;
        };
        if there.policy.is_some() || there.table.used(Tier::Host) == 0 {
            return;
        }
        let of_device = || {
            self.ranges
                .values()
                .filter(|range| range.device == device)
                .flat_map(|range| &range.extents)
        };
        let (count, bytes) = of_device().fold((0, 0), |(count, bytes), extent| {
            (count + 1, bytes + extent.bytes)
        });
        let mean = (bytes / u64::max(count, 1)).max(BLOCK);
        let room = (there.table.used(Tier::Hbm) + there.table.room(Tier::Hbm)) * BLOCK;
        let room = ((room / mean) as usize).max(1);
        let policy = named(process::policy(), room);
        let mut policy = policy.unwrap_or_else(|| Box::new(Learned::new(room)));
        for extent in of_device() {
            if there.table.state(extent.id) == Ok(State::Hbm) {
                policy.hit(trace::Extent(extent.number));
            }
        }
        there.policy = Some(policy);
    }

    /// Some extents at random, each to its other tier: for tests.
    pub(crate) fn shake(&self, random: &mut impl FnMut() -> u64) -> Plan {
        let mut plan = Plan::default();
        let known: Vec<u32> = (0..self.numbers.len() as u32)
            .filter(|number| self.movable(*number).is_some())
            .collect();
        for _ in 0..4 {
            if known.is_empty() {
                break;
            }
            let number = known[(random() % known.len() as u64) as usize];
            match self.movable(number) {
                Some((_, Tier::Hbm, _)) => plan.down.insert(number),
                _ => plan.up.insert(number),
            };
        }
        plan
    }
}
