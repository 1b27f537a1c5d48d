//! A file in memory of another process, mapped so that bytes can be put there.
//!
//! Why not by `pwrite`: who has such a file can take its pages out at any time, and a write would put new ones in their place, which count for the
//! writer. A file that is sealed against that takes no `pwrite` either, only what was mapped before. With [`KEPT`] its pages stay, so that an
//! access to the mapping never ends the process.

#![allow(unsafe_code, reason = "bytes are copied into a mapping that is shared")]

use std::io;
use std::os::fd::AsRawFd;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::SealFlags;

/// Seals with which a file keeps its length and its pages.
pub const KEPT: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE);

/// The mapping.
#[derive(Debug)]
pub struct Window(MmapRaw);

impl Window {
    /// Maps so many bytes of a file from its start. Nothing is read or written yet.
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn open(file: &impl AsRawFd, bytes: usize) -> io::Result<Window> {
        let map = MmapOptions::new().len(bytes).map_raw(file.as_raw_fd())?;
        Ok(Window(map))
    }

    /// Copies bytes there, after the file has got the seals [`KEPT`] and was seen to have all of its pages.
    ///
    /// # Errors
    /// They do not fit.
    pub fn put(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let end = at.checked_add(bytes.len());
        if end.is_none_or(|end| end > self.0.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the place lies within the mapping, as just looked at, and the mapping lives as long as `self`. It is shared with a process that
        // may write there at any time: so nothing is read from it, here or elsewhere, and no reference to it is ever made. `bytes` is memory of
        // this process, of which this mapping is none. The pages are there, by the seals that the caller upholds; else the kernel ends the process.
        unsafe {
            let to = self.0.as_mut_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fcntl_add_seals, memfd_create};
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn what_is_put_is_there_although_nobody_may_write_or_take_pages_out() {
        let file = File::from(memfd_create("window", MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all_at(&[1; 8192], 0).unwrap();
        let window = Window::open(&file, 8192).unwrap();
        fcntl_add_seals(&file, KEPT | SealFlags::SEAL).unwrap();
        window.put(4095, &[2; 3]).unwrap();
        let mut bytes = [0; 5];
        file.read_exact_at(&mut bytes, 4094).unwrap();
        assert_eq!(bytes, [1, 2, 2, 2, 1]);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&file, hole, 0, 4096), Err(Errno::PERM));
        assert!(file.write_all_at(&[3], 0).is_err());
        assert!(file.set_len(0).is_err());
        for (at, count) in [(8190, 3), (8193, 0), (usize::MAX, 2)] {
            assert!(window.put(at, &vec![0; count]).is_err(), "{at}");
        }
    }
}
