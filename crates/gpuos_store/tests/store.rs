//! Tests of the crate through its public face; one program for all.

mod support;

mod crash;
mod damage;
mod hostile;
mod keys;
mod rebuild;
mod round_trip;
mod shards;
