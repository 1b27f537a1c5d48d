//! Adapters: the machine, its hardware, and Slurm's commands and files, for the command and the daemon.
//!
//! Everything that touches the machine goes through [`Machine`], which has a simulated twin,
//! [`Recorded`]. What is read is parsed into plain structures here; decisions are `gpuos_core`'s.
//!
//! - [`Machine`] and [`Recorded`]: commands, files and environment; [`config_file`]: gpuos.toml,
//! - [`hardware`]: GPUs, links, memory, the kernel's log and file systems,
//! - [`pbs`]: the workload manager PBS, by its commands; [`gridengine`]: Grid Engine, likewise,
//! - [`slurm`]: the workload manager Slurm, and the model of a cluster that runs it,
//! - [`steps`]: processes and devices of jobs' steps, by the kernel,
//! - [`elf`] and [`libraries`]: a plugin's file as the loader would see it,
//! - [`socket`]: gpuosd's; [`munge`]: who sent a message, by munge's library opened at run time, and a twin in memory,
//! - [`window`]: another process's file in memory, for bytes that it is given.

#![deny(unsafe_code)]

pub mod config_file;
pub mod elf;
pub mod gridengine;
pub mod hardware;
pub mod libraries;
mod machine;
pub mod munge;
pub mod pbs;
pub mod slurm;
pub mod socket;
mod stat;
pub mod steps;
pub mod window;

pub use machine::{Machine, Output, Recorded, ThisMachine, host_name};
pub use stat::{Kind, Stat, User};
