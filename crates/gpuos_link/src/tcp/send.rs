//! The sending half of a link, and the thread that writes.

use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::error::{Error, is_gone};
use super::options::{Options, after};
use super::queue::{Next, Shared, Unsent};
use crate::session::{Kind, Sealer};

/// Bytes that are written at a time: each has the whole time limit for itself, and the pace is kept in steps of it.
const PIECE: usize = 64 << 10;

/// The sending half. Several threads may use it. Dropping it without [`close`](Sender::close) ends the link at once.
pub struct Sender {
    shared: Arc<Shared>,
    limit: usize,
    writer: Option<JoinHandle<()>>,
}

impl Sender {
    pub(super) fn start(
        shared: Arc<Shared>,
        sealer: Sealer,
        options: &Options,
    ) -> Result<Sender, Error> {
        let limit = sealer.limit();
        let mut writer = Writer {
            shared: shared.clone(),
            sealer,
            options: options.clone(),
        };
        let writer = thread::Builder::new()
            .name("link-out".into())
            .spawn(move || writer.run())
            .map_err(Error::io("start a thread that sends"))?;
        Ok(Sender {
            shared,
            limit,
            writer: Some(writer),
        })
    }

    /// Queues a message. Never waits.
    ///
    /// # Errors
    /// The queue is full, the message too long, or the link has ended.
    pub fn try_send(&self, body: Vec<u8>) -> Result<(), Unsent> {
        self.push(body, None)
    }

    /// Queues a message, and waits for room in the queue, but no longer than `patience`.
    ///
    /// # Errors
    /// The queue is still full, the message too long, or the link has ended.
    pub fn send(&self, body: Vec<u8>, patience: Duration) -> Result<(), Unsent> {
        self.push(body, Some(after(patience)))
    }

    fn push(&self, body: Vec<u8>, deadline: Option<Instant>) -> Result<(), Unsent> {
        match body.len() > self.limit {
            true => Err(Unsent::TooLong(self.limit)),
            false => self.shared.push(body, deadline),
        }
    }

    /// Messages that wait to be written, and the bytes of their bodies.
    pub fn queued(&self) -> (usize, usize) {
        self.shared.queued()
    }

    /// Sends what is queued and says that this was all, in `patience`. The other direction goes on, as long as the
    /// [`Receiver`](super::Receiver) is kept: to be sure that all has arrived, receive until the other side has closed, too.
    ///
    /// # Errors
    /// The link ended before, or the other side did not take it in time, which ends the link.
    pub fn close(self, patience: Duration) -> Result<(), Error> {
        self.shared.close(patience)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.shared.is_closed() {
            self.shared.end(Error::Dropped);
        }
        // Nothing keeps it: the socket is shut, or its work is done.
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

struct Writer {
    shared: Arc<Shared>,
    sealer: Sealer,
    options: Options,
}

impl Writer {
    fn run(&mut self) {
        loop {
            let done = match self.shared.next(self.options.silence / 3) {
                Next::Send(body) => self.put(Kind::Data, &body),
                Next::Alive => self.put(Kind::Alive, &[]),
                Next::Close => {
                    if let Err(error) = self.put(Kind::Close, &[]) {
                        self.shared.end(error);
                        return;
                    }
                    // The other side knows by the frame; this is for the network between.
                    let _ = self.shared.stream.shutdown(Shutdown::Write);
                    self.shared.closed();
                    return;
                }
                Next::Ended => return,
            };
            if let Err(error) = done {
                self.shared.end(error);
                return;
            }
        }
    }

    fn put(&mut self, kind: Kind, body: &[u8]) -> Result<(), Error> {
        let sealed = self.sealer.seal(kind, body)?;
        // A short frame is one packet; a long one is not copied for it.
        if body.len() <= PIECE {
            return self.write(&sealed.with(body));
        }
        self.write(&sealed.header)?;
        for piece in body.chunks(PIECE) {
            self.write(piece)?;
        }
        self.write(&sealed.mac)
    }

    fn write(&self, mut bytes: &[u8]) -> Result<(), Error> {
        if let Some(pace) = &self.options.pace {
            self.shared.pause(pace.take(bytes.len()))?;
        }
        while !bytes.is_empty() {
            match (&self.shared.stream).write(bytes) {
                Ok(0) => return Err(Error::Cut),
                Ok(written) => bytes = &bytes[written..],
                Err(e) => match e.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return Err(Error::Stuck(self.options.silence)),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => return Err(Error::Cut),
                    _ if is_gone(&e) => return Err(Error::Gone(self.options.unacknowledged)),
                    _ => return Err(Error::io("send to the other node")(e)),
                },
            }
        }
        Ok(())
    }
}
