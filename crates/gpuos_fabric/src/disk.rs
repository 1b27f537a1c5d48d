//! The file of the lowest tier, and files that programs map.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::pages::Pages;

/// A file without a name in slots of an extent each. Nobody else can open it, and it is gone with the process.
pub(crate) struct Disk {
    file: File,
    extent: u64,
    /// Reads and writes pass the page cache.
    pub(crate) direct: bool,
}

impl Disk {
    /// A file in this folder.
    pub(crate) fn new(folder: &Path, extent: u64) -> io::Result<Disk> {
        for direct in [true, false] {
            let file = match nameless(folder, direct) {
                Err(_) if direct => continue,
                file => file?,
            };
            // Some file systems take the flag and refuse the write.
            let page = Pages::new(4096)?;
            match file.write_all_at(page.bytes(), 0) {
                Err(_) if direct => continue,
                written => written?,
            }
            return Ok(Disk {
                file,
                extent,
                direct,
            });
        }
        Err(io::Error::other("no file can be written there"))
    }

    pub(crate) fn write(&self, slot: u32, from: &Pages) -> io::Result<()> {
        self.file
            .write_all_at(from.bytes(), u64::from(slot) * self.extent)
    }

    pub(crate) fn read(&self, slot: u32, to: &mut Pages) -> io::Result<()> {
        self.file
            .read_exact_at(to.bytes_mut(), u64::from(slot) * self.extent)
    }
}

fn nameless(folder: &Path, direct: bool) -> io::Result<File> {
    let direct = if direct { libc::O_DIRECT } else { 0 };
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let file = options
        .clone()
        .custom_flags(libc::O_TMPFILE | direct)
        .open(folder);
    if file.is_ok() {
        return file;
    }
    // A file system without such files, as NFS: one that has its name for a moment.
    let name = format!(".gpuos-memory.{}", std::process::id());
    let path: PathBuf = folder.join(name);
    let file = options.create_new(true).custom_flags(direct).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// A file that is read, by all who map it from one page cache.
pub(crate) struct Home {
    file: File,
    pub(crate) bytes: u64,
}

impl Home {
    pub(crate) fn new(path: &Path) -> io::Result<Home> {
        // Without the flag a FIFO would hold the program up before it can be looked at.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        Ok(Home {
            file,
            bytes: about.len(),
        })
    }

    /// The bytes from an offset on; behind the end of the file, zeros.
    pub(crate) fn read(&self, offset: u64, to: &mut Pages) -> io::Result<()> {
        let to = to.bytes_mut();
        let length = self.bytes.saturating_sub(offset).min(to.len() as u64) as usize;
        let (here, behind) = to.split_at_mut(length);
        self.file.read_exact_at(here, offset)?;
        behind.fill(0);
        Ok(())
    }
}
