//! Tests of objects in three tiers, in host memory and on the simulated driver: one program of all of them.
//! `cargo test -p gpuos_fabric --test fabric gpu::` runs the tests of `gpu.rs`.

#[path = "../../../tests/cuda/tests/common/mod.rs"]
#[allow(dead_code, reason = "the simulated driver's tests use all of it")]
mod common;

mod gpu;
mod host;
mod stored;
