//! A node's health as bytes for a file: a line with the version and a checksum, then the state.

use std::fmt;

use super::state::{GpuHealth, NodeHealth};
use crate::gpuset::MAX_GPUS;

/// How the bytes begin, with the version of the form after it.
const HEAD: &str = "gpuos-health ";
/// The version that is written, and the only one that is read. Any change to what is kept makes it another.
pub const FORM: u32 = 1;
/// The longest first line.
const MOST_HEAD: usize = 64;

/// Why bytes are no state of a node. The caller keeps the state, or the file, that it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SavedError {
    /// They begin otherwise.
    Other,
    /// Another version of the form.
    Form(String),
    /// They are not what was written: cut off, or changed.
    Damaged,
}

/// A sentence: what is wrong and what to do.
impl fmt::Display for SavedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SavedError::Other => f.write_str(
                "it is no saved state of gpuosd; move it away, and gpuosd begins with sound GPUs",
            ),
            SavedError::Form(form) => write!(
                f,
                "it is a saved state in form {form}, and this gpuosd reads form {FORM}; start the gpuosd that \
                 wrote it, or move the file away"
            ),
            SavedError::Damaged => f.write_str(
                "the saved state is damaged: its checksum is wrong; take the one before it, or move it away",
            ),
        }
    }
}

impl std::error::Error for SavedError {}

impl NodeHealth {
    /// The state as bytes; [`NodeHealth::decode`] reads them.
    pub fn encode(&self) -> Vec<u8> {
        // Writing into memory cannot fail; were it to, the checksum of nothing is no state.
        let body = postcard::to_allocvec(self).unwrap_or_default();
        let mut bytes = format!("{HEAD}{FORM} {:016x}\n", checksum(&body)).into_bytes();
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Reads what [`NodeHealth::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are damaged, or from another version. Nothing of them is used then.
    pub fn decode(bytes: &[u8]) -> Result<NodeHealth, SavedError> {
        let rest = bytes
            .strip_prefix(HEAD.as_bytes())
            .ok_or(SavedError::Other)?;
        let end = rest.iter().take(MOST_HEAD).position(|b| *b == b'\n');
        let (line, body) = rest.split_at(end.ok_or(SavedError::Damaged)?);
        let line = std::str::from_utf8(line).map_err(|_| SavedError::Damaged)?;
        let (form, sum) = line.split_once(' ').ok_or(SavedError::Damaged)?;
        if form != FORM.to_string() {
            let digits = !form.is_empty() && form.bytes().all(|b| b.is_ascii_digit());
            return Err(match digits {
                true => SavedError::Form(form.into()),
                false => SavedError::Damaged,
            });
        }
        let body = body.get(1..).ok_or(SavedError::Damaged)?;
        if format!("{:016x}", checksum(body)) != sum {
            return Err(SavedError::Damaged);
        }
        let node: NodeHealth = postcard::from_bytes(body).map_err(|_| SavedError::Damaged)?;
        match node.gpus.len() <= MAX_GPUS {
            true => Ok(node),
            false => Err(SavedError::Damaged),
        }
    }

    /// Makes a state that was saved fit a node with so many GPUs: those that are new are sound, those that
    /// are gone are forgotten.
    pub fn fit(&mut self, gpus: u8) {
        let gpus = usize::from(gpus).min(MAX_GPUS);
        self.gpus.resize_with(gpus, GpuHealth::default);
        self.acts.retain(|act| usize::from(act.gpu) < gpus);
    }
}

/// FNV-1a of 64 bits (Fowler, Noll, Vo): finds what a disk does to bytes; it is no guard against forgers.
fn checksum(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
