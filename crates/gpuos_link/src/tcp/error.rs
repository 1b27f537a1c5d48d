//! Why there is no link, or no longer.

use std::fmt;
use std::time::Duration;

use crate::session::Fault;

/// What ended a link or prevented it. Each one is final: whoever still wants the link connects again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The protocol was not kept, or the other side is not trusted.
    Fault(Fault),
    /// A call of the system failed.
    Io {
        /// What was tried.
        tried: &'static str,
        /// The system's word.
        why: String,
    },
    /// No connection came about, for what the system says.
    Unreached(String),
    /// The handshake was not done in this time.
    Handshake(Duration),
    /// The other side ended the connection during the handshake.
    TurnedAway,
    /// Nothing came for so long.
    Silent(Duration),
    /// The other node's kernel acknowledged nothing for so long.
    Gone(Duration),
    /// The other side took nothing for so long.
    Stuck(Duration),
    /// The other side ended the connection without saying so first.
    Cut,
    /// What was queued was not sent in the time that the caller gave.
    CloseTime(Duration),
    /// This side ended it: a half of the link was dropped.
    Dropped,
    /// So many links wait for the caller that this one is too many.
    Waiting(usize),
}

impl Error {
    pub(super) fn io(tried: &'static str) -> impl Fn(std::io::Error) -> Error {
        move |error| Error::Io {
            tried,
            why: error.to_string(),
        }
    }
}

/// Whether the system ended a connection because the other node acknowledged nothing. A limit of this side's has another word for it.
pub(super) fn is_gone(error: &std::io::Error) -> bool {
    // What the last packet met on its way is told in place of the time that is up.
    use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(
        error.kind(),
        TimedOut | HostUnreachable | NetworkUnreachable
    )
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::Fault(fault)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Fault(fault) => fault.fmt(f),
            Error::Io { tried, why } => write!(
                f,
                "cannot {tried}: {why}; see whether gpuos_mover runs on the other node and whether a firewall is between"
            ),
            Error::Unreached(why) => write!(
                f,
                "cannot connect to the other node: {why}; see whether gpuos_mover runs there and whether a firewall is between"
            ),
            Error::Handshake(limit) => write!(
                f,
                "the handshake was not done in {limit:?}: see whether munged answers on both nodes"
            ),
            Error::TurnedAway => f.write_str(
                "the other side ended the connection during the handshake: the log of gpuos_mover on that node says why",
            ),
            Error::Silent(limit) => write!(
                f,
                "nothing came from the other node for {limit:?}: see whether the node and the network work, and connect again"
            ),
            Error::Gone(limit) => write!(
                f,
                "the other node acknowledged nothing for {limit:?}: see whether the node and the network work, and connect again"
            ),
            Error::Stuck(limit) => write!(
                f,
                "the other node took nothing for {limit:?}: see whether its disk and the network work, and connect again"
            ),
            Error::Cut => f.write_str(
                "the connection ended in the middle: gpuos_mover on the other node has ended or given it up; connect again",
            ),
            Error::CloseTime(limit) => write!(
                f,
                "what was to be sent was not taken in {limit:?}, and the connection was ended: send it again on a new one"
            ),
            Error::Dropped => {
                f.write_str("this side ended the connection: connect again to send or receive")
            }
            Error::Waiting(links) => write!(
                f,
                "{links} connections wait to be used already: see why gpuos_mover is slow to take them"
            ),
        }
    }
}

impl std::error::Error for Error {}
