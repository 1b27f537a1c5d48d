//! Moving extents from one tier to the other: copy, then put the new memory in the place of the old. The gate is sealed meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_driver::{Access, Location};
use gpuos_memory::table::{State, Tier};

use crate::device::BATCH;
use crate::driver::code;
use crate::memory::Memory;
use crate::mutant::{self, Mutant};
use crate::range::Range;
use crate::spare::Piece;
use crate::vmm::{self, Answer};
use crate::{figures, process};

/// Bytes of which copies run beside the calls that end the ones before.
const STRIDE: u64 = BATCH / 2;
/// Bytes after which others have the lock.
const AT_ONCE: u64 = 4 * BATCH;

/// An extent on its way.
pub(crate) struct Moving {
    start: u64,
    at: usize,
    context: u64,
    /// Its new physical memory, and where that is mapped for the copy, if it has addresses of its own.
    new: Piece,
    /// The new is in the place of the old already, and the copy goes there.
    placed: bool,
    /// The process is parked: the new stays where it is mapped, and nothing is where the program sees it.
    away: bool,
    /// Where the new and the old are mapped for the copy alone.
    aside: Vec<u64>,
}

/// Extents whose copies run.
pub(crate) struct Stride {
    pub(crate) moving: Vec<Moving>,
    tier: Tier,
    /// Whether all copies of a context are done: its event, 0 where there is none.
    events: BTreeMap<u64, u64>,
}

/// A part of an extent that somebody sees at an address.
pub(crate) struct View {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
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

    /// Shows nothing here any more.
    pub(crate) fn hide(&self) -> Answer<()> {
        vmm::unmap(self.at, self.bytes)
    }
}

/// Physical memory that is mapped for a copy; not any more when it is dropped.
pub(crate) struct Aside {
    pub(crate) at: u64,
    bytes: u64,
}

impl Aside {
    /// Maps it at these addresses, for its device.
    pub(crate) fn show(at: u64, bytes: u64, handle: u64, device: i32) -> Answer<Aside> {
        let access = Access {
            location: Location::device(device),
            flags: Access::READ_WRITE,
        };
        vmm::map(at, bytes, handle, 0)?;
        let aside = Aside { at, bytes };
        vmm::access(at, bytes, &[access])?;
        Ok(aside)
    }

    /// Has it stay mapped: where.
    fn keep(self) -> u64 {
        let at = self.at;
        std::mem::forget(self);
        at
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = vmm::unmap(self.at, self.bytes);
    }
}

/// Shows physical memory in all views, or in none.
pub(crate) fn show(views: &[View], handle: u64) -> Answer<()> {
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
    hide(views, old) && (show(views, new).is_ok() || back(views, old))
}

/// Shows nothing in all views. Answers false where the old is shown as before.
fn hide(views: &[View], old: u64) -> bool {
    for (count, view) in views.iter().enumerate() {
        if view.hide().is_err() {
            return back(&views[..count], old);
        }
    }
    true
}

/// Back to what was there, whose bytes are still good.
fn back(views: &[View], old: u64) -> bool {
    back_in(views, old);
    false
}

/// Shows memory where it was. Answers whether it is there.
fn back_in(views: &[View], old: u64) -> bool {
    let shown = show(views, old).is_ok();
    // At the end of the process the driver may have ended already.
    if !shown
        && !process::is_ending()
        && let Some(view) = views.first()
    {
        process::pin(format_args!(
            "{} MiB at {:#x} could not be mapped again and are lost: the next work that touches them fails",
            view.bytes >> 20,
            view.at
        ));
    }
    shown
}

impl Memory {
    /// Moves extents of a device to a tier; those that cannot be stay. The memory of some is exchanged while others are copied.
    pub(crate) fn shift(&mut self, device: i32, numbers: impl Iterator<Item = u32>, tier: Tier) {
        let mut numbers = numbers.peekable();
        let (mut under_way, mut half, mut done) = (None, 0, 0);
        while done < AT_ONCE {
            let (next, bytes) = self.stride(device, &mut numbers, tier, half, STRIDE);
            if let Some(before) = under_way.take() {
                self.finish(device, before);
            }
            if next.moving.is_empty() {
                break;
            }
            under_way = Some(next);
            half = STRIDE - half;
            done += bytes;
        }
        if let Some(last) = under_way {
            self.finish(device, last);
        }
    }

    /// Begins to copy as many as there are in so many bytes, by the half of the addresses for copies that begins there.
    pub(crate) fn stride(
        &mut self,
        device: i32,
        numbers: &mut std::iter::Peekable<impl Iterator<Item = u32>>,
        tier: Tier,
        half: u64,
        most: u64,
    ) -> (Stride, u64) {
        let (mut moving, mut used) = (Vec::new(), 0);
        while let Some(number) = numbers.peek().copied() {
            let bytes = self.movable(number).map_or(0, |(.., bytes)| bytes);
            if used + bytes > most {
                break;
            }
            numbers.next();
            if let Some(one) = self.begin(device, number, tier, half + used) {
                used += one.new.bytes;
                moving.push(one);
            }
        }
        let contexts: BTreeSet<u64> = moving.iter().map(|one| one.context).collect();
        let mut mark = |context: u64| {
            let stream = self.stream(context, tier)?;
            vmm::mark(context, stream).ok()
        };
        let events = contexts
            .into_iter()
            .map(|context| (context, mark(context).unwrap_or(0)))
            .collect();
        let stride = Stride {
            moving,
            tier,
            events,
        };
        (stride, used)
    }

    /// Waits for the copies of a stride, and puts the new memory in the place of the old.
    pub(crate) fn finish(&mut self, device: i32, stride: Stride) {
        let mut copied = BTreeSet::new();
        for (context, event) in stride.events {
            let stream = self.stream(context, stride.tier);
            let done = vmm::within(context, || match (event, stream) {
                (0, Some(stream)) => vmm::finish(stream),
                (0, None) => Err(code::INVALID),
                _ => {
                    let done = vmm::wait_for(event);
                    let _ = vmm::destroy_event(event);
                    done
                }
            });
            if done.is_ok() {
                copied.insert(context);
            }
        }
        for one in stride.moving {
            let copied = copied.contains(&one.context);
            self.end(device, one, copied);
        }
    }

    /// The mover's stream in a context for copies to a tier: both ways of a link carry at once.
    pub(crate) fn stream(&mut self, context: u64, tier: Tier) -> Option<u64> {
        let known = self.contexts.get_mut(&context)?;
        let stream = &mut known.streams[usize::from(tier == Tier::Host)];
        if stream.is_none() {
            *stream = vmm::within(context, vmm::stream).ok();
        }
        *stream
    }

    /// Begins to copy an extent.
    fn begin(&mut self, device: i32, number: u32, tier: Tier, offset: u64) -> Option<Moving> {
        self.movable(number)?;
        let found = self.extent(number);
        let (start, range, at) = found.filter(|(_, range, _)| range.device == device)?;
        let prop = range.held.as_ref().map(|held| held.prop);
        let held = prop.is_some();
        let extent = &range.extents[at];
        let (from, old, bytes, id) = (extent.is_at(), extent.handle, extent.bytes, extent.id);
        let (context, parked) = (range.context, extent.aside != 0);
        let context = self.context_for(device, context)?;
        let stream = self.stream(context, tier)?;
        let there = self.devices.get_mut(&device)?.as_mut()?;
        let scratch = there.scratch()? + offset;
        there.table.begin(id, tier).ok()?;
        let copied = if mutant::is(Mutant::NoCopy) {
            0
        } else if mutant::is(Mutant::ShortCopy) {
            bytes - 4096
        } else {
            bytes
        };
        let new = match tier {
            Tier::Host => there.host_memory(device, bytes),
            Tier::Hbm => there
                .hbm_memory(device, bytes, prop.as_ref())
                .map(|handle| Piece::new(handle, bytes)),
        };
        let Ok(new) = new else {
            let _ = there.table.end(id, false);
            return None;
        };
        // A driver enters host memory page by page, which takes about as long as the copy: done before it, it runs beside the copies of others.
        let placed = tier == Tier::Host && !held && new.at == 0;
        let away = tier == Tier::Host && self.parked && new.at != 0;
        // Memory that the program maps itself may be mapped nowhere, or without access.
        let source = (held && !parked).then_some(scratch + BATCH);
        let copy = || {
            let aside = match new.at {
                0 => Some(Aside::show(scratch, bytes, new.handle, device)?),
                _ => None,
            };
            let old = match source {
                Some(source) => Some(Aside::show(source, bytes, old, device)?),
                None => None,
            };
            if copied > 0 {
                let to = aside.as_ref().map_or(new.at, |aside| aside.at);
                let from = source.unwrap_or(from);
                vmm::within(context, || vmm::copy(to, from, copied, stream))?;
            }
            // They are there until the copy is done.
            let kept = [aside, old].into_iter().flatten().map(Aside::keep);
            Ok(kept.collect::<Vec<u64>>())
        };
        let copying: Answer<Vec<u64>> = match placed {
            true => self.copy_placed((start, at), new.handle, scratch + BATCH, copied, stream),
            false => copy(),
        };
        let Ok(aside) = copying else {
            if let Some(there) = self.devices.get_mut(&device).and_then(Option::as_mut) {
                let _ = there.table.end(id, false);
            }
            new.give();
            return None;
        };
        Some(Moving {
            start,
            at,
            context,
            new,
            placed,
            away,
            aside,
        })
    }

    /// Puts new memory in the place of the old, and begins to copy to it from the old one, which has addresses of its own for that: where.
    fn copy_placed(
        &self,
        (start, at): (u64, usize),
        new: u64,
        source: u64,
        copied: u64,
        stream: u64,
    ) -> Answer<Vec<u64>> {
        let range = self.ranges.get(&start).ok_or(code::INVALID)?;
        let extent = &range.extents[at];
        let (to, old, bytes) = (extent.at, extent.handle, extent.bytes);
        let views = self.views(range, start, at);
        let aside = Aside::show(source, bytes, old, range.device)?;
        if !exchange(&views, old, new) {
            return Err(code::INVALID);
        }
        if copied > 0
            && let Err(error) = vmm::within(range.context, || vmm::copy(to, source, copied, stream))
        {
            exchange(&views, new, old);
            return Err(error);
        }
        Ok(vec![aside.keep()])
    }

    /// All places at which somebody sees an extent.
    pub(crate) fn views(&self, range: &Range, start: u64, at: usize) -> Vec<View> {
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
    fn end(&mut self, device: i32, one: Moving, copied: bool) {
        let Some(range) = self.ranges.get(&one.start) else {
            return;
        };
        let mut new = one.new;
        let views = self.views(range, one.start, one.at);
        let extent = &range.extents[one.at];
        let (left, bytes, id) = (extent.piece(), extent.bytes, extent.id);
        let old = left.handle;
        for aside in one.aside {
            let _ = vmm::unmap(aside, bytes);
        }
        if !one.away {
            new.unmap();
        }
        let moved = match (one.placed, copied) {
            (false, false) => false,
            (false, true) if one.away => hide(&views, old),
            // What was parked is seen nowhere yet.
            (false, true) if left.at != 0 => show(&views, new.handle).is_ok(),
            (false, true) => exchange(&views, old, new.handle),
            (true, true) => true,
            (true, false) => {
                exchange(&views, new.handle, old);
                false
            }
        };
        let Some(there) = self.devices.get_mut(&device).and_then(Option::as_mut) else {
            return;
        };
        let _ = there.table.end(id, moved);
        if !moved {
            new.give();
            return;
        }
        // Nobody can tell what a kernel writes: a copy of the bytes in host memory would be good for nothing.
        if there.table.state(id) == Ok(State::HbmWithShadow) {
            let _ = there.table.drop_shadow(id);
        }
        let to_host = there.table.state(id) == Ok(State::Host);
        match to_host {
            true => left.give(),
            false => there.keep(left),
        }
        figures::count(to_host, bytes);
        if let Some(range) = self.ranges.get_mut(&one.start) {
            let extent = &mut range.extents[one.at];
            (extent.handle, extent.aside) = (new.handle, new.at);
        }
    }

    /// Has the program see all of its memory again: what was parked and stays in host memory is mapped where it was.
    pub(crate) fn show_parked(&mut self) {
        self.parked = false;
        if mutant::is(Mutant::ParkedUnseen) {
            return;
        }
        let all = self.ranges.iter().flat_map(|(start, range)| {
            let extents = range.extents.iter().enumerate();
            extents.filter_map(|(at, extent)| (extent.aside != 0).then_some((*start, at)))
        });
        for (start, at) in all.collect::<Vec<(u64, usize)>>() {
            let Some(range) = self.ranges.get(&start) else {
                continue;
            };
            let mut piece = range.extents[at].piece();
            if !back_in(&self.views(range, start, at), piece.handle) {
                continue;
            }
            piece.unmap();
            if let Some(range) = self.ranges.get_mut(&start) {
                range.extents[at].aside = 0;
            }
        }
    }
}
