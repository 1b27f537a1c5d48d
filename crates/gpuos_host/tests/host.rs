//! Tests of the adapters: one program of all of them, so that they are linked once. `cargo test -p gpuos_host --test host captured::` runs the
//! tests of `captured.rs`.

mod recorded;

mod captured;
mod damaged;
mod discover;
mod forged;
mod same_plan;
