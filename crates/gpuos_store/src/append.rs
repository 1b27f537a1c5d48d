//! A file that grows from its first byte to its last, while what was appended before is on its way to the disk.

use std::io;

use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::pace::Pace;
use crate::stream::Stream;

/// What is written at a time where the caller appends less.
pub(crate) const STEP: usize = 2 << 20;

/// What is at least as long goes to the disk from where it lies; what is shorter is gathered.
const LONG: usize = STEP / 8;

/// The file is made longer ahead of what is written, by as much again and so many bytes at most: writes that extend a file wait for
/// each other in ext4 and XFS.
const AHEAD: u64 = 128 << 20;

/// Appends to a new file.
pub(crate) struct Appender<'a, D: Disk> {
    disk: &'a D,
    file: D::File,
    stream: D::Stream,
    pace: Option<&'a Pace>,
    gathered: Option<Buffer>,
    filled: usize,
    /// Bytes that were handed to the stream.
    written: u64,
    /// Length that the file has.
    length: u64,
}

impl<'a, D: Disk> Appender<'a, D> {
    /// For a file that is empty.
    pub(crate) fn new(
        disk: &'a D,
        file: D::File,
        pace: Option<&'a Pace>,
    ) -> io::Result<Appender<'a, D>> {
        let stream = disk.stream(&file)?;
        Ok(Appender {
            disk,
            file,
            stream,
            pace,
            gathered: None,
            filled: 0,
            written: 0,
            length: 0,
        })
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let gathered = self.gathered.get_or_insert_with(|| Buffer::new(STEP));
            let fits = bytes.len().min(STEP - self.filled);
            let (some, rest) = bytes.split_at(fits);
            gathered.bytes()[self.filled..self.filled + fits].copy_from_slice(some);
            self.filled += fits;
            bytes = rest;
            if self.filled == STEP {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Appends the first `length` bytes of a buffer, whole pages, and gives one that is free.
    pub(crate) fn append_buffer(&mut self, buffer: Buffer, length: usize) -> io::Result<Buffer> {
        if length < LONG {
            self.append(&buffer.as_slice()[..length])?;
            return Ok(buffer);
        }
        self.flush()?;
        self.write(buffer, length)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.filled > 0
            && let Some(gathered) = self.gathered.take()
        {
            let filled = std::mem::take(&mut self.filled);
            self.gathered = Some(self.write(gathered, filled)?);
        }
        Ok(())
    }

    fn write(&mut self, buffer: Buffer, length: usize) -> io::Result<Buffer> {
        if let Some(pace) = self.pace {
            pace(length as u64);
        }
        let end = self.written + length as u64;
        if end > self.length {
            self.length = end + self.written.min(AHEAD);
            if self.length > end {
                self.disk.set_length(&self.file, self.length)?;
            }
        }
        let capacity = buffer.capacity();
        let free = self.stream.write(buffer, length, self.written)?;
        self.written = end;
        // Those that gather and those of the caller may have other lengths.
        Ok(match free.capacity() == capacity {
            true => free,
            false => Buffer::new(capacity),
        })
    }

    /// Whether more waits for the disk than it writes at once.
    pub(crate) fn is_behind(&self) -> bool {
        self.stream.is_behind()
    }

    /// Waits until all of it is in the file and on the disk.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.stream.finish()?;
        if self.length != self.written {
            self.disk.set_length(&self.file, self.written)?;
        }
        self.disk.sync(&self.file)
    }
}
