//! Tests of the simulator: one program of all of them, so that they are linked once. `cargo test -p gpuos_sim --test simulator gangs::` runs the
//! tests of `gangs.rs`.

mod baseline;
mod packed;

mod gangs;
mod guard;
mod mig;
mod plot;
mod replay;
mod trace;
