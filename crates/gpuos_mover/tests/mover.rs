//! Tests of the crate through its public face; one program for all.

#[path = "../../gpuos_model/tests/random/mod.rs"]
mod random;
mod support;

mod cluster;
mod elastic;
mod hostile;
mod program;
mod retention;
mod roster;
mod scale;
