use super::order::Order;
use super::{Answer, Policy};
use crate::trace::Extent;

/// 2Q, full version (Johnson and Shasha, VLDB 1994), with a quarter of the room for what is new and half of it for names of
/// what left, as they recommend.
pub struct TwoQueues {
    /// New ones, in the order in which they came.
    new: Order,
    /// Names of those that left `new`.
    left: Order,
    /// Those that came again, by use.
    hot: Order,
    most_new: usize,
    most_left: usize,
}

impl TwoQueues {
    /// For room for `capacity` extents.
    pub fn new(capacity: usize) -> TwoQueues {
        TwoQueues {
            new: Order::default(),
            left: Order::default(),
            hot: Order::default(),
            most_new: (capacity / 4).max(1),
            most_left: (capacity / 2).max(1),
        }
    }

    fn leaves(&mut self) -> Option<Extent> {
        if self.new.len() > self.most_new || self.hot.len() == 0 {
            let extent = self.new.pop()?;
            self.left.push(extent);
            if self.left.len() > self.most_left {
                self.left.pop();
            }
            return Some(extent);
        }
        self.hot.pop()
    }
}

impl Policy for TwoQueues {
    fn name(&self) -> &'static str {
        "2q"
    }

    fn hit(&mut self, extent: Extent) {
        if self.hot.has(extent) {
            self.hot.push(extent);
        }
    }

    fn miss(&mut self, extent: Extent, full: bool) -> Answer {
        let came_again = self.left.remove(extent);
        let leaves = if full { self.leaves() } else { None };
        match came_again {
            true => self.hot.push(extent),
            false => self.new.push(extent),
        }
        leaves.map_or(Answer::Take, Answer::Replace)
    }

    fn freed(&mut self, extent: Extent) {
        self.new.remove(extent);
        self.left.remove(extent);
        self.hot.remove(extent);
    }
}
