//! Digests of extents, made by a few threads beside the one that reads, and handed back in their order.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope, available_parallelism};

use gpuos_checkpoint::ids::Digest;

use crate::buffer::Buffer;
use crate::key::JobKeys;

/// Threads at most: each makes some 3 to 6 GB/s, more than most disks take.
const MOST: usize = 4;

/// Extents that are on their way at once, at most.
pub(crate) const MOST_WAITING: usize = 2 * MOST;

/// Shorter extents are not worth the way to a thread.
const LONG: usize = 128 << 10;

/// Bytes that were looked at: an extent of the first `length` of a buffer.
pub(crate) struct Looked {
    pub(crate) buffer: Buffer,
    pub(crate) length: usize,
    /// `None`: they are all zero.
    pub(crate) digest: Option<Digest>,
}

/// A thread, with what it is given and what it gives back.
struct Lane {
    to: Sender<(Buffer, usize)>,
    from: Receiver<Looked>,
}

enum Turn {
    Lane(usize),
    Done(Looked),
}

/// All threads, and whose turn it is.
pub(crate) struct Digests<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    keys: &'env JobKeys,
    most: usize,
    lanes: Vec<Lane>,
    next: usize,
    turns: VecDeque<Turn>,
}

impl<'scope, 'env> Digests<'scope, 'env> {
    /// As many threads as there are processors for this process, four at most. They begin when they are needed.
    pub(crate) fn new(scope: &'scope Scope<'scope, 'env>, keys: &'env JobKeys) -> Self {
        Digests {
            scope,
            keys,
            most: available_parallelism().map_or(1, |all| all.get().min(MOST)),
            lanes: Vec::new(),
            next: 0,
            turns: VecDeque::new(),
        }
    }

    /// Extents that are worth being on their way at once.
    pub(crate) fn depth(&self) -> usize {
        2 * self.most
    }

    /// Has an extent looked at.
    pub(crate) fn give(&mut self, buffer: Buffer, length: usize) -> io::Result<()> {
        if length < LONG {
            let done = look(self.keys, buffer, length);
            self.turns.push_back(Turn::Done(done));
            return Ok(());
        }
        if self.lanes.len() < self.most {
            self.next = self.lanes.len();
            match self.lane() {
                Ok(lane) => self.lanes.push(lane),
                // It goes with those that there are.
                Err(_) => self.most = self.lanes.len(),
            }
        }
        let Some(lane) = self.lanes.get(self.next % self.lanes.len().max(1)) else {
            let done = look(self.keys, buffer, length);
            self.turns.push_back(Turn::Done(done));
            return Ok(());
        };
        lane.to.send((buffer, length)).map_err(|_| ended())?;
        let which = self.next % self.lanes.len();
        self.turns.push_back(Turn::Lane(which));
        self.next = which + 1;
        Ok(())
    }

    fn lane(&self) -> io::Result<Lane> {
        let (to, given) = channel::<(Buffer, usize)>();
        let (back, from) = channel();
        let keys = self.keys;
        let thread = Builder::new().name("digest".into());
        thread.spawn_scoped(self.scope, move || {
            for (buffer, length) in given {
                if back.send(look(keys, buffer, length)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Lane { to, from })
    }

    /// The oldest that was given and not taken; waits for it. `None`: there is none.
    pub(crate) fn take(&mut self) -> io::Result<Option<Looked>> {
        match self.turns.pop_front() {
            None => Ok(None),
            Some(Turn::Done(done)) => Ok(Some(done)),
            Some(Turn::Lane(lane)) => self.lanes[lane].from.recv().map(Some).map_err(|_| ended()),
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("a thread that makes digests ended")
}

fn look(keys: &JobKeys, buffer: Buffer, length: usize) -> Looked {
    let bytes = &buffer.as_slice()[..length];
    let zero = bytes.iter().all(|byte| *byte == 0);
    let digest = (!zero).then(|| keys.extent(bytes));
    Looked {
        buffer,
        length,
        digest,
    }
}
