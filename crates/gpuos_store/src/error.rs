//! What went wrong: what was tried, why it failed, and what to do next.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// What kind of failure it was, for a caller that acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The disk or the user's quota is full.
    Full,
    /// The file system cannot be written.
    ReadOnly,
    /// Another failure of the disk.
    Disk,
    /// It is not there.
    Missing,
    /// It is there, and is not what was written.
    Damaged,
    /// It is something that is not accepted: a hostile or unfit file, an argument, a limit.
    Refused,
}

/// A failure, as a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// For acting.
    pub kind: Kind,
    tried: String,
    why: String,
    next: &'static str,
}

/// What the store's functions give.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For what is built on the store: `tried` and `next` begin with a verb, as in "read ..." and "try again".
    pub fn new(
        kind: Kind,
        tried: impl Into<String>,
        why: impl Into<String>,
        next: &'static str,
    ) -> Error {
        Error {
            kind,
            tried: tried.into(),
            why: why.into(),
            next,
        }
    }

    /// The same failure as the reason why something larger failed.
    pub(crate) fn within(self, tried: String) -> Error {
        let why = format!("cannot {}: {}", self.tried, self.why);
        Error { tried, why, ..self }
    }

    /// Something that is not accepted, and what can be done.
    pub fn refused(tried: impl Into<String>, why: impl Into<String>, next: &'static str) -> Error {
        Error::new(Kind::Refused, tried, why, next)
    }

    /// Something kept that is not what was written.
    pub(crate) fn damaged(tried: impl Into<String>, why: impl Into<String>) -> Error {
        Error {
            kind: Kind::Damaged,
            tried: tried.into(),
            why: why.into(),
            next: "it is not used: rebuild it from the other nodes of its set, or use an earlier checkpoint",
        }
    }

    /// A call of the file system that failed.
    pub(crate) fn disk(tried: impl Into<String>, error: &io::Error) -> Error {
        if error.kind() == io::ErrorKind::InvalidData {
            return Error::damaged(tried, error.to_string());
        }
        let errno = Errno::from_io_error(error);
        let (kind, next) = match errno {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => (
                Kind::Full,
                "free space there, or have fewer checkpoints kept",
            ),
            Some(Errno::ROFS) => (
                Kind::ReadOnly,
                "look in the kernel's log why the file system is read-only, and mount it writable",
            ),
            Some(Errno::NOENT) => (
                Kind::Missing,
                "rebuild it from the other nodes of its set, or use an earlier checkpoint",
            ),
            Some(Errno::LOOP) => (
                Kind::Refused,
                "a symbolic link is never followed: remove it",
            ),
            // A link is told so, too, where a folder was to be opened.
            Some(Errno::NOTDIR) => (
                Kind::Refused,
                "a folder belongs there, and neither a file nor a symbolic link: move what is there away",
            ),
            _ => (
                Kind::Disk,
                "look in the kernel's log for faults of the disk, and try again",
            ),
        };
        Error {
            kind,
            tried: tried.into(),
            why: error.to_string(),
            next,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}; {}", self.tried, self.why, self.next)
    }
}

impl std::error::Error for Error {}

/// Says what was tried when a call of the file system fails.
pub(crate) trait Tried<T> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Tried<T> for io::Result<T> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::disk(what(), &error))
    }
}

/// A name or path in a sentence: names have any bytes, and sentences are read on terminals.
pub(crate) fn shown(name: &[u8]) -> String {
    const MOST: usize = 200;
    let cut = &name[..name.len().min(MOST)];
    let more = if name.len() > MOST { "..." } else { "" };
    format!("\"{}{more}\"", cut.escape_ascii())
}
