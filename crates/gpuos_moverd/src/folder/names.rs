//! Names and lines of the protocol.

use gpuos_model::screen::is_control;

/// A rank that has joined: the file `R.S.NONCE`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Join {
    /// Its place in the program, from 0.
    pub rank: u16,
    /// Ranks of the program.
    pub size: u16,
    /// Another one at each start of the program.
    pub nonce: u64,
}

/// Digits of a nonce at most, so that it fits 64 bits.
const NONCE_DIGITS: usize = 19;

/// Bytes of a sentence for the program at most.
const MOST: usize = 500;

impl Join {
    /// Reads the name of a file. `None`: it is no join.
    pub(super) fn read(name: &[u8]) -> Option<Join> {
        let mut parts = name.split(|byte| *byte == b'.');
        let mut next = |digits| number(parts.next()?, digits);
        let (rank, size, nonce) = (next(5)?, next(5)?, next(NONCE_DIGITS)?);
        let (rank, size) = (u16::try_from(rank).ok()?, u16::try_from(size).ok()?);
        (parts.next().is_none() && rank < size).then_some(Join { rank, size, nonce })
    }

    /// Its file beneath `ranks`.
    pub(super) fn name(&self) -> String {
        format!("{}.{}.{}", self.rank, self.size, self.nonce)
    }

    /// The file with the answer.
    pub(super) fn start(&self) -> String {
        format!("start.{}.{}", self.rank, self.nonce)
    }

    /// The folder with what was restored.
    pub(super) fn restored(&self) -> String {
        format!("restore.{}.{}", self.rank, self.nonce)
    }
}

fn number(text: &[u8], digits: usize) -> Option<u64> {
    let plain = (1..=digits).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    let padded = text.len() > 1 && text.starts_with(b"0");
    let text = std::str::from_utf8(text).ok()?;
    (plain && !padded).then(|| text.parse().ok())?
}

/// A sentence as one line: short enough, and without characters that do something to a screen.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for c in text.chars() {
        let c = if is_control(c) { ' ' } else { c };
        if line.len() + c.len_utf8() > MOST {
            break;
        }
        line.push(c);
    }
    line
}
