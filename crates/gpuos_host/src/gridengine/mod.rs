//! Grid Engine as the workload manager of an exec host, for gpuos_mover. Prolog and epilog tell which jobs with checkpoints begin and end
//! here; what they have not told, and whether it still holds, sge_qmaster is asked.

mod ask;

use core::time::Duration;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gpuos_core::job::JobId;
use gpuos_core::wire::{MomJob, MomReport};
use gpuos_wlm::gridengine::task::Task;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::{Job, JobState};
use gpuos_workload::node::NodeRecord;
use gpuos_workload::numbering::GpuNumbering;
use gpuos_workload::{Holders, Told, WorkloadManager};

use crate::Machine;

/// Where gpuos.toml lies.
const FOLDER: &str = "/etc/gpuos";
/// sge_qmaster is asked so often whether a job is still here: an epilog that did not run told nothing.
const LOOK: Duration = Duration::from_secs(20);
/// It is asked so often about a job of which another host speaks, and so long after one another.
const TRIES: u32 = 4;
const AGAIN: Duration = Duration::from_secs(2);

/// Has sge_qmaster remember that a job ran on a host: its next run asks that one for its checkpoints.
///
/// # Errors
/// It does not note it: a sentence.
pub fn remember(machine: &dyn Machine, job: &JobId, host: &str) -> Result<(), String> {
    ask::remember(machine, job, host).map_err(|why| why.words().into())
}

/// A task as sge_qmaster has it, with the host on which it runs; `None`: it is not known any more.
///
/// # Errors
/// It does not answer, or the name is none of a task.
pub fn whereabouts(machine: &dyn Machine, job: &JobId) -> Result<Option<Job>, Outcome> {
    let Some(task) = ask::task(machine, job)? else {
        return Ok(None);
    };
    let host = match task.since {
        Some(_) => ask::host(machine, job, &task)?,
        None => None,
    };
    Ok(Some(record(job, &task, host.as_deref())))
}

/// An exec host.
pub struct Execd {
    node: String,
    machine: Arc<dyn Machine + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Jobs that run here.
    here: BTreeMap<JobId, Held>,
    /// Jobs whose epilog ran here: sge_qmaster may have them here for a moment longer.
    ended: BTreeMap<JobId, Ended>,
    /// How often prolog or epilog has told something.
    words: u64,
}

#[derive(Clone)]
struct Held {
    record: Job,
    /// When sge_qmaster had it so.
    seen: Instant,
    /// Which word of a prolog's it is by.
    word: u64,
}

/// The end of a run.
struct Ended {
    /// Which run.
    run: u32,
    /// Which word of an epilog's it is by.
    word: u64,
}

impl State {
    /// The next word of a prolog's or an epilog's.
    fn word(&mut self) -> u64 {
        self.words += 1;
        self.words
    }

    /// Whether prolog or epilog has told of a job since there were so many words: what sge_qmaster was asked before may be older than that.
    fn is_newer(&self, job: &JobId, words: u64) -> bool {
        let began = self.here.get(job).map_or(0, |held| held.word);
        let ended = self.ended.get(job).map_or(0, |ended| ended.word);
        began.max(ended) > words
    }
}

impl Execd {
    /// The host, by its name.
    pub fn new(node: &str, machine: Arc<dyn Machine + Send + Sync>) -> Execd {
        Execd {
            node: node.into(),
            machine,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job begins here.
    fn begins(&self, told: &MomJob) {
        let task = Task {
            user: told.user.clone(),
            uid: told.uid,
            gid: 0,
            since: u32::try_from(told.run).ok(),
            may_rerun: told.may_rerun != Some(false),
            asked: None,
            hosts: Vec::new(),
        };
        let mut state = self.lock();
        let held = Held {
            record: record(&told.job, &task, Some(&self.node)),
            seen: Instant::now(),
            word: state.word(),
        };
        state.ended.remove(&told.job);
        state.here.insert(told.job.clone(), held);
    }

    /// A run of a job has ended here; 0: its epilog does not say which one, and it is the one that is here. One that is late, of a run before
    /// that, changes nothing.
    fn ends(&self, job: &JobId, run: u64) {
        let mut state = self.lock();
        let run = u32::try_from(run).ok().filter(|run| *run != 0);
        let here = state.here.get(job).map(|held| held.record.restarts);
        let Some(run) = run.or(here) else {
            return;
        };
        if here.is_some_and(|here| here > run) {
            return;
        }
        let ended = Ended {
            run,
            word: state.word(),
        };
        state.here.remove(job);
        state.ended.insert(job.clone(), ended);
    }

    /// How many words prolog and epilog have told so far.
    fn words(&self) -> u64 {
        self.lock().words
    }

    /// What sge_qmaster says of a job is what counts from now on, unless prolog or epilog has told of it since the question, before which there
    /// were so many `words`: then it is as these told.
    fn note(&self, job: &JobId, found: Option<Job>, words: u64) -> Option<Job> {
        let mut state = self.lock();
        let newer = state.is_newer(job, words);
        if newer && let Some(held) = state.here.get(job) {
            return Some(held.record.clone());
        }
        let Some(mut record) = found else {
            state.here.remove(job);
            state.ended.remove(job);
            return None;
        };
        let here = record.is_running() && record.nodes.contains(&self.node);
        let ended = state.ended.get(job);
        let over = ended.is_some_and(|ended| ended.run >= record.restarts);
        if here && !over {
            let held = Held {
                record: record.clone(),
                seen: Instant::now(),
                word: 0,
            };
            state.here.insert(job.clone(), held);
            return Some(record);
        }
        state.here.remove(job);
        if here {
            record.state = JobState::Ending;
            record.nodes.clear();
        } else if !newer {
            state.ended.remove(job);
        }
        Some(record)
    }
}

/// A task as gpuos has jobs.
fn record(job: &JobId, task: &Task, host: Option<&str>) -> Job {
    let state = match task.since.and(host) {
        Some(_) => JobState::Running,
        None => JobState::Waiting,
    };
    Job {
        id: job.clone(),
        user: task.user.clone(),
        uid: task.uid,
        state,
        state_word: if state == JobState::Running {
            "r"
        } else {
            "qw"
        }
        .into(),
        nodes: host.into_iter().map(String::from).collect(),
        may_requeue: task.may_rerun,
        restarts: task.since.unwrap_or_default(),
        started_at: task.since.map(u64::from),
        ..Job::default()
    }
}

impl WorkloadManager for Execd {
    fn act(&self, action: &Action) -> Outcome {
        let what = match action {
            Action::Requeue { job } => format!("job {job} is started again by qmod -rj"),
            _ => "gpuos changes nothing in Grid Engine".into(),
        };
        Outcome::Refused(what)
    }

    fn node(&self) -> Result<NodeRecord, Outcome> {
        Ok(NodeRecord {
            name: self.node.clone(),
            ..NodeRecord::default()
        })
    }

    fn jobs(&self) -> Result<Vec<Job>, Outcome> {
        let state = self.lock();
        let records = state.here.values().map(|held| held.record.clone());
        Ok(records.collect())
    }

    fn job(&self, job: &JobId) -> Result<Option<Job>, Outcome> {
        let (held, words) = {
            let state = self.lock();
            (state.here.get(job).cloned(), state.words)
        };
        if let Some(held) = &held
            && held.seen.elapsed() < LOOK
        {
            return Ok(Some(held.record.clone()));
        }
        match whereabouts(&*self.machine, job) {
            Ok(found) => Ok(self.note(job, found, words)),
            // Without an answer it is as prolog and epilog told.
            Err(why) => match self.lock().here.get(job) {
                Some(held) => Ok(Some(held.record.clone())),
                None => Err(why),
            },
        }
    }

    fn job_anywhere(&self, job: &JobId) -> Result<Option<Job>, Outcome> {
        let mut tried = 1;
        loop {
            let words = self.words();
            match whereabouts(&*self.machine, job) {
                // Who asks has a program that waits, and does not ask again.
                Err(_) if tried < TRIES => std::thread::sleep(AGAIN),
                Err(why) => return Err(why),
                Ok(found) => {
                    // A run that began elsewhere is the end of one here.
                    self.note(job, found.clone(), words);
                    return Ok(found);
                }
            }
            tried += 1;
        }
    }

    fn holders(&self, job: &JobId) -> Result<Holders, Outcome> {
        let Some(task) = ask::task(&*self.machine, job)? else {
            return Ok(Holders::default());
        };
        let hosts = ask::exec_hosts(&*self.machine, &task.hosts)?;
        Ok(Holders::of(hosts))
    }

    fn local_folder(&self) -> Option<PathBuf> {
        Some(Path::new(FOLDER).to_path_buf())
    }

    fn numbering(&self) -> Result<GpuNumbering, String> {
        Err("Grid Engine numbers no GPUs".into())
    }

    fn counts_runs(&self) -> bool {
        false
    }

    fn daemon(&self) -> &'static str {
        "sge_execd"
    }

    /// A job with hosts begins here, one without has ended here: that run, where its epilog knows it.
    fn told(&self, report: &MomReport) -> Option<Told> {
        for job in &report.jobs {
            if job.hosts.is_empty() {
                self.ends(&job.job, job.run);
                continue;
            }
            self.begins(job);
        }
        Some(Told::default())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
