//! A handshake on a socket, within its time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::error::Error;
use crate::session::{Credentials, Handshake, NONCE, Session};

/// Read at a time: a credential of munge has less than half of it.
const READ: usize = 2048;

/// What a handshake needs.
pub(super) struct Shake<'a> {
    pub stream: &'a TcpStream,
    pub credentials: &'a dyn Credentials,
    pub limit: Duration,
    /// When `limit` ends.
    pub deadline: Instant,
}

impl Shake<'_> {
    /// Carries a handshake through; `first` is sent before. Returns the session, and what has come in behind the handshake.
    /// `known` is called when root of a node of the cluster has spoken.
    pub fn run(
        &self,
        mut handshake: Handshake,
        first: &[u8],
        known: impl Fn(),
    ) -> Result<(Session, Vec<u8>), Error> {
        self.write(first)?;
        let mut buffer = [0; READ];
        loop {
            let left = self.left()?;
            let limit = self.stream.set_read_timeout(Some(left));
            limit.map_err(Error::io("set the time limit of a handshake"))?;
            let read = match (&*self.stream).read(&mut buffer) {
                Ok(0) => return Err(Error::TurnedAway),
                Ok(read) => read,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.failed("receive the handshake of the other node", e)),
            };
            let mut input = &buffer[..read];
            while !input.is_empty() {
                let taken = handshake.feed(input, self.credentials)?;
                input = &input[taken.used..];
                if handshake.is_known() {
                    known();
                }
                self.write(&taken.send)?;
                if let Some(refused) = taken.refused {
                    return Err(refused.into());
                }
                if let Some(session) = taken.session {
                    return Ok((session, input.to_vec()));
                }
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        let limit = self.stream.set_write_timeout(Some(self.left()?));
        limit.map_err(Error::io("set the time limit of a handshake"))?;
        let written = (&*self.stream).write_all(bytes);
        written.map_err(|e| self.failed("send the handshake to the other node", e))
    }

    fn left(&self) -> Result<Duration, Error> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(Error::Handshake(self.limit)),
            false => Ok(left),
        }
    }

    fn failed(&self, tried: &'static str, error: std::io::Error) -> Error {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Handshake(self.limit),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Error::TurnedAway,
            _ => Error::io(tried)(error),
        }
    }
}

/// Random bytes of the kernel.
pub(super) fn nonce() -> Result<[u8; NONCE], Error> {
    let mut nonce = [0; NONCE];
    let mut filled = 0;
    while filled < NONCE {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut nonce[filled..], flags) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::io("draw random bytes")(e.into())),
        }
    }
    Ok(nonce)
}
