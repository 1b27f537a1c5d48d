//! Extents that are looked at by a few threads beside the one that reads, and handed back in their order: are they zero, what
//! is their digest, and what becomes of them.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope, available_parallelism};

use crate::coding::{Coder, Given, Lane, Looked};

/// Threads at most: each makes digests of some 3 to 6 GB/s, more than most disks take.
pub(crate) const MOST: usize = 4;

/// Extents that are on their way at once, at most.
pub(crate) const MOST_WAITING: usize = 2 * MOST;

/// Shorter extents are not worth the way to a thread.
const LONG: usize = 128 << 10;

/// A thread: what it is given, and what it gives back.
struct Thread {
    to: Sender<Given>,
    from: Receiver<Looked>,
}

enum Turn {
    Thread(usize),
    Done(Looked),
}

/// All threads, and whose turn it is.
pub(crate) struct Digests<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    coder: Coder<'env>,
    /// For what no thread gets.
    own: Lane<'env>,
    most: usize,
    threads: Vec<Thread>,
    next: usize,
    turns: VecDeque<Turn>,
}

impl<'scope, 'env> Digests<'scope, 'env> {
    /// As many threads as there are processors for this process, four at most. They begin when they are needed.
    pub(crate) fn new(scope: &'scope Scope<'scope, 'env>, coder: Coder<'env>) -> Self {
        Digests {
            scope,
            coder,
            own: Lane::new(coder),
            most: available_parallelism().map_or(1, |all| all.get().min(MOST)),
            threads: Vec::new(),
            next: 0,
            turns: VecDeque::new(),
        }
    }

    /// Extents that are worth being on their way at once.
    pub(crate) fn depth(&self) -> usize {
        2 * self.most
    }

    /// Has an extent looked at.
    pub(crate) fn give(&mut self, given: Given) -> io::Result<()> {
        if given.length < LONG {
            self.turns.push_back(Turn::Done(self.own.look(given)));
            return Ok(());
        }
        if self.threads.len() < self.most {
            self.next = self.threads.len();
            match self.thread() {
                Ok(thread) => self.threads.push(thread),
                // It goes with those that there are.
                Err(_) => self.most = self.threads.len(),
            }
        }
        let Some(thread) = self.threads.get(self.next % self.threads.len().max(1)) else {
            self.turns.push_back(Turn::Done(self.own.look(given)));
            return Ok(());
        };
        thread.to.send(given).map_err(|_| ended())?;
        let which = self.next % self.threads.len();
        self.turns.push_back(Turn::Thread(which));
        self.next = which + 1;
        Ok(())
    }

    fn thread(&self) -> io::Result<Thread> {
        let (to, given) = channel::<Given>();
        let (back, from) = channel();
        let mut lane = Lane::new(self.coder);
        let thread = Builder::new().name("digest".into());
        thread.spawn_scoped(self.scope, move || {
            for extent in given {
                if back.send(lane.look(extent)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Thread { to, from })
    }

    /// The oldest that was given and not taken; waits for it. `None`: there is none.
    pub(crate) fn take(&mut self) -> io::Result<Option<Looked>> {
        match self.turns.pop_front() {
            None => Ok(None),
            Some(Turn::Done(done)) => Ok(Some(done)),
            Some(Turn::Thread(thread)) => {
                let from = &self.threads[thread].from;
                from.recv().map(Some).map_err(|_| ended())
            }
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("a thread that makes digests ended")
}
