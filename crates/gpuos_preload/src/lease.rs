//! What gpuosd has given the process of each device. Without gpuosd there is nothing here, and the environment's grant holds.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What the process may use of a device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lease {
    /// What the program sees as the device's memory.
    pub(crate) bytes: u64,
    /// Of the device's own memory.
    pub(crate) hbm: u64,
    /// Of host memory.
    pub(crate) host: u64,
}

static LEASES: Mutex<BTreeMap<i32, Lease>> = Mutex::new(BTreeMap::new());

/// Notes what was given of a device.
pub(crate) fn set(device: i32, lease: Lease) {
    LEASES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(device, lease);
}

/// What was given of it.
pub(crate) fn of(device: i32) -> Option<Lease> {
    LEASES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&device)
        .copied()
}
