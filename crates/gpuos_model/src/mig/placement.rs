//! Memory slices that one instance has.
use serde::{Deserialize, Serialize};

/// Memory slices in a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct MigPlacement {
    /// The first.
    pub start: u8,
    /// How many.
    pub size: u8,
}

impl MigPlacement {
    /// Whether they have a slice in common.
    pub fn overlaps(self, other: MigPlacement) -> bool {
        let end = |placement: MigPlacement| u16::from(placement.start) + u16::from(placement.size);
        u16::from(self.start) < end(other) && u16::from(other.start) < end(self)
    }
}
