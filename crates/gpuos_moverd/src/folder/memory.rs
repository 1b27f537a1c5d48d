//! The folder in memory of a job, `JOB/memory`: a tmpfs that slurmstepd has mounted, within the memory of the job.
//!
//! It has the folders `N/` that else lie in the job's folder, which has a link of that name then. Its first folder is root's, as that
//! of the job, and what is removed goes to a trash of its own: nothing can be moved to another file system.

use std::io;
use std::os::fd::OwnedFd;

use gpuos_core::wire::MEMORY_FOLDER;
use rustix::fs::{Mode, OFlags, fstatvfs, openat};
use rustix::io::Errno;

use super::at;
use super::trash::Trash;

/// Names that are looked at in a step, and steps until the next checkpoint is asked for, which then finds less room.
const EFFORT: usize = 4096;
const STEPS: usize = 300;

/// A file system with less than this, in bytes or files, is full: one page of the largest kind and one name for each of some ranks.
const LEAST: (u64, u64) = (4 << 20, 64);

/// A file that is removed where a user has left no file to be made, so that the trash can have a folder.
const BALLAST: &str = ".ballast";

/// An open folder in memory.
pub(super) struct Memory {
    root: OwnedFd,
    trash: Trash,
}

impl Memory {
    /// In the folder of a job. `None`: nothing of ours is mounted there.
    pub(super) fn open(job: &OwnedFd, us: u32) -> Option<Memory> {
        let root = at::tmpfs(job, MEMORY_FOLDER, us)?;
        let trash = Trash::within(root.try_clone().ok()?, us).ok()?;
        let memory = Memory { root, trash };
        memory.ballast();
        Some(memory)
    }

    fn ballast(&self) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let _ = openat(&self.root, BALLAST, flags, Mode::empty());
    }

    /// Where folders of checkpoints are made.
    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Moves a folder to the trash.
    pub(super) fn discard(&self, name: &str) -> io::Result<()> {
        let full = |error: &io::Error| error.raw_os_error() == Some(Errno::NOSPC.raw_os_error());
        match self.trash.discard(&self.root, name) {
            Err(error) if full(&error) => {
                at::remove(&self.root, BALLAST);
                self.trash.discard(&self.root, name)
            }
            discarded => discarded,
        }
    }

    /// Moves all folders there.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.trash.clear(EFFORT).map(drop)
    }

    /// Frees what is in the trash: memory that the job's programs need.
    pub(super) fn free(&self) {
        for _ in 0..STEPS {
            if !self.trash.step(EFFORT).is_ok_and(|progress| progress.more) {
                break;
            }
        }
        self.ballast();
    }

    /// Whether nothing more goes in.
    pub(super) fn is_full(&self) -> bool {
        let (bytes, files) = LEAST;
        fstatvfs(&self.root)
            .is_ok_and(|it| it.f_bavail.saturating_mul(it.f_frsize) < bytes || it.f_favail < files)
    }
}
