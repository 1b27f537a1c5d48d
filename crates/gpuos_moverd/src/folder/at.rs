//! Folders and names beneath open folders, where whoever owns them means harm.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use gpuos_store::within;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat, fstat, fstatfs, openat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::path::Arg;

/// How folders are opened to be read.
const READ: OFlags = OFlags::RDONLY;

/// Opens a folder by its name in another one: no link, and nothing that is mounted there, which is not even asked.
pub(super) fn folder(at: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    let how = READ | OFlags::DIRECTORY;
    Ok(within::open(at, name, how, Mode::empty())?)
}

/// What `statfs` says of a tmpfs.
const TMPFS: u64 = 0x0102_1994;

/// Opens a tmpfs that is mounted at a name in a folder of ours, in which nobody else may write. `None`: there is none, or it is not ours.
pub(super) fn tmpfs(at: impl AsFd, name: &str, us: u32) -> Option<OwnedFd> {
    let at = at.as_fd();
    let flags = READ | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(at, name, flags, Mode::empty()).ok()?;
    let (around, facts) = (fstat(at).ok()?, fstat(&root).ok()?);
    let is_tmpfs = u64::try_from(fstatfs(&root).ok()?.f_type) == Ok(TMPFS);
    let is_ours = facts.st_uid == us && facts.st_mode & 0o022 == 0;
    (is_tmpfs && is_ours && around.st_dev != facts.st_dev).then_some(root)
}

/// Unmounts what is mounted at a name in a folder of ours, with all that is mounted in it. What is open still goes when it is closed.
pub(super) fn unmounted(at: impl AsFd, name: &str) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}/{name}", at.as_fd().as_raw_fd());
    let how = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    Ok(unmount(path, how)?)
}

/// What a name is and whose, without opening, following or asking what is mounted there.
pub(super) fn look(at: impl AsFd, name: impl Arg + Copy) -> io::Result<Stat> {
    within::look(at, name)
}

/// What became of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Removed {
    /// It is gone.
    Gone,
    /// It is a folder with something in it.
    Full,
    /// It cannot be removed: something is mounted there, or it may not be changed.
    Blocked,
}

/// Removes a name, whatever has it; a folder only if nothing is in it.
pub(super) fn remove(at: impl AsFd, name: impl Arg + Copy) -> Removed {
    let at = at.as_fd();
    let removed = match unlinkat(at, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => unlinkat(at, name, AtFlags::REMOVEDIR),
        other => other,
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Removed::Gone,
        // Of a mounted folder the kernel says so before it looks inside.
        Err(Errno::NOTEMPTY | Errno::EXIST) => Removed::Full,
        Err(_) => Removed::Blocked,
    }
}

/// Whether a walk goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Walk {
    /// To the next name.
    On,
    /// No further.
    Stop,
}

/// Shows the names in an open folder with what they are, in no order. The folder is read anew, from its first name on; one that is
/// removed meanwhile has no more.
pub(super) fn each(
    folder: impl AsFd,
    mut show: impl FnMut(&CStr, FileType) -> Walk,
) -> io::Result<()> {
    let flags = READ | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let again = match openat(folder, c".", flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        again => again?,
    };
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(&again, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Err(Errno::NOENT) => break,
            entry => entry?,
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if show(name, entry.file_type()) == Walk::Stop {
            break;
        }
    }
    Ok(())
}

/// Whether a name is a regular file, where the file system has not said so with the name.
pub(super) fn is_file(at: impl AsFd, name: &CStr, told: FileType) -> bool {
    let told = match told {
        FileType::Unknown => look(at, name).map(|stat| FileType::from_raw_mode(stat.st_mode)),
        told => Ok(told),
    };
    told.is_ok_and(|told| told == FileType::RegularFile)
}
