//! The daemon gpuos_mover: checkpoints of the jobs on a node.
//!
//! - [`folder`]: the folder of a job, through which its program and the daemon speak with each other.
#![forbid(unsafe_code)]

pub mod folder;
