//! munge: credentials that say who made them, for messages between the nodes of a cluster.
//!
//! [`Munge`] is `libmunge.so.2` on this node's munged, opened at run time; [`Twin`] a stand-in in memory. Both
//! may wait as long as munged does not answer: they are called in threads of their own.

mod error;
mod raw;
mod twin;

use std::path::Path;

pub use error::Error;
pub use raw::Munge;
pub use twin::Twin;

/// The name that the loader searches.
pub const LIBRARY: &str = "libmunge.so.2";

/// The longest payload, in bytes. A message of one datagram needs less.
pub const MAX_PAYLOAD: usize = 1024;

/// The longest credential that is looked at, in bytes: that of [`MAX_PAYLOAD`] in munge's own text form has
/// less than twice the length, and 200 bytes around it.
pub const MAX_CREDENTIAL: usize = 2 * MAX_PAYLOAD + 256;

/// What a credential said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The message.
    pub payload: Vec<u8>,
    /// User that made the credential, by the word of that node's kernel.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
}

/// Makes credentials, and reads those of others.
pub trait Credentials: Send + Sync {
    /// A credential around `payload` that only this process's user can read, once on each node.
    ///
    /// # Errors
    /// The payload is longer than [`MAX_PAYLOAD`], or munged does not make one.
    fn seal(&self, payload: &[u8]) -> Result<String, Error>;

    /// What a credential says.
    ///
    /// # Errors
    /// It is none, was seen before, is too old or for somebody else, or munged does not answer.
    fn open(&self, credential: &[u8]) -> Result<Opened, Error>;
}

/// Whether bytes could be a credential at all: what is not, need not cost munged anything.
pub fn may_be_credential(bytes: &[u8]) -> bool {
    let text = |byte: &u8| byte.is_ascii_alphanumeric() || b":+/=".contains(byte);
    (8..=MAX_CREDENTIAL).contains(&bytes.len())
        && bytes.starts_with(b"MUNGE:")
        && bytes.ends_with(b":")
        && bytes.iter().all(text)
}

/// The socket that Slurm uses, of the value of `AuthInfo` in slurm.conf; `None`: munge's own.
pub fn socket_of(auth_info: &str) -> Option<&Path> {
    let mut words = auth_info.rsplit(',').map(str::trim);
    let path = words.find_map(|word| word.strip_prefix("socket="));
    path.map(Path::new)
}

#[cfg(test)]
mod tests;
