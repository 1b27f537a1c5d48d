//! All calls of the file system that the store makes, and those of Linux behind them.
//!
//! A name is one part of a path, never more: each folder on the way is opened on its own, and no call follows a symbolic link.
//! So whoever owns a folder on the way cannot lead a call out of it, however often he renames what is in there. Nor is anything entered
//! that is mounted in one: [`crate::within`].

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    Advice, AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Stat, Timespec,
    Timestamps, UTIME_OMIT, Uid, fadvise, fchmod, fchown, fstat, fstatvfs, fsync, ftruncate,
    futimens, mkdirat, openat, renameat_with, seek, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::geteuid;

use gpuos_checkpoint::manifest::Time;

use crate::stream::{LinuxStream, Stream};
use crate::within;

/// What something in a folder is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A folder.
    Folder,
    /// A regular file.
    File,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A device file, or something else.
    Device,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::Folder => "a folder",
            Form::File => "a regular file",
            Form::Link => "a symbolic link",
            Form::Fifo => "a named pipe",
            Form::Socket => "a socket",
            Form::Device => "a device",
        })
    }
}

/// What a file system knows of a file or folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// What it is.
    pub form: Form,
    /// Its owner.
    pub uid: u32,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u16,
    /// Bytes.
    pub size: u64,
    /// Bytes that it takes on the disk.
    pub taken: u64,
    /// When its bytes were last written.
    pub mtime: Time,
    /// When anything of it was last changed; users cannot set it.
    pub ctime: Time,
    /// Which file system, and which file there.
    pub inode: (u64, u64),
}

/// What is set of a file or folder before it gets its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dress {
    /// User and group; `None` leaves who made it.
    pub owner: Option<(u32, u32)>,
    /// Permission bits.
    pub mode: u16,
    /// When it was last written; `None` leaves it.
    pub mtime: Option<Time>,
}

/// Bytes of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// That can still be written.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// Files and folders beneath an open folder. Every name is one part of a path; others are refused with `EINVAL`.
///
/// Errors are those of the system calls. Data is on the disk after `sync`, a name after `sync_folder` of its folder.
pub trait Disk {
    /// An open folder.
    type Folder;
    /// An open regular file.
    type File;
    /// Writes to one that are on their way.
    type Stream: Stream;

    /// The user in whose name calls are made.
    fn user(&self) -> u32;
    /// Opens a folder, never through a link, and none that is mounted there: `EXDEV`.
    fn open_folder(&self, at: &Self::Folder, name: &[u8]) -> io::Result<Self::Folder>;
    /// Makes a folder with mode 0700.
    fn make_folder(&self, at: &Self::Folder, name: &[u8]) -> io::Result<()>;
    /// The same for a file, to be read; without waiting where it is a named pipe.
    fn open(&self, at: &Self::Folder, name: &[u8]) -> io::Result<Self::File>;
    /// Makes a file with mode 0600 for reading and writing; it must not exist.
    fn create(&self, at: &Self::Folder, name: &[u8]) -> io::Result<Self::File>;
    /// Names in a folder, in order of their bytes. More than `most`: `EOVERFLOW`.
    fn list(&self, folder: &Self::Folder, most: usize) -> io::Result<Vec<Vec<u8>>>;
    /// Looks at a name without opening or following it, or asking what is mounted there.
    fn look(&self, at: &Self::Folder, name: &[u8]) -> io::Result<Facts>;
    /// Of an open file.
    fn facts(&self, file: &Self::File) -> io::Result<Facts>;
    /// Of an open folder.
    fn folder_facts(&self, folder: &Self::Folder) -> io::Result<Facts>;
    /// Reads up to the length of the buffer; 0 is the end.
    fn read_at(&self, file: &Self::File, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Says that bytes will be read next, so that they can be on their way; what does not know how to ignores it.
    fn will_read(&self, _file: &Self::File, _offset: u64, _length: usize) {}
    /// Writes some of the bytes.
    fn write_at(&self, file: &Self::File, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// For writes that go on while the caller does something else. Until it is finished, nothing else is done with the file but
    /// to set its length.
    fn stream(&self, file: &Self::File) -> io::Result<Self::Stream>;
    /// First byte from `offset` that is not in a hole; `None`: nothing but a hole follows.
    fn next_data(&self, file: &Self::File, offset: u64) -> io::Result<Option<u64>>;
    /// Cuts, or adds a hole.
    fn set_length(&self, file: &Self::File, length: u64) -> io::Result<()>;
    /// Sets owner, then mode, then time.
    fn dress(&self, file: &Self::File, dress: &Dress) -> io::Result<()>;
    /// The same for a folder.
    fn dress_folder(&self, folder: &Self::Folder, dress: &Dress) -> io::Result<()>;
    /// Waits until the file's bytes and length are on the disk.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// Waits until the folder's names are on the disk.
    fn sync_folder(&self, folder: &Self::Folder) -> io::Result<()>;
    /// Renames within a folder; what has the new name is replaced if `replace`, otherwise `EEXIST`.
    fn rename(&self, at: &Self::Folder, from: &[u8], to: &[u8], replace: bool) -> io::Result<()>;
    /// Removes a file's name.
    fn unlink(&self, at: &Self::Folder, name: &[u8]) -> io::Result<()>;
    /// Removes an empty folder.
    fn remove_folder(&self, at: &Self::Folder, name: &[u8]) -> io::Result<()>;
    /// How much fits.
    fn space(&self, folder: &Self::Folder) -> io::Result<Space>;
}

/// Refuses what is no single part of a path.
pub(crate) fn part(name: &[u8]) -> io::Result<&[u8]> {
    let bad = matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| b"/\0".contains(byte));
    if bad {
        return Err(Errno::INVAL.into());
    }
    Ok(name)
}

/// The file systems of Linux.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinuxDisk;

impl LinuxDisk {
    /// Opens the folder that all else is beneath. Links on the way are followed: the path is the administrator's.
    ///
    /// # Errors
    /// Those of `openat`; the last part is a link.
    pub fn folder(path: &Path) -> io::Result<OwnedFd> {
        let flags = FOLDER | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(CWD, path, flags, Mode::empty())?)
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

fn open(at: BorrowedFd<'_>, name: &[u8], flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    Ok(within::open(
        at,
        part(name)?,
        flags,
        Mode::from_raw_mode(mode),
    )?)
}

fn facts(stat: &Stat) -> Facts {
    let form = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Form::Folder,
        FileType::RegularFile => Form::File,
        FileType::Symlink => Form::Link,
        FileType::Fifo => Form::Fifo,
        FileType::Socket => Form::Socket,
        _ => Form::Device,
    };
    Facts {
        form,
        uid: stat.st_uid,
        mode: (stat.st_mode & 0o7777) as u16,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        taken: u64::try_from(stat.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        inode: (stat.st_dev, stat.st_ino),
    }
}

fn time(seconds: i64, nanos: u64) -> Time {
    let nanos = nanos.min(999_999_999) as u32;
    Time { seconds, nanos }
}

fn dress(fd: BorrowedFd<'_>, dress: &Dress) -> io::Result<()> {
    if let Some((uid, gid)) = dress.owner {
        fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    fchmod(fd, Mode::from_raw_mode(u32::from(dress.mode)))?;
    if let Some(mtime) = dress.mtime {
        let last_access = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        };
        let last_modification = Timespec {
            tv_sec: mtime.seconds,
            tv_nsec: mtime.nanos.into(),
        };
        futimens(
            fd,
            &Timestamps {
                last_access,
                last_modification,
            },
        )?;
    }
    Ok(())
}

impl Disk for LinuxDisk {
    type Folder = OwnedFd;
    type File = OwnedFd;
    type Stream = LinuxStream;

    fn user(&self) -> u32 {
        geteuid().as_raw()
    }

    fn open_folder(&self, at: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
        open(at.as_fd(), name, FOLDER, 0)
    }

    fn make_folder(&self, at: &OwnedFd, name: &[u8]) -> io::Result<()> {
        Ok(mkdirat(at, part(name)?, Mode::from_raw_mode(0o700))?)
    }

    fn open(&self, at: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
        open(at.as_fd(), name, OFlags::RDONLY, 0)
    }

    fn create(&self, at: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        open(at.as_fd(), name, flags, 0o600)
    }

    fn list(&self, folder: &OwnedFd, most: usize) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if names.len() == most {
                return Err(Errno::OVERFLOW.into());
            }
            names.push(name.to_vec());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn look(&self, at: &OwnedFd, name: &[u8]) -> io::Result<Facts> {
        Ok(facts(&within::look(at, part(name)?)?))
    }

    fn facts(&self, file: &OwnedFd) -> io::Result<Facts> {
        Ok(facts(&fstat(file)?))
    }

    fn folder_facts(&self, folder: &OwnedFd) -> io::Result<Facts> {
        Ok(facts(&fstat(folder)?))
    }

    fn read_at(&self, file: &OwnedFd, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(pread(file, buffer, offset)?)
    }

    fn write_at(&self, file: &OwnedFd, bytes: &[u8], offset: u64) -> io::Result<usize> {
        Ok(pwrite(file, bytes, offset)?)
    }

    fn will_read(&self, file: &OwnedFd, offset: u64, length: usize) {
        // It is a hint.
        let _ = fadvise(
            file,
            offset,
            NonZeroU64::new(length as u64),
            Advice::WillNeed,
        );
    }

    fn stream(&self, file: &OwnedFd) -> io::Result<LinuxStream> {
        LinuxStream::new(file)
    }

    fn next_data(&self, file: &OwnedFd, offset: u64) -> io::Result<Option<u64>> {
        match seek(file, SeekFrom::Data(offset)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            // A file system without holes has data everywhere.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(offset)),
            Err(error) => Err(error.into()),
        }
    }

    fn set_length(&self, file: &OwnedFd, length: u64) -> io::Result<()> {
        Ok(ftruncate(file, length)?)
    }

    fn dress(&self, file: &OwnedFd, how: &Dress) -> io::Result<()> {
        dress(file.as_fd(), how)
    }

    fn dress_folder(&self, folder: &OwnedFd, how: &Dress) -> io::Result<()> {
        dress(folder.as_fd(), how)
    }

    fn sync(&self, file: &OwnedFd) -> io::Result<()> {
        Ok(fsync(file)?)
    }

    fn sync_folder(&self, folder: &OwnedFd) -> io::Result<()> {
        Ok(fsync(folder)?)
    }

    fn rename(&self, at: &OwnedFd, from: &[u8], to: &[u8], replace: bool) -> io::Result<()> {
        let flags = if replace {
            RenameFlags::empty()
        } else {
            RenameFlags::NOREPLACE
        };
        Ok(renameat_with(at, part(from)?, at, part(to)?, flags)?)
    }

    fn unlink(&self, at: &OwnedFd, name: &[u8]) -> io::Result<()> {
        Ok(unlinkat(at, part(name)?, AtFlags::empty())?)
    }

    fn remove_folder(&self, at: &OwnedFd, name: &[u8]) -> io::Result<()> {
        Ok(unlinkat(at, part(name)?, AtFlags::REMOVEDIR)?)
    }

    fn space(&self, folder: &OwnedFd) -> io::Result<Space> {
        let space = fstatvfs(folder)?;
        Ok(Space {
            free: space.f_bavail.saturating_mul(space.f_frsize),
            total: space.f_blocks.saturating_mul(space.f_frsize),
        })
    }
}
