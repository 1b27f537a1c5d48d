//! Threads that move pieces between rings and segments. They are few, so that the disk has enough to do and no more memory is taken than a
//! buffer for each; who comes on top waits, and a process has as many pieces under way as its ring has slots.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use gpuos_link::tcp::Pace;
use gpuos_memory::stow::{Digest, FromProgram, MOST_SLOTS, PIECE, ToProgram};
use gpuos_store::buffer::Buffer;

use super::ring::Ring;
use super::segment::{Owner, Segment};
use super::serve::MOST;

/// As many writes at a time keep an NVMe disk busy.
const THREADS: usize = 4;

/// A piece that is to be moved.
pub struct Work {
    /// Whose.
    pub owner: Owner,
    /// What was said of it: put or get.
    pub said: FromProgram,
    /// Where it is handed over.
    pub ring: Arc<Ring>,
    /// Where it lies.
    pub segment: Arc<Segment>,
    /// Hears how it went.
    pub answer: Box<dyn FnOnce(u32, ToProgram) + Send>,
}

/// The threads.
pub struct Pool(SyncSender<Work>);

impl Pool {
    /// Starts them.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn start(pace: Option<Pace>) -> io::Result<Pool> {
        // Room for all that may be under way, so that nobody who gives work waits.
        let (to, from) = sync_channel(MOST * MOST_SLOTS as usize);
        let (from, pace) = (Arc::new(Mutex::new(from)), Arc::new(pace));
        for _ in 0..THREADS {
            let (from, pace) = (Arc::clone(&from), Arc::clone(&pace));
            let builder = thread::Builder::new().name("park-disk".into());
            builder.spawn(move || run(&from, pace.as_ref().as_ref()))?;
        }
        Ok(Pool(to))
    }

    /// Gives them something to do.
    pub fn give(&self, work: Work) {
        // They live as long as the process.
        let _ = self.0.send(work);
    }
}

fn run(from: &Mutex<Receiver<Work>>, pace: Option<&Pace>) {
    let mut buffer = Buffer::new(PIECE as usize);
    loop {
        let next = from.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(work) = next else { return };
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
