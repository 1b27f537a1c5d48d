//! Why a folder could not be made.

use std::fmt;

/// A failure, as a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    tried: String,
    why: String,
    next: &'static str,
}

impl Error {
    pub(super) fn new(tried: String, why: impl fmt::Display, next: &'static str) -> Error {
        let why = why.to_string();
        Error { tried, why, next }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}; {}", self.tried, self.why, self.next)
    }
}

impl std::error::Error for Error {}
