//! Tests of the crate through its public face; one program for all.

mod support;

mod folder;
mod hostile;
mod resume;
mod trash;
