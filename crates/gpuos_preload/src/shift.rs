//! Moving extents from one tier to the other: copy, then put the new memory in the place of the old. The gate is sealed meanwhile.

use gpuos_driver::{Access, Location};
use gpuos_memory::table::{State, Tier};

use crate::device::BATCH;
use crate::memory::Memory;
use crate::mutant::{self, Mutant};
use crate::range::Range;
use crate::vmm::{self, Answer};
use crate::{mover, process};

/// An extent on its way.
struct Moving {
    start: u64,
    at: usize,
    context: u64,
    /// Its new physical memory.
    handle: u64,
    /// Where that is mapped for the copy.
    scratch: u64,
    /// Where the old is, if that is for the copy alone.
    source: Option<u64>,
}

/// A part of an extent that somebody sees at an address.
struct View {
    at: u64,
    bytes: u64,
    /// Where in the extent's physical memory it begins.
    offset: u64,
    access: Vec<Access>,
}

impl View {
    /// Shows physical memory here.
    fn show(&self, handle: u64) -> Answer<()> {
        let offset = match mutant::is(Mutant::MapOffset) {
            true => 0,
            false => self.offset,
        };
        vmm::map(self.at, self.bytes, handle, offset)?;
        if self.access.is_empty() || mutant::is(Mutant::NoAccess) {
            return Ok(());
        }
        let mut access = self.access.clone();
        if mutant::is(Mutant::ReadOnly) {
            access.iter_mut().for_each(|one| one.flags = Access::READ);
        }
        let shown = vmm::access(self.at, self.bytes, &access);
        if shown.is_err() {
            let _ = self.hide();
        }
        shown
    }

    fn hide(&self) -> Answer<()> {
        vmm::unmap(self.at, self.bytes)
    }
}

/// Physical memory that is mapped for a copy; not any more when it is dropped.
struct Aside {
    at: u64,
    bytes: u64,
}

impl Aside {
    fn show(at: u64, bytes: u64, handle: u64, device: i32) -> Answer<Aside> {
        let access = Access {
            location: Location::device(device),
            flags: Access::READ_WRITE,
        };
        vmm::map(at, bytes, handle, 0)?;
        let aside = Aside { at, bytes };
        vmm::access(at, bytes, &[access])?;
        Ok(aside)
    }

    /// Has it stay mapped.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = vmm::unmap(self.at, self.bytes);
    }
}

/// Shows physical memory in all views, or in none.
fn show(views: &[View], handle: u64) -> Answer<()> {
    for (count, view) in views.iter().enumerate() {
        if let Err(error) = view.show(handle) {
            for shown in &views[..count] {
                let _ = shown.hide();
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Shows other memory in all views. Answers false where the old is shown as before.
fn exchange(views: &[View], old: u64, new: u64) -> bool {
    for (count, view) in views.iter().enumerate() {
        if view.hide().is_err() {
            return back(&views[..count], old);
        }
    }
    show(views, new).is_ok() || back(views, old)
}

/// Back to what was there, whose bytes are still good.
fn back(views: &[View], old: u64) -> bool {
    if show(views, old).is_err()
        && let Some(view) = views.first()
    {
        process::pin(format_args!(
            "{} MiB at {:#x} could not be mapped again and are lost: the next work that touches them fails",
            view.bytes >> 20,
            view.at
        ));
    }
    false
}

impl Memory {
    /// Moves extents of a device to a tier; those that cannot be stay.
    pub(crate) fn shift(&mut self, device: i32, numbers: impl Iterator<Item = u32>, tier: Tier) {
        let mut moving = Vec::new();
        let mut used = 0;
        for number in numbers {
            if let Some(one) = self.begin(device, number, tier, used) {
                used += self.ranges[&one.start].extents[one.at].bytes;
                moving.push(one);
            }
        }
        // Copies run beside each other, on one stream for each context.
        let contexts: Vec<u64> = moving.iter().map(|one| one.context).collect();
        let copied: Vec<bool> = contexts
            .iter()
            .map(|context| self.finish(*context))
            .collect();
        for (one, copied) in moving.into_iter().zip(copied) {
            self.end(device, &one, copied);
        }
    }

    /// The mover's stream in a context.
    pub(crate) fn stream(&mut self, context: u64) -> Option<u64> {
        let known = self.contexts.get_mut(&context)?;
        if known.stream.is_none() {
            known.stream = vmm::within(context, vmm::stream).ok();
        }
        known.stream
    }

    fn finish(&mut self, context: u64) -> bool {
        let stream = self.stream(context);
        stream.is_some_and(|stream| vmm::within(context, || vmm::finish(stream)).is_ok())
    }

    /// Begins to copy an extent.
    fn begin(&mut self, device: i32, number: u32, tier: Tier, used: u64) -> Option<Moving> {
        let (start, at) = (*self.numbers.get(number as usize)?)?;
        let range = self
            .ranges
            .get(&start)
            .filter(|range| range.device == device)?;
        if range.pinned && !mutant::is(Mutant::Pinned) {
            return None;
        }
        let held = range.held.is_some();
        let extent = &range.extents[at];
        let (from, old, bytes, id) = (extent.at, extent.handle, extent.bytes, extent.id);
        if used + bytes > BATCH {
            return None;
        }
        let context = match held {
            true => self.context_on(device)?,
            false => range.context,
        };
        let stream = self.stream(context)?;
        let there = self.devices.get_mut(&device)?.as_mut()?;
        if there.scratch.is_none() {
            there.scratch = vmm::reserve(2 * BATCH).ok();
        }
        let scratch = there.scratch? + used;
        there.table.begin(id, tier).ok()?;
        let copied = if mutant::is(Mutant::NoCopy) {
            0
        } else if mutant::is(Mutant::ShortCopy) {
            bytes - 4096
        } else {
            bytes
        };
        // Memory that the program maps itself may be mapped nowhere, or without access.
        let source = held.then_some(scratch + BATCH);
        let copy = |handle| {
            let new = Aside::show(scratch, bytes, handle, device)?;
            let old = match source {
                Some(source) => Some(Aside::show(source, bytes, old, device)?),
                None => None,
            };
            if copied > 0 {
                let from = source.unwrap_or(from);
                vmm::within(context, || vmm::copy(scratch, from, copied, stream))?;
            }
            // They are there until the copy is done.
            new.keep();
            if let Some(old) = old {
                old.keep();
            }
            Ok(())
        };
        let begun = vmm::create(bytes, there.place(device, tier)).and_then(|handle| {
            let begun = copy(handle);
            if begun.is_err() {
                vmm::release(handle);
            }
            begun.map(|()| handle)
        });
        let Ok(handle) = begun else {
            let _ = there.table.end(id, false);
            return None;
        };
        Some(Moving {
            start,
            at,
            context,
            handle,
            scratch,
            source,
        })
    }

    /// All places at which somebody sees an extent.
    fn views(&self, range: &Range, start: u64, at: usize) -> Vec<View> {
        let extent = &range.extents[at];
        let Some(held) = &range.held else {
            let device = self.devices.get(&range.device).and_then(Option::as_ref);
            return vec![View {
                at: extent.at,
                bytes: extent.bytes,
                offset: 0,
                access: device.map_or_else(Vec::new, |there| there.sharers(range.device)),
            }];
        };
        let (first, last) = (extent.at - start, extent.at - start + extent.bytes);
        let one = |map: &u64| {
            let address = *map;
            let map = self.maps.get(address)?;
            let (from, to) = (map.offset.max(first), (map.offset + map.bytes).min(last));
            (from < to).then(|| View {
                at: address + (from - map.offset),
                bytes: to - from,
                offset: from - first,
                access: map.access(),
            })
        };
        let count = match mutant::is(Mutant::FirstMap) {
            true => 1,
            false => held.maps.len(),
        };
        held.maps.iter().take(count).filter_map(one).collect()
    }

    /// Puts the new memory in the place of the old.
    fn end(&mut self, device: i32, one: &Moving, copied: bool) {
        let Some(range) = self.ranges.get(&one.start) else {
            return;
        };
        let views = self.views(range, one.start, one.at);
        let extent = &range.extents[one.at];
        let (old, bytes, id) = (extent.handle, extent.bytes, extent.id);
        for aside in std::iter::once(one.scratch).chain(one.source) {
            let _ = vmm::unmap(aside, bytes);
        }
        let moved = copied && exchange(&views, old, one.handle);
        let Some(there) = self.devices.get_mut(&device).and_then(Option::as_mut) else {
            return;
        };
        let _ = there.table.end(id, moved);
        if !moved {
            vmm::release(one.handle);
            return;
        }
        // Nobody can tell what a kernel writes: a copy of the bytes in host memory would be good for nothing.
        if there.table.state(id) == Ok(State::HbmWithShadow) {
            let _ = there.table.drop_shadow(id);
        }
        vmm::release(old);
        mover::count(there.table.state(id) == Ok(State::Host), bytes);
        if let Some(range) = self.ranges.get_mut(&one.start) {
            range.extents[one.at].handle = one.handle;
        }
    }
}
