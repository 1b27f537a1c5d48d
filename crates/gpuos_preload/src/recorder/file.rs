//! The file of a trace. The name is the user's, and so may be anything: only a new file is written, or an old trace of the same user.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use gpuos_memory::trace::HEAD;

/// The most bytes of a file.
const MOST: u64 = 128 << 20;

/// Descriptors are taken from here on, where the process may have so many: those that programs close without having opened them are lower.
const HIGH: i32 = 200;

/// The descriptor of the trace, -1 for none, and which file it is, by device and number: a program may close what it did not open, and have
/// another file under the same descriptor. A child of `fork` reads it without a lock.
static OPEN: AtomicI32 = AtomicI32::new(-1);
static DEVICE: AtomicU64 = AtomicU64::new(0);
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Whether a descriptor is the trace.
fn is_trace(descriptor: i32) -> bool {
    let mut known = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a structure of this frame, which is read only if it was filled. What is asked of a descriptor that is not open fails.
    let (device, number) = unsafe {
        if libc::fstat(descriptor, known.as_mut_ptr()) != 0 {
            return false;
        }
        let known = known.assume_init();
        (known.st_dev, known.st_ino)
    };
    device == DEVICE.load(Ordering::Relaxed) && number == NUMBER.load(Ordering::Relaxed)
}

/// Closes the trace, if its descriptor is still that. Takes no lock, and may be called in a child of `fork`, whose parent has the file then.
pub(crate) fn close() {
    let descriptor = OPEN.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 && is_trace(descriptor) {
        // SAFETY: the file that `Sink` opened, which nobody else closes.
        unsafe { libc::close(descriptor) };
    }
}

/// The same file under a descriptor that programs do not take for theirs.
fn out_of_the_way(file: File) -> Result<File, Error> {
    let found = [HIGH, 3].into_iter().find_map(|from| {
        // SAFETY: a descriptor that is open, and a number.
        let other = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, from) };
        // SAFETY: a new descriptor of this function's own.
        (other >= 0).then(|| unsafe { File::from_raw_fd(other) })
    });
    found.ok_or_else(Error::last_os_error)
}

/// A file that is written.
pub(crate) struct Sink {
    /// [`OPEN`]; closed by [`close`] alone.
    file: ManuallyDrop<File>,
    name: String,
    written: u64,
}

/// `%p` is the number of the process.
fn expanded(name: &OsStr) -> OsString {
    let (name, mut all) = (name.as_bytes(), Vec::new());
    let mut rest = name;
    while let Some(at) = rest.windows(2).position(|two| two == b"%p") {
        all.extend(&rest[..at]);
        all.extend(std::process::id().to_string().as_bytes());
        rest = &rest[at + 2..];
    }
    all.extend(rest);
    OsString::from_vec(all)
}

/// Opens it without following a link and without waiting for who reads a pipe, and tells whether it is new.
fn opened(path: &OsStr) -> Result<(File, bool), Error> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            options.open(path).map(|file| (file, false))
        }
        opened => opened.map(|file| (file, true)),
    }
}

/// Whether nobody else has it open to write; where the file system cannot tell, that is so of a new one.
fn lock(file: &File, is_new: bool) -> bool {
    // SAFETY: a descriptor that is open, and a number.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    locked || is_new && Error::last_os_error().kind() != ErrorKind::WouldBlock
}

/// Bytes that a file of the process may have: one more is a signal that ends it.
fn limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: one structure of this frame.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => MOST,
    }
}

impl Sink {
    /// Opens the file and writes the first lines. The error is most of a sentence.
    pub(crate) fn open(name: &OsStr, extent_mib: u64) -> Result<Sink, String> {
        let path = expanded(name);
        let name = path.to_string_lossy().escape_debug().to_string();
        let refuse = |why: &str| format!("cannot write '{name}': {why}");
        let told = |error: Error| match error.raw_os_error() {
            Some(libc::ELOOP) => refuse("it is a link; name the file itself"),
            _ => refuse(&error.to_string()),
        };
        let (file, is_new) = opened(&path).map_err(told)?;
        let mut file = out_of_the_way(file).map_err(told)?;
        let known = file.metadata().map_err(told)?;
        // SAFETY: no arguments, and it does not fail.
        let own = known.uid() == unsafe { libc::geteuid() };
        if !known.is_file() || !own {
            return Err(refuse("it is no file of yours; name another one"));
        }
        if !lock(&file, is_new) {
            return Err(refuse(
                "another process may be writing it; write %p in the name, for the number of each process, or name a file that is not there",
            ));
        }
        let mut head = Vec::new();
        let mut begins = file.by_ref().take(HEAD.len() as u64);
        begins.read_to_end(&mut head).map_err(told)?;
        if !head.is_empty() && head != HEAD.as_bytes() {
            return Err(refuse(
                "what is in it is no trace, and stays; name another file",
            ));
        }
        DEVICE.store(known.dev(), Ordering::Relaxed);
        NUMBER.store(known.ino(), Ordering::Relaxed);
        let descriptor = file.into_raw_fd();
        OPEN.store(descriptor, Ordering::Relaxed);
        let mut sink = Sink {
            // SAFETY: the descriptor of above, which `close` alone closes.
            file: ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) }),
            name,
            written: 0,
        };
        sink.append(&format!("{HEAD}\nextent-mib {extent_mib}\n"))?;
        // An old trace stays where nothing can be written.
        sink.file.set_len(sink.written).map_err(|error| {
            format!("cannot write '{}': {error}; nothing is recorded", sink.name)
        })?;
        Ok(sink)
    }

    /// Writes whole lines. The error is a sentence, after which nothing is written any more.
    pub(crate) fn append(&mut self, lines: &str) -> Result<(), String> {
        let name = &self.name;
        let end = self.written + lines.len() as u64;
        let most = MOST.min(limit());
        if end > most {
            return Err(format!(
                "'{name}' may have {} KiB, and what comes after them is not recorded",
                most >> 10
            ));
        }
        if !is_trace(self.file.as_raw_fd()) {
            return Err(format!(
                "the program has closed '{name}', and nothing more is recorded"
            ));
        }
        if let Err(error) = self.file.write_all_at(lines.as_bytes(), self.written) {
            // No half of a line stays.
            if self.written > 0 {
                let _ = self.file.set_len(self.written);
            }
            return Err(format!(
                "cannot write '{name}': {error}; nothing more is recorded"
            ));
        }
        self.written = end;
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_the_process_stands_in_the_name() {
        let number = std::process::id();
        for (name, wanted) in [
            ("a.trace", "a.trace".to_owned()),
            ("%p", number.to_string()),
            ("a-%p-%p%", format!("a-{number}-{number}%")),
        ] {
            assert_eq!(expanded(OsStr::new(name)), OsStr::new(&wanted));
        }
    }
}
