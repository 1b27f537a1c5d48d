//! Tests of the whole: real Slurm daemons in a lab, and the rules of the house.
//!
//! The library is what the tests share: the releases to test on ([`suites()`]), the PBS ([`mod@pbs`]), the plugins, built
//! by [`plugins::built`], a lab with gpuos in it ([`Cluster`]), what it shows of its jobs
//! ([`show`]), slices of its GPUs ([`slices`]), programs that tests write ([`program()`], [`mps`]), their ports ([`port`]), the gpuos.toml of sites that
//! several tests use ([`sites`]), pages of results that long ones write ([`results`]), who holds which GPU ([`ledger`]), calls that the kernel forbids ([`filter`]), and what
//! each test costs ([`costs`]).

pub mod cluster;
mod complaints;
pub mod costs;
pub mod counted;
pub mod filter;
pub mod ledger;
pub mod mps;
pub mod pbs;
pub mod plugins;
pub mod port;
pub mod program;
pub mod results;
pub mod show;
pub mod sites;
pub mod slices;
pub mod suites;

pub use cluster::{Cluster, Setup};
pub use mps::MPS_CONTROL;
pub use pbs::{Needs, is_stand_in, pbs, pbs_with};
pub use program::program;
pub use suites::{measured_runs, skip, suites};
