//! Adapters to the machine: Slurm's commands and files, for the `gpuos` command.
//!
//! Everything that touches the machine goes through [`Machine`], which has a simulated twin,
//! [`Recorded`]. What Slurm says is parsed into plain structures here and joined with
//! gpuos.toml into the planner's model; decisions are `gpuos_core`'s.

#![deny(unsafe_code)]

pub mod device_groups;
pub mod discover;
pub mod elf;
mod ends;
pub mod file_systems;
mod gres_index;
pub mod host_state;
mod job_groups;
pub mod job_processes;
pub mod kernel_log;
pub mod libraries;
mod machine;
pub mod moving;
pub mod munge;
mod neighbours;
pub mod nvml;
pub mod releases;
mod request;
mod site;
pub mod slurm;
pub mod slurm_files;
pub mod socket;
mod stat;

pub use ends::seconds_between;
pub use gres_index::{GresIndex, conf_folder};
pub use machine::{Machine, Output, Recorded, ThisMachine, host_name};
pub use neighbours::{Asker, Judge, Neighbours};
pub use request::{JobRequest, feature_match, options_in_script, options_in_words};
pub use site::{Site, config, found_config};
pub use stat::{Kind, Stat, User};
