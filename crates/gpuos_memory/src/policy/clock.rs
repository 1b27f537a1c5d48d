use std::collections::{HashMap, VecDeque};

use super::{Answer, Policy};
use crate::trace::Extent;

/// CLOCK, also called second chance (Corbató: "A paging experiment with the Multics system", 1968).
#[derive(Default)]
pub struct Clock {
    /// From the hand on. One that is not in `used` was freed.
    ring: VecDeque<(Extent, u64)>,
    /// Whether it was used since the hand passed, and which entry of the ring is its own.
    used: HashMap<Extent, (bool, u64)>,
    entries: u64,
}

impl Clock {
    /// With nothing in it.
    pub fn new() -> Clock {
        Clock::default()
    }

    fn turn(&mut self) -> Option<Extent> {
        loop {
            let (extent, entry) = self.ring.pop_front()?;
            match self.used.get_mut(&extent) {
                Some((used, own)) if *own == entry => {
                    if !std::mem::take(used) {
                        self.used.remove(&extent);
                        return Some(extent);
                    }
                    self.ring.push_back((extent, entry));
                }
                _ => {}
            }
        }
    }
}

impl Policy for Clock {
    fn name(&self) -> &'static str {
        "clock"
    }

    fn hit(&mut self, extent: Extent) {
        if let Some((used, _)) = self.used.get_mut(&extent) {
            *used = true;
        }
    }

    fn miss(&mut self, extent: Extent, full: bool) -> Answer {
        let leaves = if full { self.turn() } else { None };
        self.entries += 1;
        self.ring.push_back((extent, self.entries));
        self.used.insert(extent, (false, self.entries));
        leaves.map_or(Answer::Take, Answer::Replace)
    }

    fn freed(&mut self, extent: Extent) {
        self.used.remove(&extent);
    }
}
