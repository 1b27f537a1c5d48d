//! The file of a trace. The name is the user's, and so may be anything: only a new file is written, or an old trace of the same user.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use gpuos_memory::trace::HEAD;

/// The most bytes of a file.
const MOST: u64 = 128 << 20;

/// A file that is written.
pub(crate) struct Sink {
    file: File,
    /// Device and number: a program may close what it did not open, and have another file under the same descriptor.
    id: (u64, u64),
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

fn id(file: &File) -> Result<(u64, u64), Error> {
    let known = file.metadata()?;
    Ok((known.dev(), known.ino()))
}

/// Opens it without following a link and without waiting for who reads a pipe.
fn opened(path: &OsStr) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => options.open(path),
        opened => opened,
    }
}

/// Whether nobody else has it open to write; where the file system cannot tell, that is so.
fn lock(file: &File) -> bool {
    // SAFETY: a descriptor that is open, and a number.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    locked || Error::last_os_error().kind() != ErrorKind::WouldBlock
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
        let mut file = opened(&path).map_err(told)?;
        let known = file.metadata().map_err(told)?;
        // SAFETY: no arguments, and it does not fail.
        let own = known.uid() == unsafe { libc::geteuid() };
        if !known.is_file() || !own {
            return Err(refuse("it is no file of yours; name another one"));
        }
        if !lock(&file) {
            return Err(refuse(
                "another process does; write %p in the name, for the number of each process",
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
        file.set_len(0).map_err(told)?;
        let mut sink = Sink {
            id: id(&file).map_err(told)?,
            file,
            name,
            written: 0,
        };
        sink.append(&format!("{HEAD}\nextent-mib {extent_mib}\n"))?;
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
        if id(&self.file).ok() != Some(self.id) {
            return Err(format!(
                "the program has closed '{name}', and nothing more is recorded"
            ));
        }
        if let Err(error) = self.file.write_all_at(lines.as_bytes(), self.written) {
            // No half of a line stays.
            let _ = self.file.set_len(self.written);
            return Err(format!(
                "cannot write '{name}': {error}; nothing more is recorded"
            ));
        }
        self.written = end;
        Ok(())
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
