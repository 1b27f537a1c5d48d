use super::order::Order;
use super::{Answer, Policy};
use crate::trace::Extent;

/// Least recently used.
#[derive(Default)]
pub struct Lru {
    order: Order,
}

impl Lru {
    /// With nothing in it.
    pub fn new() -> Lru {
        Lru::default()
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn hit(&mut self, extent: Extent) {
        self.order.push(extent);
    }

    fn miss(&mut self, extent: Extent, full: bool) -> Answer {
        let leaves = if full { self.order.pop() } else { None };
        self.order.push(extent);
        leaves.map_or(Answer::Take, Answer::Replace)
    }

    fn freed(&mut self, extent: Extent) {
        self.order.remove(extent);
    }
}
