//! What was chosen for jobs. It outlives the daemon: programs use the GPUs that they were told of, whoever comes and goes meanwhile.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use gpuos_core::job::JobId;
use gpuos_core::wire::MomJob;
use serde::{Deserialize, Serialize};

use super::choose::{Choice, parts};

/// The form of what is saved.
const VERSION: u32 = 1;

/// Where what was chosen for jobs outlives the daemon, and its log.
pub trait ChoiceStore: Send + Sync {
    /// What was saved last; `None`: nothing was.
    ///
    /// # Errors
    /// It cannot be read.
    fn load(&self) -> io::Result<Option<Vec<u8>>>;

    /// Saves, so that after a crash at any point there is what was saved before or this.
    ///
    /// # Errors
    /// It cannot be written.
    fn save(&self, bytes: &[u8]) -> io::Result<()>;

    /// Says in the log what an administrator has to know.
    fn warn(&self, sentence: &str);
}

/// What is saved.
#[derive(Default, Serialize, Deserialize)]
struct Saved {
    version: u32,
    jobs: BTreeMap<JobId, Choice>,
}

/// What a run had that mom has lost, and since when.
struct Lost {
    choice: Choice,
    since: Instant,
}

/// What was chosen for jobs of a host.
#[derive(Default)]
pub(super) struct Choices {
    by_job: BTreeMap<JobId, Choice>,
    /// What runs had that a mom lists no more and of whose end she has said nothing: one that was killed has lost its parts of jobs of several hosts, which
    /// PBS goes on counting. Others have these GPUs last.
    lost: BTreeMap<JobId, Lost>,
    /// Runs whose first program has waited in vain.
    waited: BTreeMap<JobId, u64>,
    store: Option<Box<dyn ChoiceStore>>,
    /// What was chosen is not saved yet.
    unsaved: bool,
    /// Why saving failed last: each reason is in the log once.
    failed: String,
}

impl Choices {
    /// Those that were saved.
    pub(super) fn of(store: Box<dyn ChoiceStore>) -> Choices {
        let read = match store.load() {
            Ok(None) => Ok(BTreeMap::new()),
            Ok(Some(bytes)) => read(&bytes),
            Err(why) => Err(why.to_string()),
        };
        let by_job = read.unwrap_or_else(|why| {
            store.warn(&format!(
                "which GPUs were chosen for jobs of PBS cannot be read ({why}): GPUs are chosen anew for jobs that run"
            ));
            BTreeMap::new()
        });
        Choices {
            by_job,
            store: Some(store),
            ..Choices::default()
        }
    }

    /// What was chosen for this run of a job.
    pub(super) fn of_run(&self, job: &MomJob) -> Option<&Choice> {
        let own = self.by_job.get(&job.job);
        own.filter(|choice| choice.run == job.run)
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = (&JobId, &Choice)> {
        self.by_job.iter()
    }

    /// Notes those that are lost, and forgets what is so for longer than `lingers`.
    pub(super) fn lose(&mut self, is_lost: impl Fn(&JobId, u64) -> bool, lingers: Duration) {
        self.lost.retain(|_, lost| lost.since.elapsed() <= lingers);
        let lost = self
            .by_job
            .iter()
            .filter(|(job, choice)| is_lost(job, choice.run));
        let since = Instant::now();
        let lost = lost.map(|(job, choice)| {
            let choice = choice.clone();
            (job.clone(), Lost { choice, since })
        });
        self.lost.extend(lost);
    }

    /// What runs had that are lost.
    pub(super) fn lost(&self) -> impl Iterator<Item = (&JobId, &Choice)> {
        self.lost.iter().map(|(job, lost)| (job, &lost.choice))
    }

    /// Whether GPUs are to be chosen for a job, and were not yet for this run.
    pub(super) fn lacks(&self, job: &MomJob) -> bool {
        (job.count > 0 || parts(job) > 0) && self.of_run(job).is_none()
    }

    pub(super) fn insert(&mut self, job: &JobId, choice: Choice) {
        self.waited.remove(job);
        self.lost.remove(job);
        self.by_job.insert(job.clone(), choice);
        self.unsaved = true;
    }

    /// Keeps those of which this is true.
    pub(super) fn retain(&mut self, stays: impl Fn(&JobId, u64) -> bool) {
        let before = self.by_job.len();
        self.by_job.retain(|job, choice| stays(job, choice.run));
        self.unsaved |= self.by_job.len() != before;
        self.waited.retain(|job, run| stays(job, *run));
    }

    /// The first program of a run has waited for GPUs in vain: others need not wait, too.
    pub(super) fn has_waited(&mut self, job: &MomJob) {
        self.waited.insert(job.job.clone(), job.run);
    }

    /// Whether a program of a run is worth waiting for.
    pub(super) fn may_wait(&self, job: &MomJob) -> bool {
        self.waited.get(&job.job) != Some(&job.run)
    }

    /// Says something in the log.
    pub(super) fn warn(&self, sentence: &str) {
        if let Some(store) = &self.store {
            store.warn(sentence);
        }
    }

    /// Saves what has changed.
    pub(super) fn save(&mut self) {
        let Some(store) = self.store.as_ref().filter(|_| self.unsaved) else {
            return;
        };
        let saved = Saved {
            version: VERSION,
            jobs: self.by_job.clone(),
        };
        let bytes = serde_json::to_vec(&saved).map_err(io::Error::from);
        match bytes.and_then(|bytes| store.save(&bytes)) {
            Ok(()) => (self.unsaved, self.failed) = (false, String::new()),
            Err(why) => {
                let why = why.to_string();
                if self.failed != why {
                    store.warn(&format!(
                        "which GPUs were chosen for jobs of PBS cannot be saved ({why}): a gpuosd that is started anew would choose others"
                    ));
                }
                self.failed = why;
            }
        }
    }
}

fn read(bytes: &[u8]) -> Result<BTreeMap<JobId, Choice>, String> {
    let saved: Saved = serde_json::from_slice(bytes).map_err(|why| why.to_string())?;
    match saved.version {
        VERSION => Ok(saved.jobs),
        other => Err(format!("it is of version {other}, and not {VERSION}")),
    }
}
