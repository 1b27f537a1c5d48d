//! What gpuos's daemons have in common: gpuosd and gpuos_mover.
//!
//! - [`door`]: the sockets on which they answer,
//! - [`log`]: where the log goes,
//! - [`places`]: whether a folder in which root writes is nobody else's,
//! - [`start`]: flags, and the page for `man`.

#![forbid(unsafe_code)]

pub mod door;
pub mod log;
pub mod places;
pub mod start;
