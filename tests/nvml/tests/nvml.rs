//! Tests of the simulated library: one program of all of them, so that they are linked once. `cargo test -p gpuos_nvml --test nvml anywhere::` runs the
//! tests of `anywhere.rs`.

mod common;

mod anywhere;
mod clients;
mod faults;
mod gauges;
mod gpm;
mod host;
mod library;
mod mig;
mod mig_host;
mod random;
mod wrapper;
