//! Threads that move pieces between rings and segments. They are few, so that the disk has enough to do and no more memory is taken than a
//! buffer for each; who comes on top waits, and a process has as many pieces under way as its ring has slots. Users have the threads in turn,
//! however many pieces each has waiting.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use gpuos_link::tcp::Pace;
use gpuos_memory::stow::{Digest, FromProgram, PIECE, ToProgram};
use gpuos_store::buffer::Buffer;

use super::ring::Ring;
use super::segment::{Owner, Segment};

/// As many writes at a time keep an NVMe disk busy.
const THREADS: usize = 4;

/// A piece that is to be moved.
pub struct Work {
    /// Whose.
    pub owner: Owner,
    /// Its user.
    pub uid: u32,
    /// What was said of it: put or get.
    pub said: FromProgram,
    /// Where it is handed over.
    pub ring: Arc<Ring>,
    /// Where it lies.
    pub segment: Arc<Segment>,
    /// Hears how it went.
    pub answer: Box<dyn FnOnce(u32, ToProgram) + Send>,
}

/// What waits for a thread, by user.
struct Waiting<T> {
    by_user: BTreeMap<u32, VecDeque<T>>,
    /// Who had a thread last.
    last: u32,
}

impl<T> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting {
            by_user: BTreeMap::new(),
            last: 0,
        }
    }
}

impl<T> Waiting<T> {
    fn push(&mut self, uid: u32, work: T) {
        self.by_user.entry(uid).or_default().push_back(work);
    }

    /// The next one of the user after the last one.
    fn pop(&mut self) -> Option<T> {
        let after = self.last.checked_add(1);
        let next = after.and_then(|after| self.by_user.range(after..).next());
        let uid = *next.or_else(|| self.by_user.iter().next())?.0;
        let own = self.by_user.get_mut(&uid)?;
        let work = own.pop_front();
        if own.is_empty() {
            self.by_user.remove(&uid);
        }
        self.last = uid;
        work
    }
}

/// The threads.
pub struct Pool(Arc<Queue>);

type Queue = (Mutex<Waiting<Work>>, Condvar);

impl Pool {
    /// Starts them.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn start(pace: Option<Pace>) -> io::Result<Pool> {
        let (queue, pace) = (Arc::<Queue>::default(), Arc::new(pace));
        for _ in 0..THREADS {
            let (queue, pace) = (Arc::clone(&queue), Arc::clone(&pace));
            let builder = thread::Builder::new().name("park-disk".into());
            builder.spawn(move || run(&queue, pace.as_ref().as_ref()))?;
        }
        Ok(Pool(queue))
    }

    /// Gives them something to do. What waits is bounded by places and rings.
    pub fn give(&self, work: Work) {
        let (waiting, changed) = &*self.0;
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(work.uid, work);
        changed.notify_one();
    }
}

fn next((waiting, changed): &Queue) -> Work {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match waiting.pop() {
            Some(work) => return work,
            None => {
                waiting = changed
                    .wait(waiting)
                    .unwrap_or_else(PoisonError::into_inner)
            }
        }
    }
}

fn run(queue: &Queue, pace: Option<&Pace>) {
    let mut buffer = Buffer::new(PIECE as usize);
    loop {
        let work = next(queue);
        let (slot, answer) = piece(&work, &mut buffer, pace);
        (work.answer)(slot, answer);
    }
}

fn piece(work: &Work, buffer: &mut Buffer, pace: Option<&Pace>) -> (u32, ToProgram) {
    let wait = |bytes: u64| {
        if let Some(pace) = pace {
            thread::sleep(pace.take(usize::try_from(bytes).unwrap_or(usize::MAX)));
        }
    };
    let failed = |slot, what: &str, error: &io::Error| {
        let why = format!("{what}: {error}");
        tracing::warn!(pid = work.owner.pid, "parked memory: {why}");
        ToProgram::Failed { slot, why }
    };
    match work.said {
        FromProgram::Put { slot, at, bytes } => {
            let into = &mut buffer.bytes()[..bytes as usize];
            if let Err(error) = work.ring.read(slot, into) {
                return (slot, failed(slot, "the ring cannot be read", &error));
            }
            let digest = digest(work.owner, at, into);
            wait(bytes);
            match work.segment.write(into, at) {
                Ok(()) => (slot, ToProgram::Done { slot, digest }),
                Err(error) => (slot, failed(slot, "NVMe does not take it", &error)),
            }
        }
        FromProgram::Get {
            slot,
            at,
            bytes,
            digest: wanted,
        } => {
            let into = &mut buffer.bytes()[..bytes as usize];
            wait(bytes);
            if let Err(error) = work.segment.read(into, at) {
                return (slot, failed(slot, "NVMe does not give it back", &error));
            }
            let digest = digest(work.owner, at, into);
            if digest != wanted {
                let why = format!("{bytes} bytes at {at} are not what was written there");
                tracing::error!(pid = work.owner.pid, "parked memory: {why}");
                return (slot, ToProgram::Failed { slot, why });
            }
            match work.ring.write(slot, into) {
                Ok(()) => (slot, ToProgram::Done { slot, digest }),
                Err(error) => (slot, failed(slot, "the ring cannot be written", &error)),
            }
        }
        // Nothing else comes here; it moves nothing.
        FromProgram::Hello { .. } | FromProgram::Drop => (0, ToProgram::Dropped),
    }
}

/// Of bytes at their place in a process's segment: those of another place or process are not taken for them.
pub fn digest(owner: Owner, at: u64, bytes: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&owner.pid.to_le_bytes());
    hasher.update(&owner.started.to_le_bytes());
    hasher.update(&at.to_le_bytes());
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
    Digest(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_with_many_pieces_keeps_nobody_waiting_for_all_of_them() {
        let mut waiting = Waiting::default();
        (0..100).for_each(|at| waiting.push(1000, (1000, at)));
        assert_eq!(waiting.pop(), Some((1000, 0)));
        waiting.push(1001, (1001, 0));
        waiting.push(1001, (1001, 1));
        waiting.push(u32::MAX, (u32::MAX, 0));
        let next: Vec<_> = (0..6).map_while(|_| waiting.pop()).collect();
        let wanted = [
            (1001, 0),
            (u32::MAX, 0),
            (1000, 1),
            (1001, 1),
            (1000, 2),
            (1000, 3),
        ];
        assert_eq!(next, wanted);
        while waiting.pop().is_some() {}
        assert!(waiting.by_user.is_empty());
    }
}
