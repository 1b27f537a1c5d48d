//! Lines to messages and back.
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest request in bytes, without its newline.
pub const MAX_REQUEST: usize = 16 << 10;
/// The longest reply in bytes, without its newline.
pub const MAX_REPLY: usize = 1 << 20;

/// What is wrong with a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WireError {
    /// It is longer than the limit, in bytes.
    TooLong(usize),
    /// It is no message: what the reader of JSON said.
    Malformed(String),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::TooLong(limit) => write!(f, "a line has more than {limit} bytes"),
            WireError::Malformed(why) => write!(f, "not a message: {why}"),
        }
    }
}

impl std::error::Error for WireError {}

/// A message as a line with its newline.
///
/// # Errors
/// It is longer than `limit`.
pub fn encode<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, WireError> {
    let mut line = serde_json::to_vec(message).map_err(|e| WireError::Malformed(e.to_string()))?;
    if line.len() > limit {
        return Err(WireError::TooLong(limit));
    }
    line.push(b'\n');
    Ok(line)
}

/// The message of a line, with or without its newline.
///
/// # Errors
/// It is longer than `limit`, or no message.
pub fn decode<T: DeserializeOwned>(line: &[u8], limit: usize) -> Result<T, WireError> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if line.len() > limit {
        return Err(WireError::TooLong(limit));
    }
    serde_json::from_slice(line).map_err(|e| WireError::Malformed(e.to_string()))
}

/// Bytes as they come, cut into lines. What it holds is bounded by the limit.
#[derive(Clone, Debug)]
pub struct Lines {
    held: Vec<u8>,
    limit: usize,
}

impl Lines {
    /// Lines of at most `limit` bytes without their newline.
    pub fn new(limit: usize) -> Lines {
        Lines {
            held: Vec::new(),
            limit,
        }
    }

    /// Takes bytes in.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next whole line, without its newline. `None`: more bytes are needed.
    ///
    /// # Errors
    /// A line is too long: nothing after it can be told apart, the connection has to end.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        match self.held.iter().position(|byte| *byte == b'\n') {
            Some(at) if at > self.limit => Err(WireError::TooLong(self.limit)),
            Some(at) => {
                let rest = self.held.split_off(at + 1);
                let mut line = std::mem::replace(&mut self.held, rest);
                line.pop();
                Ok(Some(line))
            }
            None if self.held.len() > self.limit => Err(WireError::TooLong(self.limit)),
            None => Ok(None),
        }
    }
}
