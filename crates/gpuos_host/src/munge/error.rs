//! Why there is no credential, as values that callers tell apart.

use std::fmt;

/// Why a call gave nothing. `Display` is a sentence with what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The library could not be opened: its name and the loader's reason.
    Missing {
        /// What was opened.
        path: String,
        /// What the loader said.
        reason: String,
    },
    /// munged does not answer: munge's words.
    NoAnswer(String),
    /// The payload is too long: its bytes.
    TooLong(usize),
    /// The credential was read here before.
    Replayed,
    /// It is older, or made later, than munge accepts. The clocks of the nodes may differ.
    OtherTime(String),
    /// It is no credential, or of another key, or for another user: munge's words.
    Refused(String),
}

impl Error {
    /// Whether munged is to blame, not the credential.
    pub fn is_absence(&self) -> bool {
        matches!(self, Error::Missing { .. } | Error::NoAnswer(_))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing { path, reason } => write!(
                f,
                "cannot open {path} ({reason}): install munge's library (libmunge2 on Debian, munge-libs elsewhere)"
            ),
            Error::NoAnswer(why) => {
                write!(
                    f,
                    "munged does not answer ({why}): see `systemctl status munge`"
                )
            }
            Error::TooLong(bytes) => write!(
                f,
                "{bytes} bytes are more than the {} that go into a message",
                super::MAX_PAYLOAD
            ),
            Error::Replayed => write!(f, "the credential was read here before"),
            Error::OtherTime(why) => {
                write!(
                    f,
                    "{why}: compare the clocks of the nodes (chronyc tracking)"
                )
            }
            Error::Refused(why) => write!(f, "munge refuses the credential: {why}"),
        }
    }
}

impl std::error::Error for Error {}
