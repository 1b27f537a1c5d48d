//! Traces of real clusters replayed against placement policies.
//!
//! - [`trace`] reads the nodes and jobs of openb from text, strictly.
//! - [`policy`] holds gpuos's choice, published ones to compare it with, and a model of stock
//!   Slurm's.
//! - [`protocol`] says how jobs arrive and end. Each protocol is a machine that takes one step at
//!   a time, with all chance from a seed that the caller hands in.
//! - [`curve`] and [`plot`] bring runs together.
//! - [`gangs`] replays gangs on a site of 10,000 GPUs.
//! - [`mig`] packs slices of GPUs as jobs come and go.
//! - [`replay`] makes the jobs of the replay in the real slurmctld, and is its twin without one.
//!
//! Everything is deterministic: the same trace, options and seed give the same figures on every
//! machine.
#![forbid(unsafe_code)]

pub mod curve;
pub mod gangs;
pub mod mig;
pub mod plot;
pub mod policy;
pub mod protocol;
pub mod replay;
pub mod trace;
