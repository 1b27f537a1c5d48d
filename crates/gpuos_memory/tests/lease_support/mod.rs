//! A node in simulated time: processes that allocate, park, come back, die and go deaf, a daemon that crashes, and a workload manager.

mod behaviour;
mod daemon;
mod driver;
pub mod process;
pub mod truth;
pub mod world;

/// A GiB.
pub const GIB: u64 = 1 << 30;
