//! What both halves of a link and its writing thread share: the socket, the queue, and why it ended.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::Error;
use super::options::{Options, after};

/// A body that was not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unsent {
    /// The queue is full: send this body later, or wait for room with [`Sender::send`](super::Sender::send).
    Full(Vec<u8>),
    /// The body is longer than this limit in bytes, and is never sent.
    TooLong(usize),
    /// The link has ended.
    Ended(Error),
}

/// What the writing thread has to do next.
pub(super) enum Next {
    Send(Vec<u8>),
    /// Nothing is queued: let the other side hear something.
    Alive,
    /// All is sent, and nothing more comes.
    Close,
    Ended,
}

pub(super) struct Shared {
    pub stream: TcpStream,
    state: Mutex<State>,
    changed: Condvar,
    most: usize,
    most_bytes: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    closing: bool,
    /// The last frame is written.
    closed: bool,
    ended: Option<Error>,
}

impl Shared {
    pub fn new(stream: TcpStream, options: &Options) -> Shared {
        Shared {
            stream,
            state: Mutex::default(),
            changed: Condvar::new(),
            most: options.queue.max(1),
            most_bytes: options.queue_bytes,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, at most until `deadline`; false: it has passed.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        deadline: Instant,
    ) -> (MutexGuard<'a, State>, bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (state, false);
        }
        let waited = self.changed.wait_timeout(state, left);
        (waited.unwrap_or_else(PoisonError::into_inner).0, true)
    }

    /// Ends the link at once, for both halves. The first reason stays, and is returned.
    pub fn end(&self, error: Error) -> Error {
        let mut state = self.state();
        let first = state.ended.get_or_insert(error).clone();
        state.waiting = VecDeque::new();
        state.bytes = 0;
        self.changed.notify_all();
        drop(state);
        // It may be ended already. Whoever waits in a read or a write goes on.
        let _ = self.stream.shutdown(Shutdown::Both);
        first
    }

    /// Queues a body, and waits for room until `deadline` at most.
    pub fn push(&self, body: Vec<u8>, deadline: Option<Instant>) -> Result<(), Unsent> {
        let mut state = self.state();
        loop {
            if let Some(error) = &state.ended {
                return Err(Unsent::Ended(error.clone()));
            }
            let bytes = state.bytes.saturating_add(body.len());
            let room = state.waiting.len() < self.most && bytes <= self.most_bytes;
            if room || state.waiting.is_empty() {
                state.bytes = bytes;
                state.waiting.push_back(body);
                self.changed.notify_all();
                return Ok(());
            }
            let Some(deadline) = deadline else {
                return Err(Unsent::Full(body));
            };
            let (next, in_time) = self.wait(state, deadline);
            if !in_time {
                return Err(Unsent::Full(body));
            }
            state = next;
        }
    }

    /// The next thing to be written; waits for it so long.
    pub fn next(&self, patience: Duration) -> Next {
        let deadline = after(patience);
        let mut state = self.state();
        loop {
            if state.ended.is_some() {
                return Next::Ended;
            }
            if let Some(body) = state.waiting.pop_front() {
                state.bytes = state.bytes.saturating_sub(body.len());
                self.changed.notify_all();
                return Next::Send(body);
            }
            if state.closing {
                return Next::Close;
            }
            let (next, in_time) = self.wait(state, deadline);
            if !in_time {
                return Next::Alive;
            }
            state = next;
        }
    }

    /// Waits so long, or until the link ends, which is an error.
    pub fn pause(&self, long: Duration) -> Result<(), Error> {
        let deadline = after(long);
        let mut state = self.state();
        loop {
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            let (next, in_time) = self.wait(state, deadline);
            if !in_time {
                return Ok(());
            }
            state = next;
        }
    }

    /// The last frame is written.
    pub fn closed(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Bodies that wait, and their bytes.
    pub fn queued(&self) -> (usize, usize) {
        let state = self.state();
        (state.waiting.len(), state.bytes)
    }

    /// Takes nothing more, and waits until all is written.
    pub fn close(&self, patience: Duration) -> Result<(), Error> {
        let deadline = after(patience);
        let mut state = self.state();
        state.closing = true;
        self.changed.notify_all();
        loop {
            if state.closed {
                return Ok(());
            }
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            let (next, in_time) = self.wait(state, deadline);
            state = next;
            if !in_time {
                drop(state);
                return Err(self.end(Error::CloseTime(patience)));
            }
        }
    }
}
