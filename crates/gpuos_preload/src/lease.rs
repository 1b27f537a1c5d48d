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

static LEASES: Mutex<BTreeMap<i32, Option<Lease>>> = Mutex::new(BTreeMap::new());

/// Notes what was given of a device.
pub(crate) fn set(device: i32, lease: Lease) {
    LEASES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(device, Some(lease));
}

/// Notes that nothing was given of a device.
pub(crate) fn refuse(device: i32) {
    LEASES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(device, None);
}

/// What was given of it: `Some(None)` is nothing, and `None` that nobody was asked.
pub(crate) fn of(device: i32) -> Option<Option<Lease>> {
    LEASES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&device)
        .copied()
}
