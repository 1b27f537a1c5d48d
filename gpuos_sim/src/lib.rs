//! Traces of real clusters replayed against placement policies.
//!
//! Everything is deterministic: the same trace, options and seed give the same figures on every
//! machine.
#![forbid(unsafe_code)]

pub mod gangs;
