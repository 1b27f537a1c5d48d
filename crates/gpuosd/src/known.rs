//! What the threads that answer clients have to know of this node's jobs. The loop writes it, from reports of root's slurmstepd and from
//! records of the workload manager alone; nobody waits for the loop to read it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The jobs of this node, as of the loop's last word.
#[derive(Clone, Debug, Default)]
pub struct Known(Arc<RwLock<Jobs>>);

/// What is known of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Jobs {
    /// Their users, by job.
    pub users: BTreeMap<u32, u32>,
}

impl Known {
    /// The jobs that there are now.
    pub fn set(&self, jobs: Jobs) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = jobs;
    }

    /// Whose a job is that is here now.
    pub fn user_of(&self, job: u32) -> Option<u32> {
        let jobs = self.0.read().unwrap_or_else(PoisonError::into_inner);
        jobs.users.get(&job).copied()
    }
}
