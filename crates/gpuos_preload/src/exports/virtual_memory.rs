//! Virtual memory of the program's own: its handles are ours, so that what is behind them can move. What has a special use stays the driver's,
//! and counts. All of it waits while the process is parked: what is on NVMe is mapped nowhere.

use std::path::Path;
use std::sync::OnceLock;

use gpuos_driver::{Access, Location, Prop};

use super::{Call, own};
use crate::driver::code;
use crate::maps::Map;
use crate::memory::{self, Memory};
use crate::mutant::{self, Mutant};
use crate::ordered;
use crate::process::BLOCK;
use crate::range::{LARGEST, Range};
use crate::vmm::{self, Answer};
use crate::{gate, pointer};

/// Whether a module of the kernel lets network adapters have memory of a GPU by its address, of which the driver's library is told nothing.
fn adapters_take_addresses() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let modules = ["/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem"];
    *FOUND.get_or_init(|| modules.iter().any(|module| Path::new(module).exists()))
}

/// Whether memory with these properties may be in either tier. What may be handed to others can as long as nobody has (PyTorch's expandable
/// segments ask for a descriptor and for RDMA), if it is one extent: then there is one handle of the driver's behind it.
fn may_move(prop: &Prop, bytes: u64, flags: u64) -> bool {
    if prop.rdma != 0 && adapters_take_addresses() {
        return false;
    }
    let mut plain = Prop::at(prop.location);
    (plain.handle_types, plain.rdma) = (prop.handle_types & Prop::DESCRIPTOR, prop.rdma);
    let whole = *prop == Prop::at(prop.location) || bytes <= LARGEST;
    *prop == plain && whole && flags == 0 && bytes > 0 && bytes.is_multiple_of(BLOCK)
}

fn create(call: &Call<'_>, to: u64, bytes: u64, prop: u64, flags: u64) -> Answer<()> {
    let prop = pointer::take::<Prop>(prop).filter(|prop| prop.location.kind == Location::DEVICE);
    let inside = gate::enter();
    let mut memory = memory::lock();
    let device = prop.as_ref().map(|prop| prop.location.id);
    if let Some(device) = device {
        ordered::make_room(&mut memory, device, bytes);
    }
    let room = device.and_then(|device| memory.info(device));
    let (Some(prop), Some((free, _)), true) = (prop, room, to != 0) else {
        drop((memory, inside));
        return call.go();
    };
    if may_move(&prop, bytes, flags) {
        pointer::give(to, memory.create(prop, bytes)?);
        return Ok(());
    }
    // The driver says first what is wrong with the size.
    call.go()?;
    if let Some(handle) = pointer::take::<u64>(to) {
        let more = memory
            .device(prop.location.id)
            .map_or(0, |there| there.left_native());
        if bytes > free.min(more) {
            vmm::release(handle);
            return Err(code::OUT_OF_MEMORY);
        }
        memory.saw_native(handle, prop.location.id, bytes, prop);
    }
    Ok(())
}

/// Maps the parts of a virtual handle, one for each extent that the mapping has something of.
fn map_parts(memory: &Memory, at: u64, map: &Map) -> Answer<()> {
    let range = memory.ranges.get(&map.handle).ok_or(code::INVALID)?;
    let fits = map.offset.checked_add(map.bytes);
    let fits = fits.is_some_and(|end| end <= range.bytes);
    if !fits
        || map.bytes == 0
        || [at, map.bytes, map.offset]
            .iter()
            .any(|n| !n.is_multiple_of(BLOCK))
    {
        return Err(code::INVALID);
    }
    let mut done = 0;
    for part in parts(range, at, map) {
        if let Err(error) = vmm::map(part.at, part.bytes, part.handle, part.offset) {
            if done > 0 {
                let _ = vmm::unmap(at, done);
            }
            return Err(error);
        }
        done += part.bytes;
    }
    Ok(())
}

/// What a mapping has of one extent.
struct Part {
    at: u64,
    bytes: u64,
    /// The extent's physical memory; 0: its bytes were lost.
    handle: u64,
    /// Where in that it begins.
    offset: u64,
}

/// The parts of a mapping at an address, in order.
fn parts<'a>(range: &'a Range, at: u64, map: &'a Map) -> impl Iterator<Item = Part> + 'a {
    range.extents.iter().filter_map(move |extent| {
        let first = extent.at - map.handle;
        let from = map.offset.max(first);
        let to = (map.offset + map.bytes).min(first + extent.bytes);
        (from < to).then(|| Part {
            at: at + (from - map.offset),
            bytes: to - from,
            handle: extent.handle,
            offset: from - first,
        })
    })
}

/// Ends mappings of which parts have no memory, and which the driver therefore does not end as a whole. `None`: there are none of these.
fn unmap_what_is_left(memory: &Memory, gone: &[u64], at: u64, bytes: u64) -> Option<Answer<()>> {
    // What the driver has mapped there, with what is between: that may be memory of others.
    let (mut all, mut next, mut lost) = (Vec::new(), at, false);
    for start in gone {
        let map = memory.maps.get(*start)?;
        all.push((next, *start - next));
        next = *start + map.bytes;
        match memory.ranges.get(&map.handle) {
            Some(range) => {
                for part in parts(range, *start, map) {
                    lost |= part.handle == 0;
                    let there = if part.handle == 0 { 0 } else { part.bytes };
                    all.push((part.at, there));
                }
            }
            None => all.push((*start, map.bytes)),
        }
    }
    all.push((next, at + bytes - next));
    let there = all.into_iter().filter(|(_, bytes)| *bytes > 0);
    lost.then(|| {
        let mut done = Ok(());
        for (at, bytes) in there {
            done = done.and(vmm::unmap(at, bytes));
        }
        done
    })
}

fn map(call: &Call<'_>, at: u64, bytes: u64, offset: u64, handle: u64, flags: u64) -> Answer<()> {
    let _inside = gate::enter();
    let mut memory = memory::lock();
    let is_virtual = memory
        .ranges
        .get(&handle)
        .is_some_and(|range| range.held.is_some());
    if is_virtual {
        let held = memory.holding(handle).is_some_and(|held| held.times > 0);
        if !held || flags != 0 {
            return Err(code::INVALID);
        }
        map_parts(&memory, at, &Map::new(bytes, handle, offset))?;
    } else {
        call.go()?;
    }
    if let Some(held) = memory.holding(handle) {
        held.maps.insert(at);
        memory.maps.insert(at, Map::new(bytes, handle, offset));
    }
    Ok(())
}

fn unmap(call: &Call<'_>, at: u64, bytes: u64) -> Answer<()> {
    let _inside = gate::enter();
    let mut memory = memory::lock();
    let gone = memory.maps.whole(at, bytes)?;
    unmap_what_is_left(&memory, &gone, at, bytes).unwrap_or_else(|| call.go())?;
    for start in gone {
        if mutant::is(Mutant::Unmapped) {
            continue;
        }
        let Some(map) = memory.maps.remove(start) else {
            continue;
        };
        if let Some(held) = memory.holding(map.handle) {
            held.maps.remove(&start);
        }
        memory.drop_held(map.handle);
    }
    Ok(())
}

fn allow(call: &Call<'_>, at: u64, bytes: u64, list: u64, count: u64) -> Answer<()> {
    let _inside = gate::enter();
    let mut memory = memory::lock();
    let own = memory.maps.whole(at, bytes)?;
    let size = size_of::<Access>() as u64;
    let list: Vec<Access> = (0..count)
        .map_while(|index| pointer::take(list + index * size))
        .collect();
    // What others have access to stays where it is, and the host reaches nothing of ours.
    for start in &own {
        let handle = memory.maps.get(*start).map_or(0, |map| map.handle);
        let device = memory.ranges.get(&handle).map(|range| range.device);
        let Some(device) = device else {
            continue;
        };
        let others = |access: &Access| access.location != Location::device(device);
        if list
            .iter()
            .any(|access| access.location.kind != Location::DEVICE)
        {
            return Err(code::INVALID);
        }
        if list.iter().any(others) {
            memory.pin(&[*start]);
        }
    }
    call.go()?;
    for start in own {
        if let Some(map) = memory.maps.get_mut(start) {
            map.allow(&list);
        }
    }
    Ok(())
}

fn release(call: &Call<'_>, handle: u64) -> Answer<()> {
    let _inside = gate::enter();
    let mut memory = memory::lock();
    let native = memory.natives.contains_key(&handle);
    match memory.holding(handle) {
        // Held by nobody: released before.
        Some(held) if held.times == 0 && !native => return Err(code::INVALID),
        Some(_) if native => call.go()?,
        Some(_) => {}
        None => {
            drop(memory);
            return call.go();
        }
    }
    if let Some(held) = memory.holding(handle) {
        held.times = held.times.saturating_sub(1);
    }
    if !mutant::is(Mutant::HandleKept) {
        memory.drop_held(handle);
    }
    Ok(())
}

fn retain(call: &Call<'_>, to: u64, at: u64) -> Answer<()> {
    let _inside = gate::enter();
    let mut memory = memory::lock();
    let handle = memory.maps.around(at).map(|(_, map)| map.handle);
    let Some(handle) = handle.filter(|_| to != 0) else {
        memory.pin(&[at]);
        return call.go();
    };
    if memory.natives.contains_key(&handle) {
        call.go()?;
    } else {
        pointer::give(to, handle);
    }
    // The driver may give another number for memory of its own.
    let given = pointer::take::<u64>(to).unwrap_or(handle);
    if let Some(held) = memory.holding(given) {
        held.times += 1;
    }
    Ok(())
}

own! { false
    fn cuMemCreate(call: to, bytes, prop, flags) {
        create(call, to, bytes, prop, flags)
    }
    fn cuMemMap(call: at, bytes, offset, handle, flags) {
        map(call, at, bytes, offset, handle, flags)
    }
    fn cuMemUnmap(call: at, bytes) {
        unmap(call, at, bytes)
    }
    fn cuMemSetAccess(call: at, bytes, list, count) {
        allow(call, at, bytes, list, count)
    }
    fn cuMemRelease(call: handle) {
        release(call, handle)
    }
    fn cuMemRetainAllocationHandle(call: to, at) {
        retain(call, to, at)
    }
    fn cuMemGetAllocationPropertiesFromHandle(call: to, handle) {
        let memory = memory::lock();
        let held = memory.ranges.get(&handle).and_then(|range| range.held.as_ref());
        match held {
            Some(held) if held.times > 0 && to != 0 => {
                pointer::give(to, held.prop);
                Ok(())
            }
            Some(_) => Err(code::INVALID),
            None => call.go(),
        }
    }
    // Both look at what is mapped: what is being moved is there again when the lock is had.
    fn cuMemGetAccess(call: to, place, at) {
        let _inside = gate::enter();
        let _memory = memory::lock();
        call.go()
    }
    fn cuMemAddressFree(call: at, bytes) {
        let _inside = gate::enter();
        let mut memory = memory::lock();
        call.go()?;
        memory.graphs.reserved.remove(&at);
        Ok(())
    }
    fn cuMemAddressReserve(call: to, bytes, align, at, flags) {
        call.go()?;
        if let Some(start) = pointer::take::<u64>(to) {
            memory::lock().graphs.reserved.insert(start, bytes);
        }
        Ok(())
    }
}
