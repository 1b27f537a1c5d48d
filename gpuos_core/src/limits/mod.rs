//! Power caps and clocks for jobs, and what else a job may ask of its GPUs while it runs.
//!
//! - [`wish`]: what can be asked for.

mod wish;

pub use wish::{Asked, ClockRange, Mps, PowerCap};
