//! Tests of the crate through its public face; one program for all.

mod pull;
mod pull_code;
mod pull_sim;
mod sets;
mod stripe;
