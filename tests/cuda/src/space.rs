//! Addresses: one range of them is reserved for devices, host memory that was registered keeps its
//! own. What is mapped where, and who may touch it, is a table that kernels and copies ask for every
//! piece they touch: an address that is not in it is a fault and no crash.
//!
//! In the range of devices the process itself can touch nothing (the pages are there without access),
//! but for host memory to which it gave itself access. Kernels reach memory by another mapping, that
//! of [`crate::memory`], and hold the table's lock while they touch it.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::abi::{Answer, code};
use crate::memory::{BLOCK, Physical, Place};

/// Bytes of addresses for devices; a smaller range is taken where a limit forbids this one.
const RANGE: u64 = 1 << 40;

/// The longest piece that is touched under the lock: who unmaps waits for no more.
const PIECE: u64 = 256 << 10;

/// What is mapped at an address.
pub(crate) struct Mapping {
    /// Bytes.
    pub(crate) length: u64,
    pub(crate) backing: Backing,
    pub(crate) rights: Rights,
}

/// What lies behind a mapping.
#[derive(Clone)]
pub(crate) enum Backing {
    /// Physical memory, from this offset.
    Physical(Arc<Physical>, u64),
    /// Memory of the process at the same address.
    Process,
}

/// Who may touch a mapping.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rights {
    /// The device whose allocation it is; those that have it as a peer may touch it too.
    pub(crate) owner: Option<usize>,
    /// A bit for each device that may read.
    pub(crate) read: u32,
    /// A bit for each device that may write.
    pub(crate) write: u32,
    /// 0, 1 (read) or 3 (read and write): what the process itself may do.
    pub(crate) host: u32,
}

/// Who touches memory.
#[derive(Clone, Copy)]
pub(crate) enum Who {
    /// A kernel on this device.
    Kernel(usize),
    /// A copy: it reaches what any device may reach, and memory of the process that was never registered.
    Copy,
}

/// The address that nobody may touch.
#[derive(Debug)]
pub(crate) struct Fault(pub(crate) u64);

/// The addresses of the process.
pub(crate) struct Space {
    base: u64,
    size: u64,
    inner: RwLock<Inner>,
    /// For each device, a bit for each whose allocations it may touch.
    peers: [AtomicU32; 16],
}

struct Inner {
    cursor: u64,
    reserved: BTreeMap<u64, u64>,
    maps: BTreeMap<u64, Mapping>,
}

impl Space {
    pub(crate) fn new() -> io::Result<Space> {
        let mut size = RANGE;
        let base = loop {
            match no_access(None, size) {
                Ok(base) => break base,
                Err(error) if size <= 1 << 34 => return Err(error),
                Err(_) => size /= 4,
            }
        };
        let first = base.next_multiple_of(BLOCK);
        Ok(Space {
            base: first,
            size: size - BLOCK,
            inner: RwLock::new(Inner {
                cursor: first,
                reserved: BTreeMap::new(),
                maps: BTreeMap::new(),
            }),
            peers: Default::default(),
        })
    }

    /// Whether the address is in the range of devices.
    pub(crate) fn holds(&self, address: u64) -> bool {
        (self.base..self.base + self.size).contains(&address)
    }

    /// Reserves addresses; those at `hint` if they are free. What was used last is used again last.
    pub(crate) fn reserve(&self, length: u64, align: u64, hint: u64) -> Answer<u64> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let end = self.base + self.size;
        let fits = |at: u64| self.holds(at) && at.checked_add(length).is_some_and(|e| e <= end);
        if hint.is_multiple_of(align) && fits(hint) && inner.blocker(hint, length).is_none() {
            inner.reserved.insert(hint, length);
            return Ok(hint);
        }
        let mut start = inner.cursor.next_multiple_of(align);
        let mut wrapped = false;
        loop {
            if !fits(start) {
                if wrapped {
                    return Err(code::OUT_OF_MEMORY);
                }
                wrapped = true;
                start = self.base.next_multiple_of(align);
            } else if let Some(after) = inner.blocker(start, length) {
                start = after.next_multiple_of(align);
            } else {
                inner.reserved.insert(start, length);
                inner.cursor = start + length;
                return Ok(start);
            }
        }
    }

    /// Frees addresses: a whole reservation in which nothing is mapped.
    pub(crate) fn free(&self, start: u64, length: u64) -> Answer<()> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let is_whole = inner.reserved.get(&start) == Some(&length);
        if !is_whole || inner.overlaps(start, length) {
            return Err(code::INVALID);
        }
        inner.reserved.remove(&start);
        Ok(())
    }

    /// Maps: inside one reservation for physical memory, and where nothing is mapped yet.
    pub(crate) fn map(&self, start: u64, mapping: Mapping) -> Answer<()> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let length = mapping.length;
        if let Backing::Physical(..) = mapping.backing {
            let around = inner.reserved.range(..=start).next_back();
            let inside = around.is_some_and(|(at, size)| {
                start.checked_add(length).is_some_and(|e| e <= at + size)
            });
            if !inside {
                return Err(code::INVALID);
            }
        }
        if length == 0 || inner.overlaps(start, length) {
            return Err(code::INVALID);
        }
        inner.maps.insert(start, mapping);
        Ok(())
    }

    /// Ends the mappings of a range that consists of whole ones, and gives what lay behind them.
    pub(crate) fn unmap(&self, start: u64, length: u64) -> Answer<Vec<Mapping>> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let starts = inner.whole(start, length)?;
        let gone: Vec<Mapping> = starts
            .iter()
            .filter_map(|at| inner.maps.remove(at))
            .collect();
        if gone.iter().any(|mapping| mapping.rights.host != 0) && self.holds(start) {
            no_access(Some(start), length).map_err(|_| code::UNKNOWN)?;
        }
        Ok(gone)
    }

    /// Changes who may touch the mappings of a range that consists of whole ones.
    pub(crate) fn grant(
        &self,
        start: u64,
        length: u64,
        change: impl Fn(&mut Rights),
    ) -> Answer<()> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        for at in inner.whole(start, length)? {
            let Some(mapping) = inner.maps.get_mut(&at) else {
                continue;
            };
            let mut rights = mapping.rights;
            change(&mut rights);
            if rights.host != mapping.rights.host {
                let Backing::Physical(physical, offset) = &mapping.backing else {
                    return Err(code::INVALID);
                };
                if rights.host != 0 && physical.place() != Place::Host {
                    return Err(code::INVALID);
                }
                show(physical, *offset, at, mapping.length, rights.host)?;
            }
            mapping.rights = rights;
        }
        Ok(())
    }

    /// Lets kernels of `device` touch the allocations of `other`, or not any more; tells what it was.
    pub(crate) fn peer(&self, device: usize, other: usize, may: bool) -> bool {
        let bit = 1 << other;
        let before = match may {
            true => self.peers[device].fetch_or(bit, Ordering::SeqCst),
            false => self.peers[device].fetch_and(!bit, Ordering::SeqCst),
        };
        before & bit != 0
    }

    /// Looks at the mapping that holds an address, and where that begins.
    pub(crate) fn look<R>(&self, address: u64, look: impl FnOnce(u64, &Mapping) -> R) -> Option<R> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let (start, mapping) = inner.at(address)?;
        Some(look(start, mapping))
    }

    /// Touches memory piece by piece: `touch` gets where each piece lies in the process, its length and its
    /// place. It must not call back into this type.
    pub(crate) fn touch(
        &self,
        address: u64,
        length: u64,
        who: Who,
        write: bool,
        mut touch: impl FnMut(*mut u8, usize, Place),
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < length {
            let at = address.checked_add(done).ok_or(Fault(address))?;
            let want = (length - done).min(PIECE);
            let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
            let (from, size, place) = match inner.at(at) {
                Some((start, mapping)) => {
                    if !self.may(&mapping.rights, who, write) {
                        return Err(Fault(at));
                    }
                    let left = start + mapping.length - at;
                    match &mapping.backing {
                        Backing::Process => (at as usize, left, Place::Host),
                        Backing::Physical(physical, offset) => {
                            let (from, run) = physical.at(offset + (at - start));
                            (from, left.min(run), physical.place())
                        }
                    }
                }
                None if matches!(who, Who::Copy) && at != 0 && !self.holds(at) => {
                    (at as usize, want, Place::Host)
                }
                None => return Err(Fault(at)),
            };
            let size = size.min(want);
            touch(from as *mut u8, size as usize, place);
            done += size;
        }
        Ok(())
    }

    fn may(&self, rights: &Rights, who: Who, write: bool) -> bool {
        let mask = if write { rights.write } else { rights.read };
        match who {
            Who::Copy => mask != 0 || rights.owner.is_some(),
            Who::Kernel(device) => {
                let peer = |owner: usize| {
                    owner == device || self.peers[device].load(Ordering::SeqCst) & (1 << owner) != 0
                };
                mask & (1 << device) != 0 || rights.owner.is_some_and(peer)
            }
        }
    }
}

impl Inner {
    /// Where a reservation ends that is in the way of one at `start`.
    fn blocker(&self, start: u64, length: u64) -> Option<u64> {
        let (at, size) = self.reserved.range(..start + length).next_back()?;
        (at + size > start).then_some(at + size)
    }

    fn at(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (start, mapping) = self.maps.range(..=address).next_back()?;
        (address - start < mapping.length).then_some((*start, mapping))
    }

    fn overlaps(&self, start: u64, length: u64) -> bool {
        let Some(end) = start.checked_add(length) else {
            return true;
        };
        let before = self.maps.range(..end).next_back();
        before.is_some_and(|(at, mapping)| at + mapping.length > start)
    }

    /// The mappings that make up a range exactly.
    fn whole(&self, start: u64, length: u64) -> Answer<Vec<u64>> {
        let mut starts = Vec::new();
        let mut next = start;
        let end = start.checked_add(length).ok_or(code::INVALID)?;
        while next < end {
            let mapping = self.maps.get(&next).ok_or(code::INVALID)?;
            starts.push(next);
            next += mapping.length;
        }
        match next == end && length > 0 {
            true => Ok(starts),
            false => Err(code::INVALID),
        }
    }
}

/// Addresses without access: new ones, or instead of what is at `at`.
fn no_access(at: Option<u64>, length: u64) -> io::Result<u64> {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: new addresses, or some of the range that `Space` holds for devices: nothing of Rust's lies there.
    let base = unsafe {
        libc::mmap(
            at.unwrap_or(0) as *mut libc::c_void,
            length as usize,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed,
            -1,
            0,
        )
    };
    match base == libc::MAP_FAILED {
        true => Err(io::Error::last_os_error()),
        false => Ok(base as u64),
    }
}

/// Lets the process touch host memory at its device address, block by block.
fn show(physical: &Physical, offset: u64, at: u64, length: u64, host: u32) -> Answer<()> {
    let protection = match host {
        0 => libc::PROT_NONE,
        1 => libc::PROT_READ,
        _ => libc::PROT_READ | libc::PROT_WRITE,
    };
    for block in (0..length).step_by(BLOCK as usize) {
        let (file, place) = physical.file(offset + block);
        // SAFETY: as in `no_access`; the file holds the whole block.
        let shown = unsafe {
            libc::mmap(
                (at + block) as *mut libc::c_void,
                BLOCK as usize,
                protection,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file,
                place as libc::off_t,
            )
        };
        if shown == libc::MAP_FAILED {
            return Err(code::UNKNOWN);
        }
    }
    Ok(())
}
