//! Memory beyond that of its GPUs, for a step whose job has `--gpuos-mem`.
use serde::{Deserialize, Serialize};

/// What a step says that its programs may use of the memory of each GPU. It is the user's word: what the job may have follows
/// from Slurm's record of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepMemory {
    /// Bytes for each of its GPUs, in whatever tiers.
    pub bytes_per_gpu: u64,
    /// Its GPUs are shared with other jobs, which take turns.
    #[serde(default, skip_serializing_if = "super::mig::is_false")]
    pub timeslice: bool,
}
