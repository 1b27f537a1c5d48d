//! Tests of the simulated driver, by its C interface: one program of all of them, so that they are linked once.
//! `cargo test -p gpuos_cuda --test cuda graphs::` runs the tests of `graphs.rs`.

mod common;

mod clients;
mod faults;
mod graphs;
mod memory;
mod processes;
mod procs;
mod random;
mod streams;
mod virtual_memory;
