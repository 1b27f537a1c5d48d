//! Segments: a file for each process, in a folder of root's that nobody else can enter.
//!
//! A file has only ever bytes of one process: it is made new for it, a place that was not written reads as zeros, and what is free again
//! comes back from the file system as zeros. So nothing has to be overwritten, and no process can read another's.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use gpuos_daemon::places;
use gpuos_store::disk::LinuxDisk;
use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, fchmod, fcntl_getfl, fcntl_setfl, flock, fstat,
    ftruncate, openat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};

/// The kernel's name of this boot: process numbers of another one mean nothing.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A process, by its number and its start in the kernel's ticks since boot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// Its number.
    pub pid: u32,
    /// Its start.
    pub started: u64,
}

/// The folder.
#[derive(Debug)]
pub struct Folder {
    root: OwnedFd,
    boot: String,
}

/// The file of a process.
#[derive(Debug)]
pub struct Segment {
    file: OwnedFd,
}

impl Folder {
    /// Makes it where it is missing. Held by one process at a time.
    ///
    /// # Errors
    /// It is not root's alone, another process has it, or the file system refuses.
    pub fn open(path: &Path) -> Result<Folder> {
        let shown = path.display();
        if let Some(why) = places::unsafe_to_write(path) {
            bail!("nvme in [memory] of gpuos.toml: {why}; name a folder of root's");
        }
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(path);
        made.with_context(|| format!("cannot make {shown}"))?;
        let root = LinuxDisk::folder(path).with_context(|| format!("cannot open {shown}"))?;
        fchmod(&root, Mode::RWXU)
            .with_context(|| format!("{shown} cannot be made root's alone"))?;
        let lock = flock(&root, FlockOperation::NonBlockingLockExclusive);
        lock.with_context(|| format!("another gpuos_mover parks memory in {shown}"))?;
        let boot = std::fs::read_to_string(BOOT).unwrap_or_default();
        let boot = boot
            .trim()
            .chars()
            .filter(char::is_ascii_hexdigit)
            .collect();
        Ok(Folder { root, boot })
    }

    fn name(&self, owner: Owner) -> String {
        format!("{}.{}.{}", owner.pid, owner.started, self.boot)
    }

    /// Whose a name is; `None`: of no process of this boot.
    fn owner(&self, name: &str) -> Option<Owner> {
        let mut parts = name.split('.');
        let owner = Owner {
            pid: parts.next()?.parse().ok()?,
            started: parts.next()?.parse().ok()?,
        };
        (name == self.name(owner)).then_some(owner)
    }

    /// Whether a name is one of a segment's, of whatever boot.
    fn is_segment(name: &str) -> bool {
        let parts: Vec<&str> = name.split('.').collect();
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let hex = |part: &str| part.bytes().all(|b| b.is_ascii_hexdigit());
        matches!(parts[..], [pid, started, boot] if digits(pid) && digits(started) && hex(boot))
    }

    /// The segment of a process, and its length. With a limit it is made where it is missing, and is so long at least.
    ///
    /// # Errors
    /// `NotFound` where there is none and the limit is zero; those of the file system.
    pub fn segment(&self, owner: Owner, limit: u64) -> io::Result<(Segment, u64)> {
        let mut flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        flags.set(OFlags::CREATE, limit > 0);
        let name = self.name(owner);
        let open = |flags| openat(&self.root, &*name, flags, Mode::RUSR | Mode::WUSR);
        let file = match open(flags | OFlags::DIRECT) {
            Err(Errno::INVAL) => open(flags)?,
            opened => opened?,
        };
        let stat = fstat(&file)?;
        // Root alone comes here; what has another name as well is not of gpuos.
        if stat.st_nlink != 1
            || rustix::fs::FileType::from_raw_mode(stat.st_mode)
                != rustix::fs::FileType::RegularFile
        {
            return Err(Errno::INVAL.into());
        }
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        // Direct writes into a hole go beside each other, those that make a file longer one after another.
        if limit > length {
            ftruncate(&file, limit)?;
        }
        Ok((Segment { file }, length.max(limit)))
    }

    /// Frees what a process has.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn remove(&self, owner: Owner) -> io::Result<()> {
        match unlinkat(&self.root, &*self.name(owner), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Frees all that is of dead processes, or of those of an earlier boot; whose it was. What has another name is not of gpuos, and stays.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn sweep(&self, is_dead: impl Fn(&Owner) -> bool) -> io::Result<BTreeSet<Owner>> {
        let mut removed = BTreeSet::new();
        for entry in Dir::read_from(&self.root)? {
            let entry = entry?;
            let name = entry.file_name();
            let text = name.to_str().unwrap_or("");
            if !Folder::is_segment(text) {
                continue;
            }
            let owner = self.owner(text);
            if owner.is_some_and(|owner| !is_dead(&owner)) {
                continue;
            }
            match unlinkat(&self.root, name, AtFlags::empty()) {
                Ok(()) => removed.extend(owner),
                // An administrator's folder is left where it is.
                Err(Errno::NOENT | Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(removed)
    }
}

impl Segment {
    /// Writes all of it.
    ///
    /// # Errors
    /// Those of `pwrite`.
    pub fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match pwrite(&self.file, &bytes[done..], at + done as u64) {
                Ok(0) => return Err(Errno::IO.into()),
                Ok(more) => done += more,
                Err(error) => self.retry(error)?,
            }
        }
        Ok(())
    }

    /// Fills all of it.
    ///
    /// # Errors
    /// Those of `pread`; `UnexpectedEof`: the segment is shorter.
    pub fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match pread(&self.file, &mut bytes[done..], at + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => done += more,
                Err(error) => self.retry(error)?,
            }
        }
        Ok(())
    }

    /// What may go on: interrupted, or refused because it is direct.
    fn retry(&self, error: Errno) -> io::Result<()> {
        let flags = fcntl_getfl(self.file.as_fd())?;
        match error {
            Errno::INTR => Ok(()),
            Errno::INVAL if flags.contains(OFlags::DIRECT) => {
                Ok(fcntl_setfl(&self.file, flags - OFlags::DIRECT)?)
            }
            error => Err(error.into()),
        }
    }
}
