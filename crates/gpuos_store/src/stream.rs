//! Writes to a file that go on beside their caller: a few threads, and direct I/O where the file system takes it.
//!
//! Through the page cache a checkpoint costs a copy, pages of memory that programs could use, and a flush at the end in which
//! the disk does what it could have done before. With O_DIRECT the disk writes while the next bytes are read and hashed. Threads
//! rather than io_uring: with pieces of 2 MiB a call more or less does not count, and no unsafe code is needed
//! (docs/decisions/0026).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use gpuos_checkpoint::manifest::ALIGNMENT;
use rustix::fs::{CWD, Mode, OFlags, fcntl_getfl, fcntl_setfl, openat};
use rustix::io::{Errno, pwrite};

use crate::buffer::Buffer;

/// Writes to one file that go on while their caller does something else. They may reach the file in any order. One that is dropped
/// without [`Stream::finish`] has written any of them, and writes nothing afterwards.
pub trait Stream {
    /// Begins to write the first `length` bytes of the buffer, and gives a buffer at least as long that is free. Waits while too many are on their way.
    ///
    /// # Errors
    /// Those of `pwrite`, of this or an earlier write.
    fn write(&mut self, buffer: Buffer, length: usize, offset: u64) -> io::Result<Buffer>;
    /// Whether more waits to be written than is written at once, so that the file system is slower than who fills the buffers.
    fn is_behind(&self) -> bool;
    /// Waits for all that were begun. They are not on the disk before [`Disk::sync`](crate::disk::Disk::sync).
    ///
    /// # Errors
    /// Those of `pwrite`, of any of them.
    fn finish(self) -> io::Result<()>;
}

/// Threads of a stream: four writes of 2 MiB at a time keep an NVMe disk busy.
const WRITERS: usize = 4;

/// Buffers of a stream at most, beside the one that its caller fills: a thread that is done finds the next at once.
pub(crate) const IN_FLIGHT: usize = 2 * WRITERS;

struct Piece {
    buffer: Buffer,
    length: usize,
    offset: u64,
}

type Done = (Buffer, io::Result<()>);

/// Writes to a file of a Linux file system.
pub struct LinuxStream {
    file: Arc<OwnedFd>,
    direct: bool,
    /// `None` once no more come.
    pieces: Option<Sender<Piece>>,
    queue: Arc<Mutex<Receiver<Piece>>>,
    ended: (Sender<Done>, Receiver<Done>),
    in_flight: usize,
    /// Those that are not written yet.
    unwritten: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl LinuxStream {
    /// For an open file. That is written directly until the stream is finished, if its file system can.
    pub(crate) fn new(file: &OwnedFd) -> io::Result<LinuxStream> {
        let file = Arc::new(file.try_clone()?);
        let (pieces, queue) = channel();
        Ok(LinuxStream {
            direct: set_direct(&file, true).is_ok(),
            file,
            pieces: Some(pieces),
            queue: Arc::new(Mutex::new(queue)),
            ended: channel(),
            in_flight: 0,
            unwritten: Arc::default(),
            threads: Vec::new(),
        })
    }

    /// One thread more, while all are busy. Without any, the caller writes.
    fn more_threads(&mut self) {
        if self.threads.len() >= WRITERS || self.in_flight < self.threads.len() {
            return;
        }
        let (file, queue) = (self.file.clone(), self.queue.clone());
        let (ended, unwritten) = (self.ended.0.clone(), self.unwritten.clone());
        let writer = Builder::new().name("write".into());
        let thread = writer.spawn(move || {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(piece) = next else { return };
                let bytes = &piece.buffer.as_slice()[..piece.length];
                let written = write_all(&file, bytes, piece.offset);
                unwritten.fetch_sub(1, Ordering::Relaxed);
                if ended.send((piece.buffer, written)).is_err() {
                    return;
                }
            }
        });
        self.threads.extend(thread.ok());
    }

    /// Waits for one that is on its way.
    fn one(&mut self) -> io::Result<Buffer> {
        let ended = self.ended.1.recv();
        let (buffer, written) =
            ended.map_err(|_| io::Error::other("a thread that writes ended"))?;
        self.in_flight -= 1;
        written.map(|()| buffer)
    }

    fn here(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        while self.in_flight > 0 {
            self.one()?;
        }
        // What is no whole page can only be written through the page cache.
        if self.direct && !bytes.len().is_multiple_of(ALIGNMENT as usize) {
            self.direct = false;
            set_direct(&self.file, false)?;
        }
        write_all(&self.file, bytes, offset)
    }
}

impl Stream for LinuxStream {
    fn write(&mut self, buffer: Buffer, length: usize, offset: u64) -> io::Result<Buffer> {
        let whole = length.is_multiple_of(ALIGNMENT as usize) && offset.is_multiple_of(ALIGNMENT);
        if whole {
            self.more_threads();
        }
        if !whole || self.threads.is_empty() {
            self.here(&buffer.as_slice()[..length], offset)?;
            return Ok(buffer);
        }
        let capacity = buffer.capacity();
        let piece = Piece {
            buffer,
            length,
            offset,
        };
        self.unwritten.fetch_add(1, Ordering::Relaxed);
        // The queue is in this stream, so that somebody receives.
        let sent = self.pieces.as_ref().map(|pieces| pieces.send(piece));
        if !matches!(sent, Some(Ok(()))) {
            return Err(Errno::PIPE.into());
        }
        self.in_flight += 1;
        let free = match self.in_flight > IN_FLIGHT {
            // A shorter one, in which a part of an extent was, serves nobody.
            true => Some(self.one()?).filter(|free| free.capacity() >= capacity),
            false => None,
        };
        Ok(free.unwrap_or_else(|| Buffer::new(capacity)))
    }

    fn is_behind(&self) -> bool {
        self.unwritten.load(Ordering::Relaxed) > WRITERS
    }

    fn finish(mut self) -> io::Result<()> {
        while self.in_flight > 0 {
            self.one()?;
        }
        if self.direct {
            set_direct(&self.file, false)?;
        }
        Ok(())
    }
}

impl Drop for LinuxStream {
    fn drop(&mut self) {
        self.pieces = None;
        for thread in self.threads.drain(..) {
            // It does not panic, and if it did there is nothing to be done about it.
            let _ = thread.join();
        }
    }
}

fn set_direct(file: impl AsFd, direct: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(&file)?;
    flags.set(OFlags::DIRECT, direct);
    Ok(fcntl_setfl(&file, flags)?)
}

fn write_all(file: &OwnedFd, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match pwrite(file, &bytes[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO.into()),
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            // The file system takes the flag and not the write, as where its blocks are larger than pages, or wrote a part of a page.
            Err(Errno::INVAL) if fcntl_getfl(file)?.contains(OFlags::DIRECT) => {
                set_direct(file, false)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether files in a folder can be written past the page cache; for a log.
pub fn is_direct(folder: &Path) -> bool {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::DIRECT | OFlags::CLOEXEC;
    let Ok(file) = openat(CWD, folder, flags, Mode::RUSR | Mode::WUSR) else {
        return false;
    };
    let page = Buffer::new(ALIGNMENT as usize);
    pwrite(&file, page.as_slice(), 0) == Ok(ALIGNMENT as usize)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::io::Read;

    use super::*;

    const LENGTH: usize = 64 << 10;

    fn filled(nth: u8) -> Buffer {
        let mut buffer = Buffer::new(LENGTH);
        buffer.bytes().fill(nth);
        buffer
    }

    /// On the file system of temporary files, and on one in memory, which takes O_DIRECT on new kernels only.
    #[test]
    fn all_that_was_begun_is_in_the_file_also_what_is_no_whole_page() {
        for folder in [std::env::temp_dir(), "/dev/shm".into()] {
            let path = folder.join(format!("gpuos-stream-{}", std::process::id()));
            let options = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .clone();
            let file: OwnedFd = options.open(&path).unwrap().into();
            let mut stream = LinuxStream::new(&file).unwrap();
            for nth in 0..40_u8 {
                let at = u64::from(nth) * LENGTH as u64;
                assert_eq!(
                    stream.write(filled(nth), LENGTH, at).unwrap().capacity(),
                    LENGTH
                );
            }
            stream.write(filled(40), 1000, 40 * LENGTH as u64).unwrap();
            stream
                .write(filled(41), LENGTH, 40 * LENGTH as u64 + 1000)
                .unwrap();
            stream.finish().unwrap();
            assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::DIRECT));
            let mut bytes = Vec::new();
            File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
            fs::remove_file(&path).unwrap();
            let mut expected: Vec<u8> = (0..40).flat_map(|nth| vec![nth; LENGTH]).collect();
            expected.extend([40; 1000]);
            expected.extend([41; LENGTH]);
            assert!(bytes == expected, "{}", folder.display());
        }
    }

    #[test]
    fn an_error_of_a_write_is_told_at_the_end_if_not_before() {
        let file: OwnedFd = OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap()
            .into();
        let mut stream = LinuxStream::new(&file).unwrap();
        let written = stream.write(filled(1), LENGTH, 0);
        let error = written.and_then(|_| stream.finish()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_folder_is_asked_whether_it_takes_direct_writes() {
        assert!(!is_direct(Path::new("/proc")));
    }
}
