//! Which extents stay in GPU memory.
//!
//! [`Learned`] is gpuos's. The others are as their papers say, to be compared with; they take every extent in that is touched.

mod adaptive;
mod clock;
mod lru;
mod order;
mod two_queues;

pub mod learned;

pub use adaptive::Arc;
pub use clock::Clock;
pub use learned::Learned;
pub use lru::Lru;
pub use two_queues::TwoQueues;

use crate::trace::Extent;

/// A policy for GPU memory that has room for so many extents. Whoever moves them calls it for every touch, in order. Threads may hand it on.
pub trait Policy: Send {
    /// Its name in tables.
    fn name(&self) -> &'static str;

    /// The program touches an extent that is in GPU memory.
    fn hit(&mut self, extent: Extent);

    /// The program touches one that is not. `full`: something has to leave before it can be taken in.
    fn miss(&mut self, extent: Extent, full: bool) -> Answer;

    /// The program has freed an extent.
    fn freed(&mut self, extent: Extent);
}

/// What is done with an extent that was touched outside GPU memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is taken in; there is room.
    Take,
    /// It is taken in, and this one leaves.
    Replace(Extent),
    /// It stays where it is, and the GPU reads it there.
    Leave,
}

/// The policies that can be named, gpuos's first.
pub const NAMES: [&str; 5] = ["gpuos", "lru", "clock", "2q", "arc"];

/// The policy of a name, for room for `capacity` extents, of which there is at least one.
pub fn named(name: &str, capacity: usize) -> Option<Box<dyn Policy + Send>> {
    Some(match name {
        "gpuos" => Box::new(Learned::new(capacity)),
        "lru" => Box::new(Lru::new()),
        "clock" => Box::new(Clock::new()),
        "2q" => Box::new(TwoQueues::new(capacity)),
        "arc" => Box::new(Arc::new(capacity)),
        _ => return None,
    })
}
