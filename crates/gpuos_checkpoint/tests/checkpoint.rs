//! Tests of the crate through its public face; one program for all.

mod manifest;
mod pull;
mod pull_sim;
mod pull_support;
mod sets;
mod stripe;
