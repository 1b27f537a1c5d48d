//! Extents in the order in which they were put at the end.

use std::collections::{BTreeMap, HashMap};

use crate::trace::Extent;

/// A queue out of whose middle can be taken.
#[derive(Default)]
pub(super) struct Order {
    by_time: BTreeMap<u64, Extent>,
    times: HashMap<Extent, u64>,
    now: u64,
}

impl Order {
    pub fn len(&self) -> usize {
        self.times.len()
    }

    pub fn has(&self, extent: Extent) -> bool {
        self.times.contains_key(&extent)
    }

    /// Puts one at the end, wherever it was.
    pub fn push(&mut self, extent: Extent) {
        self.remove(extent);
        self.now += 1;
        self.by_time.insert(self.now, extent);
        self.times.insert(extent, self.now);
    }

    /// Whether it was there.
    pub fn remove(&mut self, extent: Extent) -> bool {
        let time = self.times.remove(&extent);
        time.is_some_and(|time| self.by_time.remove(&time).is_some())
    }

    /// The one that was put there first, out of it.
    pub fn pop(&mut self) -> Option<Extent> {
        let (_, extent) = self.by_time.pop_first()?;
        self.times.remove(&extent);
        Some(extent)
    }
}
