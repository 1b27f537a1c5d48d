//! Names and lines of the protocol.

use gpuos_model::screen::is_control;
use gpuos_mover::program::{Join, Told};

/// Digits of a nonce at most, so that it fits 64 bits.
const NONCE_DIGITS: usize = 19;

/// Bytes of a sentence for the program at most.
const MOST: usize = 1100;

/// Reads the name of a file of a rank that has joined, `R.S.NONCE`. `None`: it is no join.
pub fn read_join(name: &[u8]) -> Option<Join> {
    let mut parts = name.split(|byte| *byte == b'.');
    let mut next = |digits| number(parts.next()?, digits);
    let (rank, size, nonce) = (next(5)?, next(5)?, next(NONCE_DIGITS)?);
    let (rank, size) = (u16::try_from(rank).ok()?, u16::try_from(size).ok()?);
    (parts.next().is_none() && rank < size).then_some(Join { rank, size, nonce })
}

/// The file of a join beneath `ranks`.
pub(super) fn join_name(join: &Join) -> String {
    format!("{}.{}.{}", join.rank, join.size, join.nonce)
}

/// The file beside it by which the rank says that it cannot load what it was given.
pub(super) fn refused_name(rank: u16, nonce: u64) -> String {
    format!("refused.{rank}.{nonce}")
}

/// The file beside it by which the rank asks for a checkpoint.
pub(super) fn ask_name(rank: u16) -> String {
    format!("ask.{rank}")
}

/// The rank that asks by a file of this name.
pub(super) fn read_ask(name: &[u8]) -> Option<u16> {
    u16::try_from(number(name.strip_prefix(b"ask.")?, 5)?).ok()
}

/// The files, one of them made before the join, by which the rank says that it can begin from the files of any number of ranks, or needs those
/// of all of them in any case.
pub(super) fn any_names(rank: u16, nonce: u64) -> [String; 2] {
    [format!("any.{rank}.{nonce}"), format!("all.{rank}.{nonce}")]
}

/// Rank and nonce of such a file, and whether it is the second.
pub(super) fn read_any(name: &[u8]) -> Option<((u16, u64), bool)> {
    let (word, rest) = std::str::from_utf8(name).ok()?.split_once('.')?;
    let all = match word {
        "any" => false,
        "all" => true,
        _ => return None,
    };
    Some((rank_and_nonce(rest)?, all))
}

/// The file with the answer to a join.
pub(super) fn start_name(join: &Join) -> String {
    start_file(join.rank, join.nonce)
}

/// The same where the number of ranks is not known.
pub(super) fn start_file(rank: u16, nonce: u64) -> String {
    format!("start.{rank}.{nonce}")
}

/// Rank and nonce of a file with an answer.
pub(super) fn read_start(name: &str) -> Option<(u16, u64)> {
    rank_and_nonce(name.strip_prefix("start.")?)
}

/// Rank and nonce of a folder with what was restored.
pub(super) fn read_restored(name: &str) -> Option<(u16, u64)> {
    rank_and_nonce(name.strip_prefix("restore.")?)
}

fn rank_and_nonce(text: &str) -> Option<(u16, u64)> {
    let (rank, nonce) = text.split_once('.')?;
    let rank = u16::try_from(number(rank.as_bytes(), 5)?).ok()?;
    Some((rank, number(nonce.as_bytes(), NONCE_DIGITS)?))
}

/// What the line of an answer tells.
pub(super) fn told(line: &str) -> Told {
    // Behind the number can stand of how many ranks it is.
    let restored = line.strip_prefix("restore ");
    let restored = restored.and_then(|text| text.split(' ').next());
    let restored = restored.and_then(|text| number(text.as_bytes(), 10));
    match restored.and_then(|number| u32::try_from(number).ok()) {
        Some(number) => Told::Restore(number),
        None if line == "new" => Told::New,
        None => Told::Failed,
    }
}

/// The folder with what was restored for a join.
pub fn restored_name(join: &Join) -> String {
    format!("restore.{}.{}", join.rank, join.nonce)
}

/// The folder with the files of all ranks of a checkpoint, and what it is called until it is complete.
pub(super) fn all_names(number: u32) -> [String; 2] {
    [
        format!("restored.{number}"),
        format!("restore.all.{number}"),
    ]
}

/// The checkpoint whose folder that is, complete.
pub(super) fn read_all(name: &str) -> Option<u32> {
    let text = name.strip_prefix("restored.")?;
    u32::try_from(number(text.as_bytes(), 10)?).ok()
}

/// A decimal number without leading zeros, of so many digits at most.
pub(super) fn number(text: &[u8], digits: usize) -> Option<u64> {
    let plain = (1..=digits).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    let padded = text.len() > 1 && text.starts_with(b"0");
    let text = std::str::from_utf8(text).ok()?;
    (plain && !padded).then(|| text.parse().ok())?
}

/// A sentence as one line: short enough, and without characters that do something to a screen.
pub(super) fn one_line(text: &str) -> String {
    cut_line(text, MOST)
}

/// The same of so many bytes at most.
pub(super) fn cut_line(text: &str, most: usize) -> String {
    let mut line = String::new();
    for c in text.chars() {
        let c = if is_control(c) { ' ' } else { c };
        if line.len() + c.len_utf8() > most {
            break;
        }
        line.push(c);
    }
    line
}
