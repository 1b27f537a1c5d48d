//! Whole files: read into memory, replaced in one step, and runs of bytes read and written to their end.

use std::io;

use rustix::io::Errno;

use crate::disk::{Disk, Form};
use crate::names::unfinished;

/// Fills the buffer as far as the file goes.
pub(crate) fn read_full<D: Disk>(
    disk: &D,
    file: &D::File,
    buffer: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match disk.read_at(file, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The same for a file that is read from its begin to its end: what comes after it is on its way meanwhile.
pub(crate) fn read_along<D: Disk>(
    disk: &D,
    file: &D::File,
    buffer: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    // As far again, twice: while one is looked at the next two can come.
    disk.will_read(file, offset, buffer.len().saturating_mul(3));
    read_full(disk, file, buffer, offset)
}

/// Writes all of the bytes.
pub(crate) fn write_full<D: Disk>(
    disk: &D,
    file: &D::File,
    bytes: &[u8],
    offset: u64,
) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match disk.write_at(file, &bytes[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO.into()),
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A whole file of at most `most` bytes. A longer one and what is no regular file is `InvalidData`.
pub(crate) fn read_whole<D: Disk>(
    disk: &D,
    at: &D::Folder,
    name: &[u8],
    most: usize,
) -> io::Result<Vec<u8>> {
    let file = disk.open(at, name)?;
    let facts = disk.facts(&file)?;
    let size = usize::try_from(facts.size).unwrap_or(usize::MAX);
    if facts.form != Form::File || size > most {
        let why = "it is no regular file, or longer than any that was written";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut bytes = vec![0; size];
    let read = read_full(disk, &file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Replaces a file, so that after a crash it is the old or the new one: written under another name, on the disk before it is
/// renamed, and the name on the disk before this returns.
pub(crate) fn replace<D: Disk>(
    disk: &D,
    at: &D::Folder,
    name: &[u8],
    bytes: &[u8],
) -> io::Result<()> {
    let unfinished = unfinished(name);
    remove_if_there(disk, at, &unfinished)?;
    let file = disk.create(at, &unfinished)?;
    write_full(disk, &file, bytes, 0)?;
    disk.sync(&file)?;
    disk.rename(at, &unfinished, name, true)?;
    disk.sync_folder(at)
}

/// Removes a file that may not exist.
pub(crate) fn remove_if_there<D: Disk>(disk: &D, at: &D::Folder, name: &[u8]) -> io::Result<()> {
    match disk.unlink(at, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Makes a folder that may exist already, and opens it.
pub(crate) fn make_or_open<D: Disk>(
    disk: &D,
    at: &D::Folder,
    name: &[u8],
) -> io::Result<D::Folder> {
    match disk.make_folder(at, name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    // Also where it was there: the call that made it may have failed to sync.
    disk.sync_folder(at)?;
    disk.open_folder(at, name)
}

/// What is not there any more is nothing.
pub(crate) fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}
