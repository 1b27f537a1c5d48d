//! Tests of the crate through its public face; one program for all.

#[path = "../../gpuos_model/tests/random/mod.rs"]
mod random;

mod commit_count;
mod commit_rules;
mod commit_sim;
mod commit_support;
mod interval;
mod manifest;
mod pull;
mod pull_sim;
mod pull_support;
mod retention;
mod sets;
mod stripe;
mod usable;
