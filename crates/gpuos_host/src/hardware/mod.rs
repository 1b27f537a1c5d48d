//! The machine's hardware, and what the kernel and NVIDIA's library tell of it. Nothing here knows a workload manager.
//!
//! - [`nvml`]: NVIDIA's management library as a trait, MIG instances too: the driver's, opened at run time, and a twin in memory,
//! - [`discover`]: NVML and sysfs joined into a node type and a pool of slices, and what differs from the configured ones,
//! - [`kernel_log`]: Xids in /dev/kmsg; [`host_state`]: links and errors of memory; [`host_memory`]: how much of it is free; [`file_systems`]: whether they answer;
//!   [`checkpoint`]: the driver's calls that take a process out of its GPUs whole; [`device_programs`]: whether the kernel can keep jobs to their devices.

pub mod checkpoint;
pub mod device_programs;
pub mod discover;
pub mod file_systems;
pub mod host_memory;
pub mod host_state;
pub mod kernel_log;
pub mod nvml;
