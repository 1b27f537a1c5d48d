//! How much memory each process uses on each device. With a state of the simulated NVML it is kept
//! there, so that processes share the devices and monitors see the same memory; else the process is
//! alone.

use std::sync::Mutex;
use std::sync::PoisonError;

use nvidia_ml::state::{NO_INSTANCE, Node, Process, Shared, process_start};

const MIB: u64 = 1 << 20;

/// Memory of the devices, by their number on the node.
pub(crate) struct Ledger {
    shared: Option<Shared>,
    /// Bytes that this process uses.
    own: Mutex<Vec<u64>>,
    start: u32,
}

impl Ledger {
    pub(crate) fn new(shared: Option<Shared>, devices: usize) -> Ledger {
        Ledger {
            shared,
            own: Mutex::new(vec![0; devices]),
            start: process_start(std::process::id()).unwrap_or(0),
        }
    }

    /// Takes bytes, whole MiB, of a device that has `capacity` of them in all; false when there are
    /// fewer left.
    pub(crate) fn take(&self, device: usize, bytes: u64, capacity: u64) -> bool {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let next = own[device] + bytes;
        let fits = match &self.shared {
            None => next <= capacity,
            Some(shared) => shared.update(|node| {
                let used = others(node, device) + next;
                used <= capacity && self.note(node, device, next)
            }),
        };
        if fits {
            own[device] = next;
        }
        fits
    }

    /// Gives bytes back.
    pub(crate) fn give(&self, device: usize, bytes: u64) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own[device] -= bytes;
        if let Some(shared) = &self.shared {
            shared.update(|node| self.note(node, device, own[device]));
        }
    }

    /// Shows that the process has nothing on the device for now. [`Ledger::take`] of no bytes shows it again, if it fits.
    pub(crate) fn hide(&self, device: usize) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = &self.shared
            && own[device] > 0
        {
            shared.update(|node| self.note(node, device, 0));
        }
    }

    /// Shows that the process has a context on the device, or that it has none any more.
    pub(crate) fn present(&self, device: usize, is: bool) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = &self.shared {
            shared.update(|node| match is {
                true => self.note(node, device, own[device]),
                false => {
                    for place in places(node, device) {
                        if place.pid == std::process::id() && place.started != 0 {
                            *place = Process::default();
                        }
                    }
                    true
                }
            });
        }
    }

    /// Bytes in use by all processes.
    pub(crate) fn used(&self, device: usize) -> u64 {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner)[device];
        let shared = self.shared.as_ref();
        own + shared.map_or(0, |shared| shared.read(|node| others(node, device)))
    }

    /// Writes what this process uses; false when the device has no place for one more process.
    fn note(&self, node: &mut Node, device: usize, bytes: u64) -> bool {
        let pid = std::process::id();
        let places = places(node, device);
        for place in places.iter_mut().filter(|place| !place.is_alive()) {
            *place = Process::default();
        }
        let mine = |place: &Process| place.pid == pid && place.started == self.start;
        let index = places.iter().position(mine);
        let Some(index) = index.or_else(|| places.iter().position(|place| place.pid == 0)) else {
            return false;
        };
        places[index] = Process {
            pid,
            load: places[index].load,
            memory_mib: bytes / MIB,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
            graphics: 0,
            started: self.start,
        };
        true
    }
}

fn places(node: &mut Node, device: usize) -> &mut [Process] {
    &mut node.gpus_mut()[device].processes
}

/// Bytes that other processes use.
fn others(node: &Node, device: usize) -> u64 {
    let pid = std::process::id();
    let others = node.gpus()[device].processes().filter(|p| p.pid != pid);
    others.map(|process| process.memory_mib).sum::<u64>() * MIB
}
