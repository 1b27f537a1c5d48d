//! Tests of the crate through its public face; one program for all.

mod support;

mod cluster;
mod hostile;
