//! What administrators and users write: gpuos.toml, the options of jobs, Slurm's own files, and the cluster that comes of them.
//!
//! - [`gpuos_toml`]: the file of a site, and [`access`]: who is told what, and what a site forbids,
//! - [`options`]: of jobs,
//! - [`slurm_conf`] and [`slurm_topology`]: Slurm's files,
//! - [`site`]: all of a site's files joined.
//!
//! Pure, as all of the core is: no I/O, no clock, no threads, no logging and no unsafe code. Callers hand the text in.
#![forbid(unsafe_code)]

pub mod access;
pub mod gpuos_toml;
pub mod options;
pub mod site;
pub mod slurm_conf;
pub mod slurm_topology;
