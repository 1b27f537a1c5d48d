//! What the threads that answer clients have to know of this node's jobs. The loop writes it, from reports of root's slurmstepd and from
//! records of the workload manager alone; nobody waits for the loop to read it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use gpuos_core::job::JobId;
use gpuos_host::socket::Need;

/// The jobs of this node, as of the loop's last word.
#[derive(Clone, Debug, Default)]
pub struct Known(Arc<RwLock<Jobs>>);

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
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = jobs;
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
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}
