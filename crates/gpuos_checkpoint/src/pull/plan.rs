//! What is to be made, of what, and how patiently.

use std::fmt;
use std::ops::Range;

use crate::stripe::MOST_SHARDS;

/// The most pieces in flight. Own choice: at 1 MiB and 8 sources already 8 GiB.
pub const MOST_WINDOW: u16 = 1024;

/// How long an answer is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// A question is repeated after this many milliseconds without an answer, then after twice that, and so on.
    pub retry_ms: u64,
    /// The longest wait between two questions, in milliseconds.
    pub longest_ms: u64,
    /// A source counts as silent when a question was asked so many times and nothing at all came from it meanwhile.
    pub tries: u8,
}

impl Default for Patience {
    /// Own choice: a source is given up after about 20 seconds of silence.
    fn default() -> Patience {
        Patience {
            retry_ms: 1000,
            longest_ms: 8000,
            tries: 5,
        }
    }
}

impl Patience {
    /// How long the answer to the `asked`-th question is waited for, in milliseconds.
    pub(super) fn wait_ms(&self, asked: u8) -> u64 {
        let doubled = 1_u64.checked_shl(asked.saturating_sub(1).into());
        let wait = doubled.map_or(u64::MAX, |by| self.retry_ms.saturating_mul(by));
        wait.min(self.longest_ms.max(self.retry_ms)).max(1)
    }
}

/// A shard to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The length of the shard in bytes, which its sources have too.
    pub len: u64,
    /// The length of a piece in bytes; the last may be shorter. 1 MiB is usual.
    pub piece_len: u32,
    /// How many sources a piece is made of (k).
    pub needed: u8,
    /// The places in the stripe of the shards that can be had, those to take first in front. More than `needed`: the others
    /// stand in for those that fail.
    pub sources: Vec<u8>,
    /// The most pieces in flight.
    pub window: u16,
    /// How many pieces are on disc already, from the first without a gap.
    pub resume_from: u64,
    /// How long answers are waited for.
    pub patience: Patience,
}

impl Plan {
    /// How many pieces there are.
    pub fn pieces(&self) -> u64 {
        self.len.div_ceil(u64::from(self.piece_len).max(1))
    }

    /// The bytes of the shard that are a piece; empty for pieces that do not exist.
    pub fn bytes_of(&self, piece: u64) -> Range<u64> {
        let start = piece.saturating_mul(self.piece_len.into()).min(self.len);
        start..start.saturating_add(self.piece_len.into()).min(self.len)
    }

    /// The most bytes of sources that are kept at a time.
    pub fn memory(&self) -> u64 {
        // 2^10 pieces of less than 2^32 bytes from less than 2^8 sources.
        u64::from(self.window) * u64::from(self.needed) * u64::from(self.piece_len)
    }

    /// Nothing, if the plan can be followed.
    pub(super) fn check(&self) -> Result<(), PlanError> {
        let mut places = self.sources.clone();
        places.sort_unstable();
        places.dedup();
        match () {
            () if self.piece_len == 0 => Err(PlanError::NoPieceLength),
            () if self.needed == 0 => Err(PlanError::NothingNeeded),
            () if !(1..=MOST_WINDOW).contains(&self.window) => Err(PlanError::Window),
            () if self.patience.tries == 0 => Err(PlanError::NoTries),
            () if places.len() != self.sources.len() || places.len() > MOST_SHARDS => {
                Err(PlanError::Repeated)
            }
            () if self.resume_from > self.pieces() => Err(PlanError::Beyond),
            () => Ok(()),
        }
    }
}

/// Why a plan cannot be followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlanError {
    /// Pieces have no bytes.
    NoPieceLength,
    /// A shard of nothing.
    NothingNeeded,
    /// The window is 0 or above [`MOST_WINDOW`].
    Window,
    /// Nothing may be asked.
    NoTries,
    /// A source is named twice, or there are more than a stripe has.
    Repeated,
    /// More is written than there is.
    Beyond,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a shard cannot be made: ")?;
        match self {
            PlanError::NoPieceLength => f.write_str("the length of a piece is 0; give 1 byte or more"),
            PlanError::NothingNeeded => f.write_str("it needs no source; give 1 or more"),
            PlanError::Window => write!(f, "the window is out of range; give 1 to {MOST_WINDOW} pieces"),
            PlanError::NoTries => f.write_str("no question may be asked; allow 1 try or more"),
            PlanError::Repeated => f.write_str("a source is named twice; name each once"),
            PlanError::Beyond => f.write_str(
                "more pieces are said to be written than it has; look at the length of the file, or start from piece 0",
            ),
        }
    }
}

impl std::error::Error for PlanError {}
