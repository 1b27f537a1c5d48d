//! Who vouches for a message: munge, behind a trait.

use std::fmt;

/// What a credential said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// User that made it, by the word of that node's kernel.
    pub uid: u32,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Why a credential was not made or not read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The service does not answer: the next try may go well.
    Absent(String),
    /// The credential, or what is to stand in it, is refused.
    Refused(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Absent(why) | Refusal::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Refusal {}

/// Makes credentials, and reads those of others. A call may wait for the service.
pub trait Credentials: Send + Sync {
    /// A credential around `payload` that only root, or in a lab the user of this process, can read.
    ///
    /// # Errors
    /// The service does not make one.
    fn seal(&self, payload: &[u8]) -> Result<Vec<u8>, Refusal>;

    /// What a credential says.
    ///
    /// # Errors
    /// It is none, is too old or for somebody else, or the service does not answer.
    fn open(&self, credential: &[u8]) -> Result<Opened, Refusal>;
}
