//! PBS as the workload manager of a mom's host. Nothing is done to pbs_server, of which root on this host is no manager: what there is
//! is what the hook in this host's mom tells, and what is to be done waits here until it comes again. Only about jobs that mom has not
//! pbs_server may be asked, where that is wanted.

use core::time::Duration;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gpuos_core::job::JobId;
use gpuos_core::wire::{MomJob, MomOrders, MomReport};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::expand;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::Job;
use gpuos_workload::node::NodeRecord;
use gpuos_workload::numbering::GpuNumbering;
use gpuos_workload::{Holders, PoolRoom, Told, WorkloadManager};

use super::FOLDER;
use super::by_server::by_server;
use super::choices::{ChoiceStore, Choices};
use super::state::{State, has};
use crate::Machine;

/// How long it is waited for pbs_server to show what was changed: the hook has to come twice.
const SHOWS: Duration = Duration::from_secs(13);
/// So often pbs_server is asked about a job for another node, and so long after one another.
const TRIES: u32 = 4;
const AGAIN: Duration = Duration::from_secs(2);
/// How long the answer to a hook waits for what follows from what it tells.
const SETTLE: Duration = Duration::from_millis(400);
/// How long the first program of a job waits for its GPUs: pbs_server starts a job when the one before has ended, of which mom tells a little later.
const PATIENCE: Duration = Duration::from_secs(8);

/// A host of PBS.
pub struct Mom {
    node: String,
    state: Mutex<State>,
    changed: Condvar,
    /// How long the first program of a job waits for its GPUs.
    patience: Duration,
    /// By which pbs_server is asked about jobs that mom has not; `None`: it is not asked, and of a job its part on this host counts.
    server: Option<Arc<dyn Machine + Send + Sync>>,
}

impl Mom {
    /// The host, by the name of this node. Which of its GPUs jobs have is chosen here.
    pub fn new(node: &str) -> Mom {
        let state = State {
            chooses: true,
            ..State::default()
        };
        Mom::of(node, state)
    }

    /// The same with a memory of what was chosen.
    pub fn remembering(node: &str, store: Box<dyn ChoiceStore>) -> Mom {
        let state = State {
            chooses: true,
            choices: Choices::of(store),
            ..State::default()
        };
        Mom::of(node, state)
    }

    fn of(node: &str, state: State) -> Mom {
        Mom {
            node: node.into(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            patience: PATIENCE,
            server: None,
        }
    }

    /// The same for a daemon to which jobs have all their hosts, and live on while they wait: what mom has not pbs_server is asked about, by qstat, as
    /// anybody may.
    pub fn with_server(node: &str, machine: Arc<dyn Machine + Send + Sync>) -> Mom {
        Mom {
            server: Some(machine),
            ..Mom::of(node, State::default())
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has something shown by pbs_server.
    fn show(&self, what: &str, change: impl FnOnce(&mut State)) -> Outcome {
        let mut state = self.lock();
        change(&mut state);
        // A GPU that is back is waited for by programs.
        self.changed.notify_all();
        state.awaited += 1;
        let waits = |state: &mut State| !state.is_shown();
        let waited = self.changed.wait_timeout_while(state, SHOWS, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.awaited -= 1;
        match state.is_shown() {
            true => Outcome::Done(format!("pbs_server shows {what}")),
            false => Outcome::NoAnswer(state.silence().unwrap_or_else(|| {
                format!(
                    "pbs_server does not show {what} yet: see the logs of pbs_mom and pbs_server"
                )
            })),
        }
    }

    /// Waits until GPUs are chosen for a job of which the first program is about to start.
    fn place<'a>(&self, mut state: MutexGuard<'a, State>, job: &MomJob) -> MutexGuard<'a, State> {
        let ends = Instant::now() + self.patience;
        while state.waits_for_gpus(job) {
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.choices.has_waited(job);
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            // What it lacked may be known, or free.
            let _ = state.place(&job.job, false);
        }
        state
    }

    /// A job that mom has.
    fn held(&self, state: &State, held: &MomJob) -> Job {
        let mut job = state.job(&self.node, held);
        let hosts = expand(&held.hosts).unwrap_or_default();
        if self.server.is_some() && !hosts.is_empty() {
            job.nodes = hosts;
            job.script_on.clone_from(&held.script_on);
        }
        if self.server.is_some() {
            // Before its end it is saved for a next run: that there may be one has to be known.
            job.may_requeue = held.may_rerun == Some(true);
        }
        job
    }

    fn again(&self, job: &JobId) -> Outcome {
        let mut state = self.lock();
        if let Some(left) = state.left_alone(job) {
            return left;
        }
        state.rerun.entry(job.clone()).or_default();
        self.changed.notify_all();
        Outcome::Done(format!("pbs_mom is told that job {job} has to run again"))
    }

    fn end(&self, job: &JobId) -> Outcome {
        let mut state = self.lock();
        if let Some(left) = state.left_alone(job) {
            return left;
        }
        state.rerun.remove(job);
        state.end.entry(job.clone()).or_default();
        self.changed.notify_all();
        Outcome::Done(format!("pbs_mom is told that job {job} has to end"))
    }
}

impl WorkloadManager for Mom {
    fn act(&self, action: &Action) -> Outcome {
        match action {
            Action::Publish(part) => {
                let what = "which GPUs are out of service";
                self.show(what, |state| state.wanted = Some(part.clone()))
            }
            Action::Drain { reason } => self.show("that this host is offline", |state| {
                state.drain = Some(Some(reason.clone()));
            }),
            Action::Undrain { .. } => self.show("that the host is online again", |state| {
                state.drain = Some(None);
            }),
            Action::Requeue { job } => self.again(job),
            Action::Release { job, .. } | Action::LetGo { job } => {
                match self.lock().jobs.contains_key(job) {
                    true => Outcome::NotYet(format!("job {job} is still here")),
                    false => Outcome::Nothing(format!("PBS starts job {job} by itself")),
                }
            }
            Action::Kill { job, .. } => self.end(job),
            // What its programs say themselves, and gpuosd's log.
            Action::Tell { job, .. } => {
                Outcome::Nothing(format!("PBS has no place in which job {job} is told"))
            }
            Action::Hold { job, .. } => Outcome::Refused(format!(
                "job {job} cannot be held: root on this host is no manager of pbs_server"
            )),
        }
    }

    fn node(&self) -> Result<NodeRecord, Outcome> {
        let state = self.lock();
        if let Some(why) = state.silence() {
            return Err(Outcome::NoAnswer(why));
        }
        let Some(seen) = state.seen() else {
            let why = "pbs_mom has not told yet how pbs_server has the vnode of this host";
            return Err(Outcome::NoAnswer(why.into()));
        };
        let reason = state.drain.clone().flatten();
        let drained = match state.advise {
            true => reason.clone().filter(|_| state.is_shown()),
            false => seen.reason.clone(),
        };
        Ok(NodeRecord {
            name: self.node.clone(),
            drain: drained.map(|told| reason.unwrap_or(told)),
            gpus: vec![(String::new(), state.gpus.undivided().len())],
            published: state.published(seen),
            ..NodeRecord::default()
        })
    }

    fn jobs(&self) -> Result<Vec<Job>, Outcome> {
        let state = self.lock();
        match state.silence() {
            Some(why) => Err(Outcome::NoAnswer(why)),
            None => Ok(state
                .jobs
                .values()
                .map(|held| self.held(&state, held))
                .collect()),
        }
    }

    fn job(&self, job: &JobId) -> Result<Option<Job>, Outcome> {
        let silence = {
            let state = self.lock();
            if let Some(held) = state.jobs.get(job) {
                return Ok(Some(self.held(&state, held)));
            }
            state.silence()
        };
        match (silence, &self.server) {
            (Some(why), _) => Err(Outcome::NoAnswer(why)),
            (None, Some(machine)) => match by_server(&**machine, job)? {
                // It has just come, or goes.
                Some(record) if record.is_running() && record.nodes.contains(&self.node) => Err(
                    Outcome::NoAnswer(format!("pbs_mom has not told of job {job} yet")),
                ),
                record => Ok(record),
            },
            (None, None) => Ok(None),
        }
    }

    fn job_anywhere(&self, job: &JobId) -> Result<Option<Job>, Outcome> {
        let Some(machine) = &self.server else {
            return self.job(job);
        };
        let mut tried = 1;
        loop {
            match by_server(&**machine, job) {
                // Who asks has a program that waits, and does not ask again.
                Err(_) if tried < TRIES => std::thread::sleep(AGAIN),
                answer => return answer,
            }
            tried += 1;
        }
    }

    fn holders(&self, job: &JobId) -> Result<Holders, Outcome> {
        let state = self.lock();
        let former = state.jobs.get(job).map(|held| held.former.clone());
        // Which of them are down pbs_server alone knows: who is asked and does not answer is.
        let nodes = expand(&former.unwrap_or_default()).unwrap_or_default();
        Ok(Holders::of(nodes))
    }

    fn local_folder(&self) -> Option<PathBuf> {
        Some(Path::new(FOLDER).to_path_buf())
    }

    fn numbering(&self) -> Result<GpuNumbering, String> {
        let state = self.lock();
        match state.heard {
            // A guess would take a healthy GPU out of service where another has its number.
            None => Err(state.silence().unwrap_or_default()),
            Some(_) => Ok(GpuNumbering::of_uuids(&state.uuids())),
        }
    }

    fn users_requeue(&self) -> bool {
        // qrerun is for operators.
        false
    }

    fn daemon(&self) -> &'static str {
        "pbs_mom"
    }

    fn advises(&self) -> bool {
        self.lock().advise
    }

    fn knows_whose(&self) -> bool {
        self.lock().heard.is_some()
    }

    fn steps_name_gpus(&self) -> bool {
        false
    }

    fn devices(&self, job: &JobId) -> Result<GpuSet, String> {
        let state = self.lock();
        match (state.jobs.get(job), state.silence()) {
            (Some(held), _) if state.choices.lacks(held) => Err(format!(
                "gpuosd has chosen no GPUs for job {job}, though PBS counts some for it"
            )),
            (Some(held), _) => Ok(has(held, state.choices.of_run(held)).collect()),
            (None, Some(why)) => Err(why),
            (None, None) => Ok(GpuSet::EMPTY),
        }
    }

    fn set_pool_room(&self, room: PoolRoom) {
        self.lock().pool = Some(room);
    }

    fn told(&self, report: &MomReport) -> Option<Told> {
        let mut state = self.lock();
        let awaited = state.awaited > 0 && report.host.is_some();
        let renumbered = state.take(report);
        self.changed.notify_all();
        // A list in several lines has more jobs in one, and waits for nothing.
        if let ([job], false) = (&report.jobs[..], report.all) {
            state = self.place(state, job);
        }
        if awaited && state.is_shown() {
            // Jobs are requeued once a GPU is known to be out, and this hook does not come again for some seconds.
            let waits = |state: &mut State| state.rerun.is_empty() && state.end.is_empty();
            let waited = self.changed.wait_timeout_while(state, SETTLE, waits);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if !report.ended.is_empty() {
            let orders = state.orders_at_end();
            if report.asked {
                state.told_room.clone_from(&orders.room);
            }
            return Some(Told { orders, renumbered });
        }
        let chosen = match report.all {
            true => BTreeMap::new(),
            false => state.chosen(report),
        };
        let orders = MomOrders {
            chosen,
            ..state.orders()
        };
        if report.asked {
            // The last answer to this event: what it says is done.
            let state = &mut *state;
            state.told_room.clone_from(&orders.room);
            for told in state.rerun.values_mut().chain(state.end.values_mut()) {
                *told = told.saturating_add(1);
            }
        }
        Some(Told { orders, renumbered })
    }
}

#[cfg(test)]
#[path = "mom_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "choice_tests.rs"]
mod choice_tests;
