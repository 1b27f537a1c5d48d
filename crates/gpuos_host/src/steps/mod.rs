//! What the kernel tells of the steps of jobs: their processes, and the devices that they may open.
//!
//! - [`device_groups`]: which GPUs a step may open, by asking the kernel,
//! - [`job_memory`]: the memory of a job, by its control group,
//! - [`job_processes`]: whose a process is, and a kill that hits no other,
//! - [`own_groups`]: groups that keep the jobs of another workload manager to their GPUs.

pub mod device_groups;
pub mod job_memory;
pub mod job_processes;
pub mod own_groups;
mod started;
