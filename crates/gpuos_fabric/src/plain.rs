//! Host memory in the place of a GPU's, for machines without one.
//!
//! What is not attached cannot be touched: a program that uses what it has not acquired is ended by SIGSEGV, where a GPU has an illegal address.

use std::io;

use crate::near::{Near, Trouble};
use crate::pages::Pages;

/// See the module.
pub(crate) struct Plain {
    extent: usize,
}

impl Plain {
    pub(crate) fn new(extent: u64) -> Plain {
        Plain {
            extent: extent as usize,
        }
    }

    fn protect(&self, at: u64, how: i32) -> Result<(), Trouble> {
        // SAFETY: an extent of a range that `reserve` mapped and nobody has given back: callers of the trait name no other.
        match unsafe { libc::mprotect(at as *mut _, self.extent, how) } {
            0 => Ok(()),
            _ => Err(format!("mprotect: {}", io::Error::last_os_error())),
        }
    }
}

impl Near for Plain {
    fn reserve(&self, bytes: u64) -> Result<u64, Trouble> {
        let more = usize::try_from(bytes).ok();
        let more = more.and_then(|bytes| bytes.checked_add(self.extent));
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
            return Err(format!(
                "{bytes} bytes of addresses: {}",
                io::Error::last_os_error()
            ));
        }
        // Extents begin where huge pages do.
        let (at, bytes) = (at as usize, bytes as usize);
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
        Ok(start as u64)
    }

    fn unreserve(&self, at: u64, bytes: u64) {
        // SAFETY: a range that `reserve` mapped, which its caller gives back.
        unsafe { libc::munmap(at as *mut _, bytes as usize) };
    }

    fn attach(&self, _frame: u32, at: u64) -> Result<(), Trouble> {
        self.protect(at, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn detach(&self, _frame: u32, at: u64) -> Result<(), Trouble> {
        // SAFETY: as in `protect`. The pages go back to the kernel, which gives zeros in their place.
        let gone = unsafe { libc::madvise(at as *mut _, self.extent, libc::MADV_DONTNEED) };
        if gone != 0 {
            return Err(format!("madvise: {}", io::Error::last_os_error()));
        }
        self.protect(at, libc::PROT_NONE)
    }

    fn trim(&self, _frame: u32) {}

    fn zero(&self, _at: u64) -> Result<(), Trouble> {
        // What was detached, and what never was there, reads as zeros.
        Ok(())
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
