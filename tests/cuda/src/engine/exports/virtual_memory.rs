//! Virtual memory: addresses, physical memory, and what is mapped where.

use std::collections::BTreeMap;
use std::ffi::c_ulonglong;
use std::sync::{Arc, Mutex, PoisonError};

use super::cuda;
use crate::abi::{
    AccessDesc, AllocationProp, Answer, LOCATION_DEVICE, LOCATION_HOST, LOCATION_HOST_NUMA,
    LOCATION_HOST_NUMA_CURRENT, Location, code,
};
use crate::engine::driver::{Driver, driver};
use crate::memory::{BLOCK, Memory, Physical};
use crate::pointer::{In, Out};
use crate::space::{Backing, Mapping, Rights};

/// Handles of physical memory. One handle can be held several times.
pub(crate) struct Handles(Mutex<(u64, BTreeMap<u64, Held>)>);

#[derive(Clone)]
struct Held {
    physical: Arc<Physical>,
    prop: AllocationProp,
    times: u32,
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles(Mutex::new((0, BTreeMap::new())))
    }

    fn add(&self, physical: Arc<Physical>, prop: AllocationProp) -> u64 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.0 += 1;
        let handle = (0x1A << 48) + all.0 * 16;
        let held = Held {
            physical,
            prop,
            times: 1,
        };
        all.1.insert(handle, held);
        handle
    }

    fn get(&self, handle: u64) -> Answer<Held> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.1.get(&handle).cloned().ok_or(code::INVALID)
    }

    /// Holds the memory once more, by the handle that it has if that is still there.
    fn retain(&self, physical: &Arc<Physical>) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |held: &Held| Arc::ptr_eq(&held.physical, physical);
        let (handle, held) = all.1.iter_mut().find(|(_, held)| same(held))?;
        held.times += 1;
        Some(*handle)
    }

    fn release(&self, handle: u64) -> Answer<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = all.1.get_mut(&handle).ok_or(code::INVALID)?;
        held.times -= 1;
        if held.times == 0 {
            all.1.remove(&handle);
        }
        Ok(())
    }
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: u32 = 1;

/// The memory that allocations with these properties come from.
fn memory<'a>(driver: &'a Driver, prop: &AllocationProp) -> Answer<&'a Arc<Memory>> {
    if prop.kind != PINNED {
        return Err(code::INVALID);
    }
    if !matches!(prop.handle_types, 0 | DESCRIPTOR) {
        eprintln!("simulated libcuda: memory is given to other processes by descriptors alone");
        return Err(code::NOT_SUPPORTED);
    }
    match prop.location.kind {
        LOCATION_DEVICE => Ok(&driver.device(prop.location.id)?.memory),
        LOCATION_HOST | LOCATION_HOST_NUMA | LOCATION_HOST_NUMA_CURRENT => Ok(&driver.host),
        _ => Err(code::INVALID),
    }
}

fn blocks(size: usize) -> Answer<u64> {
    match size > 0 && (size as u64).is_multiple_of(BLOCK) {
        true => Ok(size as u64),
        false => Err(code::INVALID),
    }
}

/// The properties of what lies at an address, for a handle that was given back.
fn prop_of(physical: &Physical) -> AllocationProp {
    let location = match physical.place() {
        crate::memory::Place::Device(index) => Location {
            kind: LOCATION_DEVICE,
            id: index as i32,
        },
        crate::memory::Place::Host => Location {
            kind: LOCATION_HOST,
            id: 0,
        },
    };
    AllocationProp {
        kind: PINNED,
        handle_types: 0,
        location,
        win32: 0,
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

/// What access one descriptor gives. Flags are 0, 1 (read) and 3 (read and write).
fn grant(driver: &Driver, desc: AccessDesc) -> Answer<impl Fn(&mut Rights)> {
    if !matches!(desc.flags, 0 | 1 | 3) {
        return Err(code::INVALID);
    }
    let bit = match desc.location.kind {
        LOCATION_DEVICE => Some(1 << driver.device(desc.location.id)?.index),
        LOCATION_HOST | LOCATION_HOST_NUMA | LOCATION_HOST_NUMA_CURRENT => None,
        _ => return Err(code::INVALID),
    };
    Ok(move |rights: &mut Rights| {
        let Some(bit) = bit else {
            rights.host = desc.flags;
            return;
        };
        rights.read &= !bit;
        rights.write &= !bit;
        if desc.flags != 0 {
            rights.read |= bit;
        }
        if desc.flags == 3 {
            rights.write |= bit;
        }
    })
}

cuda! {
    fn cuMemAddressReserve(out: Out<u64>, size: usize, align: usize, hint: u64, flags: c_ulonglong) {
        let align = (align as u64).max(BLOCK);
        if flags != 0 || !align.is_power_of_two() {
            return Err(code::INVALID);
        }
        out.set(driver()?.space.reserve(blocks(size)?, align, hint)?)
    }
    fn cuMemAddressFree(start: u64, size: usize) {
        driver()?.space.free(start, size as u64)
    }
    fn cuMemCreate(out: Out<u64>, size: usize, prop: In<AllocationProp>, flags: c_ulonglong) {
        let (driver, prop) = (driver()?, prop.get()?);
        if flags != 0 {
            return Err(code::INVALID);
        }
        let physical = memory(driver, &prop)?.take(blocks(size)?)?;
        out.set(driver.handles.add(Arc::new(physical), prop))
    }
    fn cuMemRelease(handle: u64) {
        driver()?.handles.release(handle)
    }
    fn cuMemMap(start: u64, size: usize, offset: usize, handle: u64, flags: c_ulonglong) {
        let driver = driver()?;
        let (length, offset) = (blocks(size)?, offset as u64);
        let held = driver.handles.get(handle)?;
        let fits = offset.checked_add(length).is_some_and(|end| end <= held.physical.length());
        if flags != 0 || !start.is_multiple_of(BLOCK) || !offset.is_multiple_of(BLOCK) || !fits {
            return Err(code::INVALID);
        }
        let mapping = Mapping {
            length,
            backing: Backing::Physical(held.physical, offset),
            rights: Rights::default(),
        };
        driver.space.map(start, mapping)
    }
    fn cuMemUnmap(start: u64, size: usize) {
        let driver = driver()?;
        let gone = driver.space.unmap(start, size as u64)?;
        // Work that was to touch this may have done so or not: nobody waited for it.
        for context in driver.unfinished.touching(start, size as u64) {
            eprintln!("simulated libcuda: cuMemUnmap of {start:#x}: work that is not done was to touch it");
            context.fail(code::ILLEGAL_ADDRESS);
        }
        drop(gone);
        Ok(())
    }
    fn cuMemSetAccess(start: u64, size: usize, list: In<AccessDesc>, count: usize) {
        let driver = driver()?;
        for desc in list.list(count)? {
            let change = grant(driver, desc)?;
            driver.space.grant(start, size as u64, change)?;
        }
        Ok(())
    }
    fn cuMemGetAccess(flags: Out<c_ulonglong>, place: In<Location>, address: u64) {
        let (driver, place) = (driver()?, place.get()?);
        let rights = driver.space.look(address, |_, mapping| mapping.rights);
        let rights = rights.ok_or(code::INVALID)?;
        let found = match place.kind {
            LOCATION_DEVICE => {
                let device = driver.device(place.id)?.index;
                let own = rights.owner == Some(device);
                let bit = |mask: u32| mask & (1 << device) != 0 || own;
                u64::from(bit(rights.read)) | u64::from(bit(rights.write)) << 1
            }
            LOCATION_HOST | LOCATION_HOST_NUMA | LOCATION_HOST_NUMA_CURRENT => rights.host.into(),
            _ => return Err(code::INVALID),
        };
        flags.set(found)
    }
    fn cuMemGetAllocationGranularity(out: Out<usize>, prop: In<AllocationProp>, option: u32) {
        memory(driver()?, &prop.get()?)?;
        match option {
            // Minimum and recommended.
            0 | 1 => out.set(BLOCK as usize),
            _ => Err(code::INVALID),
        }
    }
    fn cuMemGetAllocationPropertiesFromHandle(out: Out<AllocationProp>, handle: u64) {
        out.set(driver()?.handles.get(handle)?.prop)
    }
    fn cuMemRetainAllocationHandle(out: Out<u64>, address: u64) {
        let driver = driver()?;
        let found = driver.space.look(address, |_, mapping| match &mapping.backing {
            // Memory of cuMemAlloc has no handle.
            Backing::Physical(physical, _) if mapping.rights.owner.is_none() => Some(Arc::clone(physical)),
            _ => None,
        });
        let physical = found.flatten().ok_or(code::INVALID)?;
        let handle = driver.handles.retain(&physical);
        out.set(handle.unwrap_or_else(|| {
            let prop = prop_of(&physical);
            driver.handles.add(physical, prop)
        }))
    }
    // The descriptor is that of the whole memory, and its position is where the handle's begins: nothing here can import it.
    fn cuMemExportToShareableHandle(out: Out<i32>, handle: u64, kind: u32, flags: c_ulonglong) {
        let held = driver()?.handles.get(handle)?;
        if flags != 0 || kind != DESCRIPTOR || held.prop.handle_types != DESCRIPTOR {
            return Err(code::INVALID);
        }
        out.set(held.physical.descriptor().ok_or(code::UNKNOWN)?)
    }
}
