//! Events.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use crate::engine::stream::Stream;

/// An event.
pub(crate) struct Event {
    /// 2 for one without times.
    pub(crate) flags: u32,
    state: Mutex<State>,
}

/// What an event marks.
#[derive(Clone, Default)]
pub(crate) enum State {
    /// Nothing yet: it counts as reached.
    #[default]
    Fresh,
    /// Work of a stream.
    Recorded(Record),
    /// Nodes of a graph that is captured, by its handle.
    Captured(u64, Vec<u64>),
}

/// A place in a stream's work.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) stream: Arc<Stream>,
    pub(crate) ticket: u64,
    pub(crate) time: Arc<OnceLock<Instant>>,
}

impl Event {
    pub(crate) fn new(flags: u32) -> Event {
        Event {
            flags,
            state: Mutex::new(State::Fresh),
        }
    }

    /// What it marks at this moment: a later record does not change who waits already.
    pub(crate) fn state(&self) -> State {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn mark(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}
