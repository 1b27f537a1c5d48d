//! Host memory in whole pages.

use std::io;
use std::ptr::NonNull;

/// Memory of its own, which children of `fork` do not have: nobody but this process pays for it or sees it.
pub(crate) struct Pages {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the value, as that of a box does.
unsafe impl Send for Pages {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Pages {}

impl Pages {
    /// So many bytes of zeros, more than none.
    pub(crate) fn new(bytes: usize) -> io::Result<Pages> {
        // SAFETY: a new mapping, at no address that anybody has.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping of above. Both are hints: without huge pages it is slower, and a child that has the pages leaves them alone.
        unsafe {
            libc::madvise(at, bytes, libc::MADV_HUGEPAGE);
            libc::madvise(at, bytes, libc::MADV_DONTFORK);
        }
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("no address"))?;
        Ok(Pages { at, bytes })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, readable and initialised by the kernel, as long as the value lives.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable; the value is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is the value's own, and nobody borrows it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Runs with all signals blocked, which a thread that is started meanwhile inherits: the program's handlers run on its own threads.
pub(crate) fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals of this frame, and the old one is set again.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let done = body();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        done
    }
}
