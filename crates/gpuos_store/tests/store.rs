//! Tests of the crate through its public face; one program for all.

#[path = "../../gpuos_model/tests/random/mod.rs"]
mod random;
mod support;

mod coded;
mod crash;
mod damage;
mod drained;
mod drained_damage;
mod hostile;
mod keys;
mod owned;
mod parts;
mod rebuild;
mod refused;
mod round_trip;
mod shards;
