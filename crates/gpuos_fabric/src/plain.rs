//! Host memory in the place of a GPU's, for machines without one.
//!
//! What is not attached cannot be touched: a program that uses what it has not acquired is ended by SIGSEGV, where a GPU has an illegal address.
//!
//! A frame has pages of its own, as it has on a GPU. They are moved to where it is attached and back by the kernel (`mremap` with
//! `MREMAP_DONTUNMAP`, Linux 5.7), so that nothing is cleared or given out anew for each move. Older kernels give new pages each time.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use crate::near::{Near, Trouble};
use crate::pages::Pages;

/// See the module.
pub(crate) struct Plain {
    extent: usize,
    /// Whether the kernel moves pages and leaves their addresses taken.
    moves: bool,
    /// Where the pages of each frame are while it is attached nowhere.
    homes: Mutex<HashMap<u32, usize>>,
}

/// The text of what the kernel answered last.
fn last(what: &str) -> Trouble {
    format!("{what}: {}", io::Error::last_os_error())
}

impl Plain {
    pub(crate) fn new(extent: u64) -> Plain {
        let mut plain = Plain {
            extent: extent as usize,
            moves: false,
            homes: Mutex::default(),
        };
        plain.moves = plain.can_move();
        plain
    }

    /// Tries with two ranges that nobody knows of.
    fn can_move(&self) -> bool {
        let (Ok(from), Ok(to)) = (self.range(self.extent), self.range(self.extent)) else {
            return false;
        };
        let moved = self.shift(from, to).is_ok();
        for at in [from, to] {
            self.unreserve(at as u64, self.extent as u64);
        }
        moved
    }

    /// Moves the pages of an extent, and leaves addresses without any.
    fn shift(&self, from: usize, to: usize) -> Result<(), Trouble> {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: both are extents of ranges that `range` mapped and nobody has given back, and without access: no reference is into them.
        let at = unsafe {
            libc::mremap(
                from as *mut _,
                self.extent,
                self.extent,
                how,
                to as *mut libc::c_void,
            )
        };
        match at == libc::MAP_FAILED {
            true => Err(last("mremap")),
            false => Ok(()),
        }
    }

    /// Where the pages of a frame are while it is attached nowhere, made when it is wanted for the first time.
    fn home(&self, frame: u32) -> Result<usize, Trouble> {
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = homes.get(&frame) {
            return Ok(*at);
        }
        let at = self.range(self.extent)?;
        homes.insert(frame, at);
        Ok(at)
    }

    /// Gives the pages of an extent back to the kernel, which gives zeros in their place.
    fn empty(&self, at: usize) -> Result<(), Trouble> {
        // SAFETY: as in `protect`; what it holds nobody wants any more.
        match unsafe { libc::madvise(at as *mut _, self.extent, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(last("madvise")),
        }
    }

    /// Addresses without access, of whole extents.
    fn range(&self, bytes: usize) -> Result<usize, Trouble> {
        let more = bytes.checked_add(self.extent);
        let more = more.ok_or("more bytes than there are addresses")?;
        // SAFETY: a new mapping, at no address that anybody has.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                more,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(last(&format!("{bytes} bytes of addresses")));
        }
        // Extents begin where huge pages do.
        let at = at as usize;
        let start = at.next_multiple_of(self.extent);
        let (before, behind) = (start - at, at + more - (start + bytes));
        // SAFETY: parts of the mapping of above that nobody knows of; the rest is only advised: a child of `fork` is not to have it, as it has none of
        // a GPU.
        unsafe {
            for (at, bytes) in [(at, before), (start + bytes, behind)] {
                if bytes > 0 {
                    libc::munmap(at as *mut _, bytes);
                }
            }
            libc::madvise(start as *mut _, bytes, libc::MADV_HUGEPAGE);
            libc::madvise(start as *mut _, bytes, libc::MADV_DONTFORK);
        }
        Ok(start)
    }

    fn protect(&self, at: u64, how: i32) -> Result<(), Trouble> {
        // SAFETY: an extent of a range that `reserve` mapped and nobody has given back: callers of the trait name no other.
        match unsafe { libc::mprotect(at as *mut _, self.extent, how) } {
            0 => Ok(()),
            _ => Err(last("mprotect")),
        }
    }
}

impl Near for Plain {
    fn reserve(&self, bytes: u64) -> Result<u64, Trouble> {
        let whole = usize::try_from(bytes).map_err(|_| "more bytes than there are addresses")?;
        self.range(whole).map(|at| at as u64)
    }

    fn unreserve(&self, at: u64, bytes: u64) {
        // SAFETY: a range that `reserve` mapped, which its caller gives back.
        unsafe { libc::munmap(at as *mut _, bytes as usize) };
    }

    fn attach(&self, frame: u32, at: u64) -> Result<(), Trouble> {
        if self.moves {
            self.shift(self.home(frame)?, at as usize)?;
        }
        self.protect(at, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn detach(&self, frame: u32, at: u64) -> Result<(), Trouble> {
        // First nobody reaches it, so nothing is written that would be left behind.
        self.protect(at, libc::PROT_NONE)?;
        if self.moves {
            return self.shift(at as usize, self.home(frame)?);
        }
        self.empty(at as usize)
    }

    fn trim(&self, frame: u32) {
        let homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = homes.get(&frame) {
            // What is not given back is used again.
            let _ = self.empty(*home);
        }
    }

    fn zero(&self, at: u64) -> Result<(), Trouble> {
        self.empty(at as usize)
    }

    fn upload(&self, at: u64, from: &[u8]) -> Result<(), Trouble> {
        // SAFETY: attached, so it can be written; the slice is not inside, as nobody has references into it. A program that uses it at the same
        // time mixes bytes and nothing else.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at as *mut u8, from.len()) };
        Ok(())
    }

    fn download(&self, at: u64, to: &mut [u8]) -> Result<(), Trouble> {
        // SAFETY: as for `upload`.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn mark(&self, _stream: u64) -> Result<u64, Trouble> {
        Ok(0)
    }

    fn wait(&self, _mark: u64) {}

    fn forget(&self, _mark: u64) {}

    fn drain(&self) {}

    fn lock(&self, _pages: &Pages) {}

    fn unlock(&self, _pages: &Pages) {}
}

impl Drop for Plain {
    fn drop(&mut self) {
        let homes = self.homes.get_mut();
        for (_, at) in std::mem::take(homes.unwrap_or_else(PoisonError::into_inner)) {
            self.unreserve(at as u64, self.extent as u64);
        }
    }
}
