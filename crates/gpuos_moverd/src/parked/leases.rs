//! How much a process may have on NVMe: gpuosd's word, which it has in its journal before the process hears of it.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::wire::{MemoryStatus, Reply, Request};
use gpuos_host::socket::{Bucket, Client, ClientError, Rate};

use super::segment::Owner;

/// Who knows it.
pub trait Leases: Send + Sync {
    /// Bytes that a process of a user may have; `None`: nobody knows of it. It is asked for after `came`, since it may have been promised a
    /// moment before that.
    fn limit(&self, owner: Owner, uid: u32, came: Instant) -> Option<u64>;
}

/// How long gpuosd may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Questions to gpuosd: one serves all that came before it was asked, so that a flood of processes that have nothing costs next to nothing.
const ASKS: Rate = Rate {
    each_second: 20.0,
    at_once: 20.0,
};

/// gpuosd of this node.
#[derive(Debug)]
pub struct Gpuosd {
    socket: PathBuf,
    known: Mutex<Known>,
}

/// What it said last.
#[derive(Debug)]
struct Known {
    asked: Option<Instant>,
    status: MemoryStatus,
    rate: Bucket,
}

impl Gpuosd {
    /// Asked at its socket.
    pub fn at(socket: PathBuf) -> Gpuosd {
        Gpuosd {
            socket,
            known: Mutex::new(Known {
                asked: None,
                status: MemoryStatus::default(),
                rate: Bucket::full(ASKS, Instant::now()),
            }),
        }
    }

    fn ask(&self) -> Result<MemoryStatus, ClientError> {
        let mut client = Client::connect(&self.socket, PATIENCE)?;
        match client.ask(&Request::Memory)? {
            Reply::Memory { memory } => Ok(*memory),
            _ => Err(ClientError::Refused("gpuosd gave another answer".into())),
        }
    }
}

impl Leases for Gpuosd {
    fn limit(&self, owner: Owner, uid: u32, came: Instant) -> Option<u64> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.asked.is_none_or(|asked| asked < came) {
            thread::sleep(known.rate.take_in_advance(Instant::now()));
            known.asked = Some(Instant::now());
            known.status = self.ask().unwrap_or_else(|error| {
                tracing::warn!("what may be parked is not known: {error}");
                MemoryStatus::default()
            });
        }
        let mut own = known
            .status
            .programs
            .iter()
            .filter(|one| (one.pid, one.started, one.uid) == (owner.pid, owner.started, uid));
        own.next().map(|one| one.nvme)
    }
}
