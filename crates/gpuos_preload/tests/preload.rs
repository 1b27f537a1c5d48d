//! Tests of the library that programs load before the driver, on the simulated driver: one program of all of them, so that they are linked once.
//! `cargo test -p gpuos_preload --test preload programs::` runs the tests of `programs.rs`.

#[path = "../../../tests/cuda/tests/common/mod.rs"]
#[allow(dead_code, reason = "the simulated driver's tests use all of it")]
mod common;

mod broker;
mod calls;
mod clients;
mod handles;
mod heat;
mod held;
mod lookup;
mod others;
mod parked;
mod played;
mod pools;
mod pressure;
mod programs;
mod record;
mod shim;
mod staging;
mod stow;
mod stow_handles;
mod unusual;
