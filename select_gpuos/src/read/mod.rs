//! What is read, of Slurm and of files, and what is remembered of it.

pub mod backfill;
pub mod cluster;
pub mod demand;
pub mod ends;
pub mod ledger;
pub mod links;
pub mod prefetch;
pub mod request;
pub mod service;
pub mod settings;
#[cfg(debug_assertions)]
pub mod shifts;
pub mod site;
pub mod snapshot;
pub mod trust;
