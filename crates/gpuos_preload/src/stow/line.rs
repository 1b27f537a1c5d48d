//! The connection to gpuos_mover, and the ring in which pieces are handed over.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use gpuos_memory::protocol::Lines;
use gpuos_memory::stow::{FromProgram, MOST_SLOTS, PIECE, ToProgram, VERSION};

use crate::vmm;

/// A piece may wait for those of others, and for a slow disk.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the ring.
const BYTES: usize = MOST_SLOTS as usize * PIECE as usize;

/// Open files, for a child of `fork`; -1: there are none.
static OPEN: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// A child of `fork` keeps nothing open. It takes no lock.
pub(crate) fn forget() {
    for open in &OPEN {
        let open = open.swap(-1, Ordering::SeqCst);
        if open >= 0 {
            // SAFETY: a file of the connection; nobody uses it in a child, which has none of the parent's threads.
            unsafe { libc::close(open) };
        }
    }
}

/// Memory that gpuos_mover reads and writes, too.
struct Ring {
    file: OwnedFd,
    at: *mut libc::c_void,
}

impl Ring {
    /// A file in memory of which all pages are there: they are the job's. It keeps its length; gpuos_mover has it keep its pages, too.
    fn new() -> std::io::Result<Ring> {
        let failed = || std::io::Error::last_os_error();
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a C string.
        let file = unsafe { libc::memfd_create(c"gpuos-ring".as_ptr(), flags) };
        if file < 0 {
            return Err(failed());
        }
        // SAFETY: it was opened just now, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        // SAFETY: calls with numbers on a file that is open.
        let made = unsafe {
            libc::ftruncate(file.as_raw_fd(), BYTES as libc::off_t) == 0
                && libc::fallocate(file.as_raw_fd(), 0, 0, BYTES as libc::off_t) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
        };
        if !made {
            return Err(failed());
        }
        // SAFETY: a new mapping where the kernel likes, of a file that keeps its length.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match at == libc::MAP_FAILED {
            true => Err(failed()),
            false => Ok(Ring { file, at }),
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        OPEN[1].store(-1, Ordering::SeqCst);
        // SAFETY: the mapping of this ring, which nothing uses any more: copies were waited for.
        unsafe { libc::munmap(self.at, BYTES) };
    }
}

/// An open connection.
pub(crate) struct Line {
    stream: UnixStream,
    lines: Lines,
    ring: Ring,
    /// Slots that are this process's.
    free: Vec<u32>,
    /// How long the segment may be.
    pub(crate) limit: u64,
    /// The context in which the driver knows the ring.
    registered: Option<u64>,
}

/// Why nothing is moved.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The connection is lost, or there is none: it may come back.
    Lost(String),
    /// It will not be.
    No(String),
}

impl Drop for Line {
    fn drop(&mut self) {
        OPEN[0].store(-1, Ordering::SeqCst);
        if let Some(context) = self.registered {
            let _ = vmm::within(context, || vmm::unregister(self.ring.at as u64));
        }
    }
}

impl Line {
    /// Connects, and hands over a new ring.
    pub(crate) fn connect(path: &str) -> Result<Line, Trouble> {
        let lost = |error: std::io::Error| Trouble::Lost(format!("{path}: {error}"));
        // Too many open files, or too little memory: both pass, and what is on NVMe would be lost.
        let ring = Ring::new()
            .map_err(|error| Trouble::Lost(format!("there is no memory for its ring: {error}")))?;
        let stream = UnixStream::connect(path).map_err(lost)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(lost)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(lost)?;
        OPEN[0].store(stream.as_raw_fd(), Ordering::SeqCst);
        OPEN[1].store(ring.file.as_raw_fd(), Ordering::SeqCst);
        let hello = FromProgram::Hello {
            version: VERSION,
            slots: MOST_SLOTS,
        };
        // From here on it forgets the numbers of its files when it goes, also where nothing is sent.
        let mut line = Line {
            stream,
            lines: Lines::default(),
            ring,
            free: (0..MOST_SLOTS).collect(),
            limit: 0,
            registered: None,
        };
        send_with(&line.stream, &hello.line(), &line.ring.file).map_err(lost)?;
        match line.next()? {
            ToProgram::Ready { limit } => line.limit = limit,
            ToProgram::Refused { why } => return Err(Trouble::No(why)),
            ToProgram::Busy => return Err(Trouble::Lost("gpuos_mover is busy".into())),
            _ => return Err(Trouble::No("gpuos_mover answers something else".into())),
        }
        Ok(line)
    }

    /// Tells the driver of the ring, so that it copies at its best. Where it does not take it, it copies all the same.
    pub(crate) fn register(&mut self, context: u64) {
        if self.registered.is_none() {
            let done = vmm::within(context, || vmm::register(self.ring.at as u64, BYTES as u64));
            self.registered = done.is_ok().then_some(context);
        }
    }

    /// Where a slot is in this process.
    pub(crate) fn address(&self, slot: u32) -> u64 {
        self.ring.at as u64 + u64::from(slot) * PIECE
    }

    /// A slot that is this process's, if there is one.
    pub(crate) fn slot(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// A slot is this process's again.
    pub(crate) fn give(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Whether gpuos_mover has no slot.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == MOST_SLOTS as usize
    }

    /// Says something.
    pub(crate) fn say(&mut self, what: &FromProgram) -> Result<(), Trouble> {
        let said = self.stream.write_all(what.line().as_bytes());
        said.map_err(|error| Trouble::Lost(error.to_string()))
    }

    /// The next answer.
    pub(crate) fn next(&mut self) -> Result<ToProgram, Trouble> {
        let strange = || Trouble::No("gpuos_mover says something that is no answer".into());
        let mut bytes = [0; 1024];
        loop {
            if let Some(line) = self.lines.next_line().map_err(|_| strange())? {
                return ToProgram::parse(&line).map_err(|_| strange());
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Trouble::Lost("gpuos_mover has gone".into())),
                Ok(count) => self.lines.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::Lost(error.to_string())),
            }
        }
    }
}

/// Sends a line, and an open file with it.
fn send_with(stream: &UnixStream, line: &str, file: &OwnedFd) -> std::io::Result<()> {
    /// As long as a header with one number, and aligned as the kernel wants it.
    #[repr(C, align(8))]
    struct Control([u8; 24]);
    let mut control = Control([0; 24]);
    let mut text = libc::iovec {
        iov_base: line.as_ptr() as *mut libc::c_void,
        iov_len: line.len(),
    };
    // SAFETY: a structure of numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut text;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    // SAFETY: the message and its control bytes live until the call is done, and these have room for the header and one number:
    // CMSG_SPACE(4) is 24.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
        libc::CMSG_DATA(header)
            .cast::<i32>()
            .write_unaligned(file.as_raw_fd());
        libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    match sent {
        sent if sent == line.len() as isize => Ok(()),
        sent if sent >= 0 => Err(ErrorKind::WriteZero.into()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
