//! Tests of the crate through its public face; one program for all.

#[path = "../../../tests/fuzz/src/checkpoints.rs"]
mod checkpoints;
mod numbers;
mod one;
#[path = "../../../tests/src/port.rs"]
mod port;
mod support;

mod ask;
mod disks;
mod donor;
mod folder;
mod hostile;
mod launches;
mod left_open;
mod limits;
mod memory;
mod opening;
mod owners;
mod parked;
mod read_fuzz;
mod refuse;
mod resume;
mod starts;
mod trash;
