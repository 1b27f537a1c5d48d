//! What the program's threads and the mover's share.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gpuos_memory::objects::{ObjectId, Objects, TicketId};

use crate::bell::Bell;
use crate::disk::{Disk, Home};
use crate::folder::Saved;
use crate::near::{Mark, Near};
use crate::pages::Pages;

/// A stream that a ticket's extents are used on; `None`: none.
pub(crate) type Stream = Option<u64>;

/// What saves that succeeded have done so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Saves {
    /// How many there were.
    pub times: u64,
    /// Bytes that were written to files.
    pub bytes: u64,
    /// Of these, bytes that were read from GPU memory.
    pub near: u64,
    /// Bytes that files share with those of the save before, as nobody had written them since.
    pub shared: u64,
}

impl Saves {
    pub(crate) fn add(&mut self, more: Saves) {
        self.times += more.times;
        self.bytes += more.bytes;
        self.near += more.near;
        self.shared += more.shared;
    }
}

/// Where an object is.
pub(crate) struct Place {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) home: Option<Arc<Home>>,
    pub(crate) name: Option<String>,
}

/// All that is decided under the lock.
pub(crate) struct State {
    pub(crate) objects: Objects,
    pub(crate) places: HashMap<ObjectId, Place>,
    /// Work that may still use an extent, by stream.
    pub(crate) marks: HashMap<u32, Vec<(u64, Arc<Mark>)>>,
    pub(crate) streams: HashMap<TicketId, Stream>,
    pub(crate) bell: Bell,
    pub(crate) saves: Saves,
    pub(crate) stop: bool,
    /// Why nothing moves any more.
    pub(crate) dead: Option<String>,
    /// What the driver, memory or the disk said last when something failed.
    pub(crate) trouble: Option<String>,
    /// Limits have changed, so memory may be given back.
    pub(crate) trim: bool,
}

/// What the program's threads and the mover's share.
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    pub(crate) changed: Condvar,
    pub(crate) near: Arc<dyn Near>,
    pub(crate) disk: Option<Disk>,
    /// Frames of host memory that were made.
    pub(crate) frames: Mutex<Vec<Option<Pages>>>,
    /// Memory for extents on their way to and from files.
    pub(crate) staging: Mutex<Vec<Pages>>,
    /// Files of the last save; who saves has them until it is done.
    pub(crate) saved: Mutex<HashMap<ObjectId, Saved>>,
    pub(crate) extent: u64,
    pub(crate) begun: Instant,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since the beginning.
    pub(crate) fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Something has changed: the bell rings, and who waits looks again.
    pub(crate) fn tell(&self, state: &mut State) {
        for event in state.objects.events() {
            state.bell.ring(event);
        }
        self.changed.notify_all();
    }

    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}
