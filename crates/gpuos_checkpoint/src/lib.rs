//! Checkpoints of jobs, as far as it is thinking. Step functions: state and input in, effects out; `gpuos_store` keeps the bytes.
//!
//! - [`ids`]: a checkpoint, an attempt at it, a node of the job,
//! - [`manifest`]: what a node's part of a checkpoint consists of, and how that is written,
//! - [`sets`]: which nodes keep redundancy for each other, so that no failure domain takes more than they can lose,
//! - [`stripe`]: which node holds which shard,
//! - [`pull`]: how a shard is made of others, for encoding and for rebuilding,
//! - [`commit`]: a checkpoint exists on all nodes of a job or not at all,
//! - [`usable`]: which checkpoint can be restored from what is left, and what can still be lost,
//! - [`refusal`]: which a program could not load,
//! - [`retention`]: which are kept,
//! - [`interval`]: how often it pays.
//!
//! Pure: no I/O, no clock, no threads, no logging and no unsafe code.
#![forbid(unsafe_code)]

pub mod commit;
pub mod ids;
pub mod interval;
pub mod manifest;
pub mod pull;
pub mod refusal;
pub mod retention;
pub mod sets;
pub mod stripe;
pub mod usable;
