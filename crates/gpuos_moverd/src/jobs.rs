//! The jobs that this node has a part in: which threads serve them, and where they sit.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuos_core::job::JobId;
use gpuos_core::wire::CheckpointJob;
use gpuos_link::session::{Place, Places};
use gpuos_model::hostlist::compress;
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

/// How a job stands of which something is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It runs on this node.
    Here,
    /// It has nodes, in the workload manager's word for that.
    Elsewhere(String, Vec<String>),
    /// It has just ended; whether it begins again is not known yet.
    Ends(String),
    /// It waits to begin, or to begin again: queued, held, requeued.
    Waits(String),
    /// It has ended, and does not come back by itself.
    Over,
    /// The workload manager does not tell, in these words.
    Untold(String),
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Here => f.write_str("it runs on this node"),
            Standing::Elsewhere(word, nodes) => {
                let nodes = compress(nodes.iter().map(String::as_str));
                write!(
                    f,
                    "it has nodes ({word} on {nodes}) and may come back to it"
                )
            }
            Standing::Ends(word) => write!(f, "it ends just now ({word})"),
            Standing::Waits(word) => write!(f, "it waits ({word}) and goes on from it"),
            Standing::Over => f.write_str("it is over"),
            Standing::Untold(why) => write!(
                f,
                "the workload manager does not tell whether it comes back: {why}"
            ),
        }
    }
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
        self.standing(job, manager) == Standing::Over
    }

    /// Whether a job may come back to what is kept of it, by the word of the workload manager.
    pub fn standing(&self, job: &JobId, manager: &dyn WorkloadManager) -> Standing {
        if self.get(job).is_some() {
            return Standing::Here;
        }
        match manager.job(job) {
            Ok(None) => Standing::Over,
            Ok(Some(record)) => match record.state {
                JobState::Over => Standing::Over,
                JobState::Waiting => Standing::Waits(record.state_word),
                JobState::Ending => Standing::Ends(record.state_word),
                _ => Standing::Elsewhere(record.state_word, record.nodes),
            },
            Err(outcome) => Standing::Untold(outcome.words().into()),
        }
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
