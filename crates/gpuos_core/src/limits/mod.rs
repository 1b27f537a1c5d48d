//! Power caps and clocks for jobs, and what else a job may ask of its GPUs while it runs.
//!
//! gpuosd tells [`step`] which jobs are there and what they want, and does what it says. Whatever happens in
//! between (a crash, a reset, a disk that is full), a GPU ends with the limit that it had before the job.
//!
//! - [`requests`]: what can be asked for,
//! - [`state`]: what is set, and what can happen,
//! - [`step`]: what follows,
//! - [`mps`]: the daemons of NVIDIA's MPS, by a step function of their own.

mod mps;
mod mps_client;
mod requests;
mod state;
mod step;
#[cfg(test)]
mod tests;

pub use mps::{Mps, MpsEffect, MpsEvent, NotEnded, Process, REMOVALS, Serving, mps_step};
pub use mps_client::MpsClient;
pub use requests::{Asked, ClockRange, MpsRequest, PowerCap, Share};
pub use state::{AppliedLimits, Board, Clocks, Effect, Event, Holder, Limits, Setting};
pub use step::step;
