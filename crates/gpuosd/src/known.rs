//! What the threads that answer clients have to know of this node's jobs. The loop writes it, from reports of root's slurmstepd and from
//! records of the workload manager alone; nobody waits for the loop to read it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use gpuos_core::job::JobId;
use gpuos_host::socket::Need;
use gpuos_model::gpu_index::NvmlIndex;

/// The jobs of this node, as of the loop's last word.
#[derive(Clone, Debug, Default)]
pub struct Known {
    jobs: Arc<RwLock<Jobs>>,
    instances: Arc<RwLock<Instances>>,
}

/// The MIG instances of jobs that can be used: NVML's index of the GPU, and the driver's ids of GPU instance and compute instance.
pub type Instances = BTreeMap<JobId, BTreeSet<(NvmlIndex, u32, u32)>>;

/// What is known of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Jobs {
    /// Their users, by job.
    pub users: BTreeMap<JobId, u32>,
    /// How many GPUs they have, by user: what slurmctld gave them, and not what a step's environment names.
    pub need: Arc<Need>,
}

impl Known {
    /// The jobs that there are now.
    pub fn set(&self, jobs: Jobs) {
        *self.jobs.write().unwrap_or_else(PoisonError::into_inner) = jobs;
    }

    /// The instances that there are now.
    pub fn set_instances(&self, instances: Instances) {
        *self
            .instances
            .write()
            .unwrap_or_else(PoisonError::into_inner) = instances;
    }

    /// Those of a job; it has none before a step of it was told of them.
    pub fn instances_of(&self, job: &JobId) -> BTreeSet<(NvmlIndex, u32, u32)> {
        let all = self.instances.read();
        let all = all.unwrap_or_else(PoisonError::into_inner);
        all.get(job).cloned().unwrap_or_default()
    }

    /// Whose a job is that is here now.
    pub fn user_of(&self, job: &JobId) -> Option<u32> {
        self.read().users.get(job).copied()
    }

    /// How many GPUs the jobs of each user have.
    pub fn need(&self) -> Arc<Need> {
        self.read().need.clone()
    }

    fn read(&self) -> RwLockReadGuard<'_, Jobs> {
        self.jobs.read().unwrap_or_else(PoisonError::into_inner)
    }
}
