//! libgpuos.so: checkpoints of a job, and memory of GPUs in tiers, for programs in C, C++ and Fortran. `include/gpuos.h` has the functions and
//! what they return.
//!
//! - `handle`: what stands behind a `gpuos_ckpt *`, without unsafe code;
//! - `capi`: its functions that C sees;
//! - `memory`: what stands behind a `gpuos_mem *`, its functions, and those that PyTorch takes as an allocator.
//!
//! Unsafe code is in `capi`, `memory::calls`, `memory::saves` and `memory::place`.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "pointers of C")]
mod capi;
mod handle;
mod memory;
