//! Grid Engine.
//!
//! - [`job`]: a job by what `qstat -xml -j` prints,
//! - [`jsv`]: the protocol of a job submission verifier on the host of sge_qmaster.

pub mod job;
pub mod jsv;
mod xml;

/// The complex that counts GPUs, once for each job.
pub const GPU: &str = "gpu";
/// The load value of GPUs that are linked by NVLink with each other.
pub const NVLINK: &str = "gpuos_nvlink";
