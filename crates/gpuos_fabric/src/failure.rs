//! Why a call fails.

use std::fmt;

use gpuos_memory::objects::Refused;

/// What kind of failure it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// A wrong argument, or something that the machine does not do.
    Wrong,
    /// No room.
    Full,
    /// The time limit was over first.
    Timeout,
    /// Bytes are lost.
    Poisoned,
    /// There is no driver, or no such GPU.
    NoDriver,
    /// The process is a child of the one that opened it.
    Forked,
    /// A file or folder of a save cannot be written or read, or is not what it has to be.
    File,
}

/// A failure, and a sentence about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The kind.
    pub why: Why,
    /// The sentence, without the call.
    pub text: String,
}

impl Failure {
    /// A failure with its sentence.
    pub fn new(why: Why, text: impl Into<String>) -> Failure {
        Failure {
            why,
            text: text.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        let why = match refused {
            Refused::Full(..) | Refused::TooLarge(..) | Refused::NoRoom => Why::Full,
            Refused::Poisoned(_) | Refused::Unreadable(_) => Why::Poisoned,
            _ => Why::Wrong,
        };
        Failure::new(why, refused.to_string())
    }
}
