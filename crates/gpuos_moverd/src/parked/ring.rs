//! The file in memory in which a process hands pieces over.
//!
//! It is of the process, which may write it at any time. So it is never mapped, but read and written by calls into memory of this process: what
//! a digest is made of is what is written, and a file that is not what it should be is an error and no signal.

use std::io;
use std::os::fd::OwnedFd;

use gpuos_memory::stow::PIECE;
use rustix::fs::{FileType, OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstat};
use rustix::io::{Errno, pread, pwrite};

/// The ring of a process.
#[derive(Debug)]
pub struct Ring(OwnedFd);

impl Ring {
    /// Takes what a process has sent.
    ///
    /// # Errors
    /// It is not a file in memory that keeps its length and has all of it: why, in a clause. Only such files have these seals, so that no call on it waits
    /// for another process.
    pub fn new(file: OwnedFd, slots: u32) -> Result<Ring, &'static str> {
        let kept = SealFlags::SHRINK | SealFlags::GROW;
        let seals = fcntl_get_seals(&file).map_err(|_| "it is no file in memory (memfd_create)")?;
        if !seals.contains(kept) {
            return Err("it is not sealed against another length");
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err("it is sealed against writing");
        }
        let stat = fstat(&file).map_err(|_| "it cannot be looked at")?;
        let bytes = u64::from(slots) * PIECE;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || u64::try_from(stat.st_size) != Ok(bytes) {
            return Err("its length is not that of its slots");
        }
        // Otherwise its pages would be this process's, and not of the job.
        if u64::try_from(stat.st_blocks).unwrap_or(0) * 512 < bytes {
            return Err("some of its pages are missing");
        }
        let flags = fcntl_getfl(&file).map_err(|_| "it cannot be looked at")?;
        if flags & OFlags::RWMODE != OFlags::RDWR {
            return Err("it was not opened for reading and writing");
        }
        Ok(Ring(file))
    }

    /// Reads a slot.
    ///
    /// # Errors
    /// Those of `pread`.
    pub fn read(&self, slot: u32, bytes: &mut [u8]) -> io::Result<()> {
        let (start, mut done) = (u64::from(slot) * PIECE, 0);
        while done < bytes.len() {
            match pread(&self.0, &mut bytes[done..], start + done as u64) {
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
    /// Those of `pwrite`.
    pub fn write(&self, slot: u32, bytes: &[u8]) -> io::Result<()> {
        let (start, mut done) = (u64::from(slot) * PIECE, 0);
        while done < bytes.len() {
            match pwrite(&self.0, &bytes[done..], start + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
