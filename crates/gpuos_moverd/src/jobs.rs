//! The jobs that this node has a part in: which threads serve them, and where they sit.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuos_core::job::JobId;
use gpuos_core::wire::CheckpointJob;
use gpuos_link::session::{Place, Places};
use gpuos_workload::WorkloadManager;
use gpuos_workload::job::JobState;

use crate::carried::{place, service};
use crate::event::Event;
use crate::launch::Launch;

/// A job that is served.
#[derive(Clone)]
pub struct Served {
    /// Its user.
    pub uid: u32,
    /// The workload manager's count of its restarts.
    pub run: u32,
    /// The start of its program.
    pub launch: Launch,
    /// This node's seat.
    pub place: Place,
    /// To its thread.
    pub to: SyncSender<Event>,
    /// Set when it is to end: its thread may be busy, and what waits for it full.
    pub over: Arc<AtomicBool>,
    /// How it is, as its thread said last.
    pub status: Arc<Mutex<CheckpointJob>>,
    /// The folder of its programs, once it is there.
    pub folder: Arc<Mutex<Option<String>>>,
}

/// All of them. Any thread may ask.
pub struct Jobs {
    served: Mutex<BTreeMap<JobId, Served>>,
    /// Where a job goes that another node's mover names and this one does not know.
    unknown: SyncSender<JobId>,
}

impl Jobs {
    /// None yet. Jobs that are not known are told to `unknown`, as far as it takes them.
    pub fn new(unknown: SyncSender<JobId>) -> Jobs {
        Jobs {
            served: Mutex::default(),
            unknown,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, Served>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a job, in place of an earlier run of it.
    pub fn enter(&self, job: JobId, served: Served) {
        self.lock().insert(job, served);
    }

    /// Takes a job out.
    pub fn leave(&self, job: &JobId) -> Option<Served> {
        self.lock().remove(job)
    }

    /// A job.
    pub fn get(&self, job: &JobId) -> Option<Served> {
        self.lock().get(job).cloned()
    }

    /// All jobs, by their ids.
    pub fn all(&self) -> Vec<(JobId, Served)> {
        let all = self.lock();
        all.iter()
            .map(|(job, served)| (job.clone(), served.clone()))
            .collect()
    }

    /// Whether a job is over, by the word of the workload manager. Without an answer it is not, and what is served here is not.
    pub fn is_over(&self, job: &JobId, manager: &dyn WorkloadManager) -> bool {
        if self.get(job).is_some() {
            return false;
        }
        let record = manager.job(job);
        record.is_ok_and(|record| record.is_none_or(|record| record.state == JobState::Over))
    }

    /// The way to a job's thread.
    pub fn sender(&self, job: &JobId) -> Option<SyncSender<Event>> {
        Some(self.lock().get(job)?.to.clone())
    }
}

impl Places for Jobs {
    /// Asked only when the other side's credential was opened: it is root's. It comes again if it is refused.
    fn of(&self, job: &JobId, list: u32) -> Option<Place> {
        if *job == service() {
            return Some(place(0));
        }
        let place = self.lock().get(job).map(|served| served.place.clone());
        // Which nodes a step has is told when it starts here.
        if place.is_none() && list == 0 {
            let _ = self.unknown.try_send(job.clone());
        }
        place.filter(|place| place.list == list)
    }
}

/// What a mutex guards, also after a panic elsewhere: what is in these is replaced as a whole.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
