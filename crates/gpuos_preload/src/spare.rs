//! Host memory that nothing is in and that is kept, as a driver makes it slowly: the kernel clears and pins each page, at some 4 GB/s where
//! copies run at 55 (docs/results/gpu.md). So what extents leave in host memory is for those that go there next, what will go there is made
//! before the gate closes, and a process in turns has made what it parks in before it is told to.
//!
//! It is within what the process has of host memory, it is the process's own, and it goes when memory is short.

use std::collections::BTreeMap;

use gpuos_driver::{Access, Location};

use crate::vmm::{self, Answer, Place};

/// A piece of host memory.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) handle: u64,
    /// Where it is mapped, for a copy into it; 0: nowhere.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

impl Piece {
    /// Memory by its handle, mapped nowhere for a copy.
    pub(crate) fn new(handle: u64, bytes: u64) -> Piece {
        Piece {
            handle,
            at: 0,
            bytes,
        }
    }

    /// New memory.
    pub(crate) fn make(bytes: u64, place: Place) -> Answer<Piece> {
        vmm::create(bytes, place).map(|handle| Piece::new(handle, bytes))
    }

    /// Maps it for a device, at addresses of its own. Where that fails it is mapped when it is used.
    pub(crate) fn map(&mut self, device: i32) {
        let access = Access {
            location: Location::device(device),
            flags: Access::READ_WRITE,
        };
        let Ok(at) = vmm::reserve(self.bytes) else {
            return;
        };
        if vmm::map(at, self.bytes, self.handle, 0).is_err() {
            let _ = vmm::unreserve(at, self.bytes);
            return;
        }
        self.at = at;
        if vmm::access(at, self.bytes, &[access]).is_err() {
            self.unmap();
        }
    }

    /// It is mapped no more.
    pub(crate) fn unmap(&mut self) {
        if self.at != 0 {
            let _ = vmm::unmap(self.at, self.bytes);
            let _ = vmm::unreserve(self.at, self.bytes);
            self.at = 0;
        }
    }

    /// Gives it back to the driver.
    pub(crate) fn give(mut self) {
        self.unmap();
        vmm::release(self.handle);
    }
}

/// Pieces that are kept, by their size.
#[derive(Default)]
pub(crate) struct Spare {
    pieces: BTreeMap<u64, Vec<Piece>>,
    bytes: u64,
}

impl Spare {
    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One of a size: one that is mapped before others.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Piece> {
        let list = self.pieces.get_mut(&bytes)?;
        let mapped = list.iter().rposition(|piece| piece.at != 0);
        let at = mapped.or_else(|| list.len().checked_sub(1))?;
        self.bytes -= bytes;
        Some(list.swap_remove(at))
    }

    /// One of a size that is mapped nowhere.
    pub(crate) fn take_unmapped(&mut self, bytes: u64) -> Option<Piece> {
        let list = self.pieces.get_mut(&bytes)?;
        let at = list.iter().rposition(|piece| piece.at == 0)?;
        self.bytes -= bytes;
        Some(list.swap_remove(at))
    }

    /// How many there are of a size.
    pub(crate) fn count(&self, bytes: u64) -> usize {
        self.pieces.get(&bytes).map_or(0, Vec::len)
    }

    /// How many of a size are mapped.
    pub(crate) fn ready(&self, bytes: u64) -> usize {
        let list = self.pieces.get(&bytes);
        list.map_or(0, |list| list.iter().filter(|piece| piece.at != 0).count())
    }

    /// Keeps one.
    pub(crate) fn put(&mut self, piece: Piece) {
        self.bytes += piece.bytes;
        self.pieces.entry(piece.bytes).or_default().push(piece);
    }

    /// Gives one back of a size that is not wanted. Answers whether there was one.
    pub(crate) fn give_other(&mut self, wanted: impl Fn(u64) -> bool) -> bool {
        let mut lists = self.pieces.iter_mut();
        let other = lists.find(|(bytes, list)| !list.is_empty() && !wanted(**bytes));
        let Some(piece) = other.and_then(|(_, list)| list.pop()) else {
            return false;
        };
        self.bytes -= piece.bytes;
        piece.give();
        true
    }

    /// Gives pieces back until no more than `most` bytes are kept, large ones first.
    pub(crate) fn shrink(&mut self, most: u64) {
        while self.bytes > most {
            let Some(mut last) = self.pieces.last_entry() else {
                return;
            };
            match last.get_mut().pop() {
                Some(piece) => {
                    self.bytes -= piece.bytes;
                    piece.give();
                }
                None => drop(last.remove()),
            }
        }
    }
}
