//! What a program and gpuos_mover say to each other about memory that goes to NVMe: lines of words, on a socket of gpuos_mover's.
//!
//! ```text
//!     program                                    gpuos_mover
//!     hello 1 SLOTS            ------>           with a sealed file in memory: the ring
//!                              <------   ready LIMIT            or "busy", or "refused WHY"
//!     put SLOT AT BYTES        ------>
//!     get SLOT AT BYTES DIGEST ------>
//!                              <------   done SLOT DIGEST       or "failed SLOT WHY"
//!     drop                     ------>
//!                              <------   dropped
//! ```
//!
//! The ring has slots of [`PIECE`] bytes. A slot is the program's until it says `put` or `get`, and again from the answer on. What is put is
//! written at that place of the process's own segment, and the answer has a digest of it, which the program gives back to get the same bytes:
//! so gpuos_mover remembers nothing, and may be started anew at any time. What is damaged is `failed`, and never reaches the slot.

use std::fmt;

use crate::protocol::{NoMessage, number, sentence, words};

/// Version of these lines: raised when one changes its meaning.
pub const VERSION: u32 = 1;
/// Bytes of a slot, and the most that is written or read at once.
pub const PIECE: u64 = 4 << 20;
/// The most slots of a ring.
pub const MOST_SLOTS: u32 = 8;
/// Places and lengths are multiples of it, as direct writes want them.
pub const PAGE: u64 = 4096;
/// An extent is not divided between host memory and NVMe: a process may have so much more there than it was promised. The largest extent.
pub const SLACK: u64 = 64 << 20;

/// What identifies the bytes of a piece at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest(pub [u8; 32]);

/// What a program says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FromProgram {
    /// The first line, which comes with the ring.
    Hello {
        /// Version of the lines.
        version: u32,
        /// Slots of the ring.
        slots: u32,
    },
    /// A slot has bytes for the segment.
    Put {
        /// The slot.
        slot: u32,
        /// Where they go.
        at: u64,
        /// How many.
        bytes: u64,
    },
    /// Bytes of the segment are wanted in a slot.
    Get {
        /// The slot.
        slot: u32,
        /// Where they are.
        at: u64,
        /// How many.
        bytes: u64,
        /// What they were when they were put.
        digest: Digest,
    },
    /// Nothing of the segment is needed any more.
    Drop,
}

/// What gpuos_mover says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToProgram {
    /// The segment may be so long, in bytes.
    Ready {
        /// Bytes.
        limit: u64,
    },
    /// It gets none: why, in a sentence.
    Refused {
        /// The sentence.
        why: String,
    },
    /// Too many are served: it may come again.
    Busy,
    /// What was said of a slot is done, and the slot is the program's.
    Done {
        /// The slot.
        slot: u32,
        /// Of the bytes.
        digest: Digest,
    },
    /// It could not be done: why, in a sentence. The slot is the program's.
    Failed {
        /// The slot.
        slot: u32,
        /// The sentence.
        why: String,
    },
    /// The segment is empty.
    Dropped,
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn digest(word: &str) -> Result<Digest, NoMessage> {
    let digits: Option<Vec<u32>> = word.chars().map(|letter| letter.to_digit(16)).collect();
    let digits = digits
        .filter(|digits| digits.len() == 64)
        .ok_or(NoMessage)?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = (pair[0] << 4 | pair[1]) as u8;
    }
    Ok(Digest(bytes))
}

fn small(word: &str) -> Result<u32, NoMessage> {
    number(word)?.try_into().map_err(|_| NoMessage)
}

impl FromProgram {
    /// The message of a line, with or without its newline.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(line: &[u8]) -> Result<FromProgram, NoMessage> {
        Ok(match words(line)?[..] {
            ["hello", version, slots] => FromProgram::Hello {
                version: small(version)?,
                slots: small(slots)?,
            },
            ["put", slot, at, bytes] => FromProgram::Put {
                slot: small(slot)?,
                at: number(at)?,
                bytes: number(bytes)?,
            },
            ["get", slot, at, bytes, of] => FromProgram::Get {
                slot: small(slot)?,
                at: number(at)?,
                bytes: number(bytes)?,
                digest: digest(of)?,
            },
            ["drop"] => FromProgram::Drop,
            _ => return Err(NoMessage),
        })
    }

    /// The line, with its newline.
    pub fn line(&self) -> String {
        match self {
            FromProgram::Hello { version, slots } => format!("hello {version} {slots}\n"),
            FromProgram::Put { slot, at, bytes } => format!("put {slot} {at} {bytes}\n"),
            FromProgram::Get {
                slot,
                at,
                bytes,
                digest,
            } => format!("get {slot} {at} {bytes} {digest}\n"),
            FromProgram::Drop => "drop\n".into(),
        }
    }
}

impl ToProgram {
    /// The message of a line, with or without its newline.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(line: &[u8]) -> Result<ToProgram, NoMessage> {
        let words = words(line)?;
        Ok(match words[..] {
            ["ready", limit] => ToProgram::Ready {
                limit: number(limit)?,
            },
            ["refused", ..] => ToProgram::Refused {
                why: words[1..].join(" "),
            },
            ["busy"] => ToProgram::Busy,
            ["done", slot, of] => ToProgram::Done {
                slot: small(slot)?,
                digest: digest(of)?,
            },
            ["failed", slot, ..] => ToProgram::Failed {
                slot: small(slot)?,
                why: words[2..].join(" "),
            },
            ["dropped"] => ToProgram::Dropped,
            _ => return Err(NoMessage),
        })
    }

    /// The line, with its newline. A sentence that is too long is cut.
    pub fn line(&self) -> String {
        match self {
            ToProgram::Ready { limit } => format!("ready {limit}\n"),
            ToProgram::Refused { why } => format!("refused {}\n", sentence(why)),
            ToProgram::Busy => "busy\n".into(),
            ToProgram::Done { slot, digest } => format!("done {slot} {digest}\n"),
            ToProgram::Failed { slot, why } => format!("failed {slot} {}\n", sentence(why)),
            ToProgram::Dropped => "dropped\n".into(),
        }
    }
}

/// What a program did that no program of gpuos does: its connection has to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// There is no such slot, or gpuos_mover has it already.
    Slot,
    /// The length is none that a slot has, or no whole pages.
    Length,
    /// The place is not in whole pages, or beyond what the process may have.
    Place,
    /// The segment is given up while pieces of it are on their way.
    Busy,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::Slot => "a slot was named that does not exist, or is not the program's",
            Violation::Length => "a piece is too long, or no whole pages",
            Violation::Place => "a piece lies outside of what the process may have",
            Violation::Busy => "the segment was given up while pieces of it were on their way",
        })
    }
}

impl std::error::Error for Violation {}

/// A connection, as gpuos_mover keeps it: which slots it has, and how far the segment goes.
#[derive(Clone, Debug)]
pub struct Session {
    slots: u32,
    /// A bit for each slot that is gpuos_mover's.
    busy: u32,
    put: u64,
    get: u64,
}

impl Session {
    /// Of a ring with so many slots. `put`: up to where may be written; `get`: up to where may be read.
    pub fn new(slots: u32, put: u64, get: u64) -> Option<Session> {
        (1..=MOST_SLOTS).contains(&slots).then_some(Session {
            slots,
            busy: 0,
            put,
            get: get.max(put),
        })
    }

    /// The program says this of a slot or the segment.
    ///
    /// # Errors
    /// It may not.
    pub fn take(&mut self, said: &FromProgram) -> Result<(), Violation> {
        let (slot, at, bytes, limit) = match *said {
            FromProgram::Hello { .. } => return Err(Violation::Slot),
            FromProgram::Drop if self.busy != 0 => return Err(Violation::Busy),
            FromProgram::Drop => return Ok(()),
            FromProgram::Put { slot, at, bytes } => (slot, at, bytes, self.put),
            FromProgram::Get {
                slot, at, bytes, ..
            } => (slot, at, bytes, self.get),
        };
        if slot >= self.slots || self.busy & 1 << slot != 0 {
            return Err(Violation::Slot);
        }
        if bytes == 0 || bytes > PIECE || !bytes.is_multiple_of(PAGE) {
            return Err(Violation::Length);
        }
        if !at.is_multiple_of(PAGE) || at.checked_add(bytes).is_none_or(|end| end > limit) {
            return Err(Violation::Place);
        }
        self.busy |= 1 << slot;
        Ok(())
    }

    /// Another promise: up to where may be written from now on. What is there already can be read.
    pub fn promised(&mut self, put: u64) {
        self.put = put;
        self.get = self.get.max(put);
    }

    /// What was said of a slot is done: it is the program's again.
    pub fn done(&mut self, slot: u32) {
        self.busy &= !(1_u32.checked_shl(slot).unwrap_or(0));
    }
}
