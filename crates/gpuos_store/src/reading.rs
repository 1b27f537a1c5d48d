//! Checkpoints that are being read for long, as they wait to be copied elsewhere: retention leaves them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_core::job::JobId;

type Counts = BTreeMap<(JobId, CheckpointId), usize>;

/// Which are read, by how many.
#[derive(Clone, Default)]
pub(crate) struct Readings(Arc<Mutex<Counts>>);

/// One of them, until it is dropped.
pub struct Reading {
    readings: Readings,
    key: (JobId, CheckpointId),
}

impl Readings {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, job: &JobId, id: CheckpointId) -> Reading {
        let key = (job.clone(), id);
        *self.lock().entry(key.clone()).or_default() += 1;
        Reading {
            readings: self.clone(),
            key,
        }
    }

    pub(crate) fn has(&self, job: &JobId, id: CheckpointId) -> bool {
        self.lock().contains_key(&(job.clone(), id))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut counts = self.readings.lock();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}
