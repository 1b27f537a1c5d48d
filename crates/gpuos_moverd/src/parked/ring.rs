//! The file in memory in which a process hands pieces over.
//!
//! It is of the process, which may write it at any time through what it has mapped. So it is read by calls into memory of this process: what a
//! digest is made of is what is written. Nobody can take its pages out or cut it short: they are of the process's job, and stay so.

use std::io;
use std::os::fd::OwnedFd;

use gpuos_host::window::{KEPT, Window};
use gpuos_memory::stow::PIECE;
use rustix::fs::{
    FileType, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fstat,
};
use rustix::io::{Errno, pread};

/// Why a file is no ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRing {
    /// It never is: why, in a clause.
    Never(&'static str),
    /// Something is short here, and may be there later.
    Now,
}

impl From<&'static str> for NoRing {
    fn from(why: &'static str) -> NoRing {
        NoRing::Never(why)
    }
}

/// Whether an error is of what is short in this process or on the machine: it passes.
pub fn is_passing(error: &io::Error) -> bool {
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|error| short.contains(&error))
}

/// The ring of a process.
#[derive(Debug)]
pub struct Ring {
    file: OwnedFd,
    window: Window,
}

impl Ring {
    /// Takes what a process has sent, and seals it for good: from then on its pages are those that it has.
    ///
    /// # Errors
    /// It is not a file in memory that keeps its length and has all of it, or there is no room to map it. Only such files have these seals, so that no call on it waits
    /// for another process.
    pub fn new(file: OwnedFd, slots: u32) -> Result<Ring, NoRing> {
        let length = SealFlags::SHRINK | SealFlags::GROW;
        let seals = fcntl_get_seals(&file).map_err(|_| "it is no file in memory (memfd_create)")?;
        if !seals.contains(length) {
            return Err("it is not sealed against another length".into());
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err("it is sealed against writing".into());
        }
        if seals.contains(SealFlags::SEAL) {
            return Err("it takes no other seals: gpuos_mover seals it for good".into());
        }
        let unseen = "it cannot be looked at";
        let flags = fcntl_getfl(&file).map_err(|_| unseen)?;
        if flags & OFlags::RWMODE != OFlags::RDWR {
            return Err("it was not opened for reading and writing".into());
        }
        let stat = fstat(&file).map_err(|_| unseen)?;
        let bytes = u64::from(slots) * PIECE;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || u64::try_from(stat.st_size) != Ok(bytes) {
            return Err("its length is not that of its slots".into());
        }
        let window =
            Window::open(&file, bytes as usize).map_err(|error| match is_passing(&error) {
                true => NoRing::Now,
                false => NoRing::Never("it cannot be mapped"),
            })?;
        fcntl_add_seals(&file, KEPT | SealFlags::SEAL)
            .map_err(|_| "the kernel does not keep its pages (Linux 5.1 and later do)")?;
        // Otherwise its pages would be this process's, and not of the job. They were counted now that none can go.
        let stat = fstat(&file).map_err(|_| unseen)?;
        if u64::try_from(stat.st_blocks).unwrap_or(0) * 512 < bytes {
            return Err("some of its pages are missing".into());
        }
        Ok(Ring { file, window })
    }

    /// Reads a slot.
    ///
    /// # Errors
    /// Those of `pread`.
    pub fn read(&self, slot: u32, bytes: &mut [u8]) -> io::Result<()> {
        let (start, mut done) = (u64::from(slot) * PIECE, 0);
        while done < bytes.len() {
            match pread(&self.file, &mut bytes[done..], start + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Fills a slot.
    ///
    /// # Errors
    /// It has no such slot, or the bytes do not fit.
    pub fn write(&self, slot: u32, bytes: &[u8]) -> io::Result<()> {
        self.window.put(slot as usize * PIECE as usize, bytes)
    }
}
