//! libgpuos.so: checkpoints of a job for programs in C, C++ and Fortran. `include/gpuos.h` has the functions and what they return.
//!
//! - `handle`: what stands behind a `gpuos_ckpt *`, without unsafe code;
//! - `capi`: the functions that C sees, and all unsafe code.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "pointers of C")]
mod capi;
mod handle;
