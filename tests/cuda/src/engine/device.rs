//! A device: what it is, its memory, and how fast bytes go.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvidia_ml::model::Board;

use crate::engine::context::Context;
use crate::memory::Memory;

/// One device of the process.
pub(crate) struct Device {
    /// Its index in the process, and its number on the node.
    pub(crate) index: usize,
    pub(crate) number: usize,
    pub(crate) board: &'static Board,
    pub(crate) uuid: [u8; 16],
    /// PCI bus number.
    pub(crate) bus: u8,
    pub(crate) memory: Arc<Memory>,
    pub(crate) rates: Rates,
    pub(crate) primary: Mutex<Primary>,
    /// Handle of its default memory pool, and of the current one.
    pub(crate) pools: Mutex<[u64; 2]>,
}

/// The primary context of a device.
#[derive(Default)]
pub(crate) struct Primary {
    pub(crate) context: Option<Arc<Context>>,
    pub(crate) holders: u32,
    pub(crate) flags: u32,
}

/// How fast memory and link of a device are.
pub(crate) struct Rates {
    memory: Rate,
    to_device: Rate,
    from_device: Rate,
}

/// Bytes that work has moved, and where.
#[derive(Clone, Copy, Default)]
pub(crate) struct Moved {
    /// In device memory.
    pub(crate) memory: u64,
    /// From the host to the device.
    pub(crate) to_device: u64,
    /// From the device to the host.
    pub(crate) from_device: u64,
}

impl Rates {
    /// Rates in bytes per second; 0 for no simulated time.
    pub(crate) fn new(memory: u64, link: u64) -> Rates {
        Rates {
            memory: Rate::new(memory),
            to_device: Rate::new(link),
            from_device: Rate::new(link),
        }
    }

    /// Waits until so many bytes have gone, together with what all other work moves.
    pub(crate) fn spend(&self, moved: Moved) {
        let now = Instant::now();
        let end = self
            .memory
            .book(now, moved.memory)
            .max(self.to_device.book(now, moved.to_device))
            .max(self.from_device.book(now, moved.from_device));
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
    }
}

/// Something through which bytes go one after another.
struct Rate {
    per_second: u64,
    free_at: Mutex<Instant>,
}

impl Rate {
    fn new(per_second: u64) -> Rate {
        Rate {
            per_second,
            free_at: Mutex::new(Instant::now()),
        }
    }

    /// When the bytes will have gone.
    fn book(&self, now: Instant, bytes: u64) -> Instant {
        if self.per_second == 0 || bytes == 0 {
            return now;
        }
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let time = Duration::from_secs_f64(bytes as f64 / self.per_second as f64);
        *free_at = (*free_at).max(now) + time;
        *free_at
    }
}
