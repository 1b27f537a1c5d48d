//! Adapters to the machine: Slurm's commands and files, for the `gpuos` command.
//!
//! Everything that touches the machine goes through [`Machine`], which has a simulated twin,
//! [`Recorded`]. What Slurm says is parsed into plain structures here and joined with
//! gpuos.toml into the planner's model; decisions are `gpuos_core`'s.
//!
//! - [`Machine`] and [`Recorded`]; [`Site`]: Slurm and gpuos.toml joined; [`JobRequest`]: a job as scontrol and its script have it,
//! - [`slurm`]: what squeue and scontrol print, read so that no user's text is structure (docs/decisions/0021), and what
//!   Slurm is told (`act`),
//! - [`slurm_files`]: slurm.conf and its like, read without Slurm; [`releases`]; [`elf`] and [`libraries`]: a plugin's file as the loader
//!   would see it,
//! - [`nvml`]: NVIDIA's management library as a trait, MIG instances too: the driver's, opened at run time, and a twin in memory,
//! - [`discover`]: NVML and sysfs joined into a node type and a pool of slices, and what differs from the configured ones,
//! - [`GresIndex`]: Slurm's number of a GPU; [`moving`]: GPUs that move, in one GRES and the other,
//! - [`socket`]: gpuosd's; [`munge`]: who sent a message, by munge's library opened at run time, and a twin in memory,
//! - [`kernel_log`]: Xids in /dev/kmsg; [`host_state`]: links and memory; [`file_systems`]: whether they answer,
//! - [`device_groups`]: which GPUs a step may open, by asking the kernel; `job_groups`: which control groups are Slurm's own;
//!   [`job_processes`]: whose a process is, and a kill that hits no other.

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
