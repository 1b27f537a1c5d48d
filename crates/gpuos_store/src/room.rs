//! How much a checkpoint may add to a store: what is left of its user's quota, and of the disk.

use crate::disk::Space;
use crate::error::{Error, Kind};

/// What is left free on a disk: one part of so many ...
const PART: u64 = 20;
/// ... and not more than this, in bytes; own choice, enough for logs to be written until somebody looks.
const RESERVE: u64 = 1 << 30;

/// The bytes that a checkpoint's own segment may have, and what limits them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// By what.
    pub bound: Bound,
}

/// What limits a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// Nothing.
    Nothing,
    /// What the user may have on this node, and has.
    Quota {
        /// The user.
        uid: u32,
        /// Bytes that he may have.
        most: u64,
        /// Bytes that he has.
        used: u64,
    },
    /// The disk of the store.
    Disk {
        /// Bytes that are free.
        free: u64,
        /// Bytes of them that stay so.
        reserve: u64,
    },
}

impl Default for Room {
    fn default() -> Room {
        Room {
            bytes: u64::MAX,
            bound: Bound::Nothing,
        }
    }
}

impl Room {
    /// Why something of a checkpoint does not fit. `tried` begins with a verb.
    pub fn full(&self, tried: String) -> Error {
        let left = size(self.bytes);
        let (why, next) = match self.bound {
            Bound::Quota { uid, most, used } => (
                format!(
                    "user {uid} may have {} of checkpoints on this node and has {}, so that the new part may add {left}",
                    size(most),
                    size(used)
                ),
                "remove what jobs that are over have kept (gpuos ckpt list, gpuos ckpt prune JOB), checkpoint less, or ask those who run \
                 the cluster for more ([checkpoint] user-gib, user-percent)",
            ),
            Bound::Disk { free, reserve } => (
                format!(
                    "the disk of the store has {} free, of which {} stay free, so that the new part may add {left}",
                    size(free),
                    size(reserve)
                ),
                "free space there, or have fewer checkpoints kept ([checkpoint] keep and ended-hours)",
            ),
            Bound::Nothing => (format!("the new part may add {left}"), "checkpoint less"),
        };
        Error::new(Kind::Full, tried, why, next)
    }
}

/// Bytes of a file system that can be used, so that some of it stays free.
pub fn usable(space: Space) -> u64 {
    space.free.saturating_sub(reserve(space))
}

/// What of it stays free.
pub(crate) fn reserve(space: Space) -> u64 {
    (space.total / PART).min(RESERVE)
}

/// Bytes as people read them.
pub fn size(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit);
    match unit {
        // Rounded down: what is left is not more than is said.
        Some((unit, name)) => {
            let tenths = u128::from(bytes) * 10 / u128::from(unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} bytes"),
    }
}
