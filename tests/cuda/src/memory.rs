//! Physical memory: a memory file in blocks of 2 MiB, for each device one and one for the host. What
//! was written stays until the block is written again, as on a device; blocks that were given back
//! last are given out first.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{Answer, code};
use crate::ledger::Ledger;

/// Bytes of a block: the granularity of virtual memory on NVIDIA's data-centre GPUs.
pub(crate) const BLOCK: u64 = 2 << 20;

/// Where memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// On the device with this index in the process.
    Device(usize),
    /// On the host.
    Host,
}

/// The memory of one place.
pub(crate) struct Memory {
    place: Place,
    /// The number of the device on the node.
    number: usize,
    capacity: u64,
    base: usize,
    file: i32,
    free: Mutex<Free>,
    ledger: Arc<Ledger>,
}

struct Free {
    /// Blocks that were given back.
    back: Vec<u32>,
    /// Blocks from here on were never used.
    next: u32,
}

impl Memory {
    /// Memory of `capacity` bytes, of which only what is written takes any of the machine's.
    pub(crate) fn new(
        place: Place,
        number: usize,
        capacity: u64,
        ledger: Arc<Ledger>,
    ) -> io::Result<Memory> {
        let capacity = capacity - capacity % BLOCK;
        // SAFETY: the name is a C string; the mapping is a fresh one of a file of that size, and
        // nothing ends it: it lasts as long as the process.
        let (file, base) = unsafe {
            let file = libc::memfd_create(c"gpuos-cuda".as_ptr(), libc::MFD_CLOEXEC);
            if file < 0 || libc::ftruncate(file, capacity.max(BLOCK) as libc::off_t) != 0 {
                return Err(io::Error::last_os_error());
            }
            let base = libc::mmap(
                std::ptr::null_mut(),
                capacity.max(BLOCK) as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file,
                0,
            );
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            (file, base as usize)
        };
        let free = Mutex::new(Free {
            back: Vec::new(),
            next: 0,
        });
        Ok(Memory {
            place,
            number,
            capacity,
            base,
            file,
            free,
            ledger,
        })
    }

    /// Bytes in all.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that no process uses.
    pub(crate) fn left(&self) -> u64 {
        self.capacity.saturating_sub(self.ledger.used(self.number))
    }

    /// Bytes from the first that were ever used.
    fn touched(&self) -> usize {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        u64::from(free.next) as usize * BLOCK as usize
    }

    /// What it has, for as long as the process has nothing on the device. In its place lies something else. No work runs.
    pub(crate) fn take_out(&self) -> Vec<u8> {
        let length = self.touched();
        let mut kept = vec![0_u8; length];
        // SAFETY: so much of the mapping is there as long as the process is, and `kept` has as much room.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base as *const u8, kept.as_mut_ptr(), length);
            std::ptr::write_bytes(self.base as *mut u8, 0xa5, length);
        }
        self.ledger.hide(self.number);
        kept
    }

    /// The same back; false where others have the device's memory by now. No work runs.
    pub(crate) fn bring_back(&self, kept: &[u8]) -> bool {
        let back = self.ledger.take(self.number, 0, self.capacity);
        if back {
            // SAFETY: so much of the mapping was there when it was taken out, and is as long as the process.
            unsafe {
                std::ptr::copy_nonoverlapping(kept.as_ptr(), self.base as *mut u8, kept.len());
            }
        }
        back
    }

    /// Takes memory: `length` is a multiple of the block size.
    pub(crate) fn take(self: &Arc<Memory>, length: u64) -> Answer<Physical> {
        let count = length / BLOCK;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = self.capacity / BLOCK - u64::from(free.next);
        if count > unused + free.back.len() as u64 {
            return Err(code::OUT_OF_MEMORY);
        }
        if self.place != Place::Host && !self.ledger.take(self.number, length, self.capacity) {
            return Err(code::OUT_OF_MEMORY);
        }
        let mut block = || {
            free.back.pop().unwrap_or_else(|| {
                free.next += 1;
                free.next - 1
            })
        };
        let blocks = (0..count).map(|_| block()).collect();
        Ok(Physical {
            memory: Arc::clone(self),
            blocks,
        })
    }
}

/// Some physical memory; given back when the last who has it lets go.
pub(crate) struct Physical {
    memory: Arc<Memory>,
    blocks: Vec<u32>,
}

impl Physical {
    /// Bytes.
    pub(crate) fn length(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// Where it lies.
    pub(crate) fn place(&self) -> Place {
        self.memory.place
    }

    /// The process's address of byte `offset`, and how many bytes follow it there. The address is
    /// mapped as long as the process lives.
    pub(crate) fn at(&self, offset: u64) -> (usize, u64) {
        let block = u64::from(self.blocks[(offset / BLOCK) as usize]);
        let inside = offset % BLOCK;
        (
            self.memory.base + (block * BLOCK + inside) as usize,
            BLOCK - inside,
        )
    }

    /// The memory file, and where in it the block at `offset` lies.
    pub(crate) fn file(&self, offset: u64) -> (i32, u64) {
        let block = u64::from(self.blocks[(offset / BLOCK) as usize]);
        (self.memory.file, block * BLOCK)
    }
}

impl Physical {
    /// A descriptor of its own of the memory's file, at the place of the first block.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        let (file, at) = self.file(0);
        let path = std::ffi::CString::new(format!("/proc/self/fd/{file}")).ok()?;
        // SAFETY: a C string; the descriptor is new, and whoever gets it closes it.
        unsafe {
            let own = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            let placed = own >= 0 && libc::lseek(own, at as libc::off_t, libc::SEEK_SET) >= 0;
            placed.then_some(own)
        }
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let memory = &self.memory;
        let mut free = memory.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.back.extend(self.blocks.iter().rev());
        drop(free);
        if memory.place != Place::Host {
            memory.ledger.give(memory.number, self.length());
        }
    }
}
