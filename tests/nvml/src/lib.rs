//! A simulated NVIDIA management library (NVML). Built as a C library it is `libnvidia-ml.so.1`:
//! monitors, daemons and bindings in any language open it as they open the driver's own. The GPUs
//! are numbers in one shared file, so that every process sees the same ones, and [`fault`] breaks
//! and mends them.
//!
//! - [`model`]: what a board is and does, and which node has which (data, with sources),
//! - [`state`]: the GPUs as they are now, in a file that processes map,
//! - [`fault`]: faults to inject, and what ends them,
//! - [`hold`]: calls that wait, so that their caller can be ended there,
//! - `exports`: the C functions, by theme.
//!
//! It exists for tests: nothing of gpuos links it.

mod exports;
pub mod fault;
pub mod hold;
pub mod latency;
pub mod mig;
pub mod model;
pub mod state;
