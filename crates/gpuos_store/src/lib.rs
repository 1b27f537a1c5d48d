//! The store of checkpoints on a node's disk.
#![forbid(unsafe_code)]

pub mod erasure;
