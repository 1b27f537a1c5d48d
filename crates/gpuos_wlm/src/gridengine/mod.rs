//! Grid Engine.
//!
//! - [`job`]: a job by what `qstat -xml -j` prints,
//! - [`jsv`]: the protocol of a job submission verifier on the host of sge_qmaster,
//! - [`task`]: a task whose checkpoints gpuos_mover keeps, by the same record.

pub mod job;
pub mod jsv;
pub mod task;
mod xml;

/// The complex that counts GPUs, once for each job.
pub const GPU: &str = "gpu";
/// The checkpointing environment of jobs whose checkpoints are gpuos's.
pub const ENVIRONMENT: &str = "gpuos";
/// The load value of GPUs that are linked by NVLink with each other.
pub const NVLINK: &str = "gpuos_nvlink";
