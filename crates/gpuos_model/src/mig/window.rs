//! Memory slices that one instance has.
use serde::{Deserialize, Serialize};

/// Memory slices in a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Window {
    /// The first.
    pub start: u8,
    /// How many.
    pub size: u8,
}

impl Window {
    /// Whether they have a slice in common.
    pub fn overlaps(self, other: Window) -> bool {
        let end = |window: Window| u16::from(window.start) + u16::from(window.size);
        u16::from(self.start) < end(other) && u16::from(other.start) < end(self)
    }
}
