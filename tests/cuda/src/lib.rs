//! A simulated CUDA driver. Built as a C library it is `libcuda.so.1`: programs, bindings and
//! libraries that load over it open it as they open the driver's own. Device memory is a memory
//! file of the process, kernels are a few named ones that run on a thread of their stream and touch
//! that memory, and what is not mapped is an illegal address, as on a GPU.
//!
//! - [`setup`]: what the environment says about devices, driver version and bandwidths,
//! - [`ledger`]: how much memory each process uses, in the state of the simulated NVML,
//! - `memory`: physical memory in blocks; `space`: addresses and what is mapped there,
//! - `engine`: what refers to each other, as it does in CUDA:
//! - `device`, `context`, `stream`, `event`, `heap`: what their names say in CUDA,
//! - `work`: what a stream does; `kernel`: the kernels; `image`: modules; `graph`: graphs,
//! - `driver`: the one driver of the process,
//! - `exports`: the C functions, by theme; `abi` and `pointer`: C's structures and pointers,
//! - [`procs`]: names and versions of all driver functions, for `cuGetProcAddress`.
//!
//! It exists for tests: nothing of gpuos links it.

mod abi;
mod engine;
pub mod ledger;
mod memory;
mod pointer;
pub mod setup;
mod space;
mod table;

pub use engine::procs;
