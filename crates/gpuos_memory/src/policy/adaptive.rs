use super::order::Order;
use super::{Answer, Policy};
use crate::trace::Extent;

/// ARC (Megiddo and Modha, FAST 2003).
pub struct Arc {
    capacity: usize,
    /// How many of those that came once are wanted.
    wanted: usize,
    once: Order,
    again: Order,
    once_left: Order,
    again_left: Order,
}

impl Arc {
    /// For room for `capacity` extents.
    pub fn new(capacity: usize) -> Arc {
        Arc {
            capacity,
            wanted: 0,
            once: Order::default(),
            again: Order::default(),
            once_left: Order::default(),
            again_left: Order::default(),
        }
    }

    /// REPLACE of the paper.
    fn leaves(&mut self, came_again: bool) -> Option<Extent> {
        let once = self.once.len();
        let from_once = once > self.wanted || (came_again && once == self.wanted);
        if once > 0 && (from_once || self.again.len() == 0) {
            let extent = self.once.pop()?;
            self.once_left.push(extent);
            return Some(extent);
        }
        let extent = self.again.pop()?;
        self.again_left.push(extent);
        Some(extent)
    }

    fn trim(&mut self) {
        while self.once.len() + self.once_left.len() > self.capacity && self.once_left.len() > 0 {
            self.once_left.pop();
        }
        let all = |arc: &Arc| {
            arc.once.len() + arc.again.len() + arc.once_left.len() + arc.again_left.len()
        };
        while all(self) > 2 * self.capacity && self.again_left.len() > 0 {
            self.again_left.pop();
        }
    }
}

impl Policy for Arc {
    fn name(&self) -> &'static str {
        "arc"
    }

    fn hit(&mut self, extent: Extent) {
        self.once.remove(extent);
        self.again.push(extent);
    }

    fn miss(&mut self, extent: Extent, full: bool) -> Answer {
        let (once, again) = (self.once_left.len().max(1), self.again_left.len().max(1));
        let (was_once, was_again) = (self.once_left.has(extent), self.again_left.has(extent));
        if was_once {
            self.wanted = (self.wanted + (again / once).max(1)).min(self.capacity);
        } else if was_again {
            self.wanted = self.wanted.saturating_sub((once / again).max(1));
        }
        let leaves = if full { self.leaves(was_again) } else { None };
        self.once_left.remove(extent);
        self.again_left.remove(extent);
        match was_once || was_again {
            true => self.again.push(extent),
            false => self.once.push(extent),
        }
        self.trim();
        leaves.map_or(Answer::Take, Answer::Replace)
    }

    fn freed(&mut self, extent: Extent) {
        for order in [
            &mut self.once,
            &mut self.again,
            &mut self.once_left,
            &mut self.again_left,
        ] {
            order.remove(extent);
        }
    }
}
