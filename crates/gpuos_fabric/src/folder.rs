//! The files of a save, by descriptors: nothing in its folder is reached through a symbolic link, whatever happens to names meanwhile.

use std::ffi::CString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A folder that is open.
pub(crate) struct Folder {
    file: File,
    /// It was made when it was opened.
    pub(crate) made: bool,
}

impl Folder {
    /// A folder that is there.
    pub(crate) fn open(path: &Path) -> io::Result<Folder> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(path)?;
        Ok(Folder { file, made: false })
    }

    /// A folder that is there, or is made in one that is.
    pub(crate) fn make(path: &Path) -> io::Result<Folder> {
        let made = match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        let folder = Folder::open(path)?;
        Ok(Folder { made, ..folder })
    }

    fn at(&self, name: &str, flags: i32) -> io::Result<File> {
        let name = CString::new(name)?;
        let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let mode: libc::mode_t = 0o600;
        // SAFETY: an open descriptor and a text that ends with a NUL; the descriptor that it gives is new, and the file's alone.
        unsafe {
            match libc::openat(self.file.as_raw_fd(), name.as_ptr(), flags, mode) {
                number if number < 0 => Err(io::Error::last_os_error()),
                number => Ok(File::from_raw_fd(number)),
            }
        }
    }

    /// A new file, for this user alone.
    pub(crate) fn create(&self, name: &str) -> io::Result<File> {
        self.at(name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)
    }

    /// A regular file, to be read.
    pub(crate) fn read(&self, name: &str) -> io::Result<File> {
        // Without the flag a FIFO would hold the program up before it can be looked at.
        let file = match self.at(name, libc::O_RDONLY | libc::O_NONBLOCK) {
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                return Err(io::Error::other("it is a symbolic link"));
            }
            file => file?,
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        Ok(file)
    }

    /// Removes a file, or does not if it is gone.
    pub(crate) fn remove(&self, name: &str) {
        if let Ok(name) = CString::new(name) {
            // SAFETY: an open descriptor and a text that ends with a NUL.
            unsafe { libc::unlinkat(self.file.as_raw_fd(), name.as_ptr(), 0) };
        }
    }

    /// Whether files of this folder can share the bytes of one of them: a file without a name tries it.
    pub(crate) fn shares(&self, file: &File) -> bool {
        let nameless = self.at(".", libc::O_TMPFILE | libc::O_WRONLY);
        nameless.is_ok_and(|to| share(file, &to, 0, 0).is_ok())
    }
}

/// Has a part of a file share the bytes of another file at the same place; a length of 0: all from there on. The file system has to be able to.
pub(crate) fn share(from: &File, to: &File, offset: u64, length: u64) -> io::Result<()> {
    let range = libc::file_clone_range {
        src_fd: from.as_raw_fd().into(),
        src_offset: offset,
        src_length: length,
        dest_offset: offset,
    };
    // SAFETY: open descriptors, and a structure that lives until the call returns.
    match unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &raw const range) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where a file has bytes next, from an offset on, which may be zeros; `None`: nowhere.
pub(crate) fn next_bytes(file: &File, from: u64) -> io::Result<Option<u64>> {
    let Ok(offset) = libc::off_t::try_from(from) else {
        return Ok(None);
    };
    // SAFETY: an open descriptor. Who reads this file names the places.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, libc::SEEK_DATA) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            // A file system without holes.
            error if error.raw_os_error() == Some(libc::EINVAL) => Ok(Some(from)),
            error => Err(error),
        },
    }
}

/// Closes a file, and hears what the file system has to say only then.
pub(crate) fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor was the file's alone, and nobody has it any more.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // It is closed all the same.
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}

/// A file of a save, to be shared with the next one.
pub(crate) struct Saved {
    file: File,
    bytes: u64,
    changed: (i64, i64),
    /// The time of that save.
    pub(crate) time: u64,
}

impl Saved {
    /// A file that is complete, as it is now.
    pub(crate) fn new(file: File, time: u64) -> io::Result<Saved> {
        let about = file.metadata()?;
        Ok(Saved {
            bytes: about.len(),
            changed: (about.mtime(), about.mtime_nsec()),
            file,
            time,
        })
    }

    /// Whether nobody has written to it since.
    pub(crate) fn is_as_it_was(&self) -> bool {
        let same = |about: std::fs::Metadata| {
            about.len() == self.bytes && (about.mtime(), about.mtime_nsec()) == self.changed
        };
        self.file.metadata().is_ok_and(same)
    }

    /// Has a part of another file share its bytes.
    pub(crate) fn share(&self, to: &File, offset: u64, length: u64) -> io::Result<()> {
        share(&self.file, to, offset, length)
    }
}

/// All bytes of a file of at most so many, from its beginning.
pub(crate) fn read_all(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    if length > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
