//! The receiving half of a link.

use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use super::error::{Error, is_gone};
use super::options::Options;
use super::queue::Shared;
use crate::session::{Kind, Opener};

/// Bytes that are read at a time.
const READ: usize = 64 << 10;

/// The receiving half. It reads only while it is asked. Dropping it before the other side has closed ends the link at once.
pub struct Receiver {
    shared: Arc<Shared>,
    opener: Opener,
    silence: Duration,
    unacknowledged: Duration,
    buffer: Vec<u8>,
    /// What of the buffer is still to be opened.
    start: usize,
    end: usize,
    closed: bool,
}

impl Receiver {
    /// `rest` is what came in behind the handshake.
    pub(super) fn new(
        shared: Arc<Shared>,
        opener: Opener,
        options: &Options,
        rest: &[u8],
    ) -> Receiver {
        let mut buffer = vec![0; READ.max(rest.len())];
        buffer[..rest.len()].copy_from_slice(rest);
        Receiver {
            shared,
            opener,
            silence: options.silence,
            unacknowledged: options.unacknowledged,
            buffer,
            start: 0,
            end: rest.len(),
            closed: false,
        }
    }

    /// Waits for the next message; `None`: the other side has closed in order, and all of it has come.
    ///
    /// # Errors
    /// The link has ended, or ends by this; the reason is the same at every later call, and for the other half.
    pub fn recv(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let received = self.next();
        received.map_err(|error| self.shared.end(error))
    }

    fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        while !self.closed {
            if self.start < self.end {
                let input = &self.buffer[self.start..self.end];
                let (used, frame) = self.opener.feed(input)?;
                self.start += used;
                match frame.map(|frame| (frame.kind, frame.body)) {
                    Some((Kind::Data, body)) => return Ok(Some(body)),
                    Some((Kind::Close, _)) => self.closed = true,
                    // The opener lets no second confirmation through.
                    Some((Kind::Alive | Kind::Confirm, _)) | None => {}
                }
                continue;
            }
            self.start = 0;
            self.end = match (&self.shared.stream).read(&mut self.buffer) {
                Ok(0) => return Err(Error::Cut),
                Ok(read) => read,
                Err(e) => match e.kind() {
                    ErrorKind::Interrupted => 0,
                    ErrorKind::WouldBlock => return Err(Error::Silent(self.silence)),
                    ErrorKind::ConnectionReset => return Err(Error::Cut),
                    _ if is_gone(&e) => return Err(Error::Gone(self.unacknowledged)),
                    _ => return Err(Error::io("receive from the other node")(e)),
                },
            };
        }
        Ok(None)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if !self.closed {
            self.shared.end(Error::Dropped);
        }
    }
}
