//! What becomes of jobs that cannot have their instances: requeued, held or ended.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_model::gpu_index::{NvmlIndex, NvmlSet};
use gpuos_workload::action::{Action, Outcome};

use crate::event_loop::effect::{Effect, Effects};
use crate::mig::pool::HeldJob;
use crate::queue::{Release, Task as WorkloadTask, Why};

/// A job that could not get its instances more often than that is ended: it would come back for ever.
const REQUEUES: u32 = 3;
/// Failures of so many jobs are remembered. Those that were cancelled before they came back are never asked for again.
const FAILURES: usize = 256;
/// Slurm is told so often to let jobs go that it does not let go yet.
const LET_GO_EVERY: Duration = Duration::from_secs(5);

/// What becomes of a job that cannot have its instances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It comes back.
    Requeued,
    /// Until the driver answers again.
    Held,
    /// It ends.
    Killed,
}

/// What slurmctld is to do about a job, until it has answered.
struct Ending {
    action: Action,
    why: String,
    /// The failure is counted on the disk, or cannot be: one that is forgotten would be one more try.
    counted: bool,
}

impl Ending {
    /// What slurmctld is asked, once it may be.
    fn task(&self) -> Option<WorkloadTask> {
        let task = || WorkloadTask::Act(self.action.clone(), Why::Rule);
        self.counted.then(task)
    }
}

/// Jobs that could not get their instances.
#[derive(Default)]
pub struct Endings {
    /// Until slurmctld has answered what becomes of them.
    open: BTreeMap<JobId, Ending>,
    /// How often that was so here, since they last had them.
    failures: BTreeMap<JobId, u32>,
    /// Jobs that are held until the driver answers again.
    held: BTreeMap<JobId, HeldJob>,
    /// When Slurm was told last to let them go.
    let_go: Option<Instant>,
}

impl Endings {
    /// As it was saved.
    pub fn restore(failures: BTreeMap<JobId, u32>, held: BTreeMap<JobId, HeldJob>) -> Endings {
        Endings {
            failures,
            held,
            ..Endings::default()
        }
    }

    /// How often each job could not get its instances.
    pub fn failures(&self) -> &BTreeMap<JobId, u32> {
        &self.failures
    }

    /// Jobs that are held.
    pub fn held(&self) -> &BTreeMap<JobId, HeldJob> {
        &self.held
    }

    /// Whether slurmctld has yet to answer about a job.
    pub fn has(&self, job: &JobId) -> bool {
        self.open.contains_key(job)
    }

    /// Why a job does not have its instances, while slurmctld has not answered.
    pub fn why(&self, job: &JobId) -> Option<String> {
        self.open.get(job).map(|one| one.why.clone())
    }

    /// A job has all that it is to have.
    pub fn succeeded(&mut self, job: &JobId) {
        self.failures.remove(job);
    }

    /// A job that may be requeued has failed once more: what becomes of it. Where the driver is away, it is held instead of
    /// ended, for nothing is wrong with the job; `pinned`: it would come back here.
    pub fn failed(&mut self, job: &JobId, (requeue, pinned): (bool, bool), away: bool) -> End {
        let failures = self.failures.entry(job.clone()).or_default();
        *failures = failures.saturating_add(1);
        let often = *failures > REQUEUES;
        while self.failures.len() > FAILURES {
            self.failures.pop_first();
        }
        match requeue {
            true if away && (often || pinned) => End::Held,
            true if !often => End::Requeued,
            _ => End::Killed,
        }
    }

    /// slurmctld is to requeue, hold or end a job, once that is on the disk.
    pub fn begin(&mut self, job: &JobId, (why, end): (&str, End), gpus: NvmlSet, fx: &mut Effects) {
        let action = match end {
            End::Requeued => {
                fx.tell(job, format!("the job is requeued: {why}"));
                fx.push(Effect::ForgetRelease(job.clone()));
                fx.push(Effect::Release(Release::of(job, true)));
                Action::Requeue { job: job.clone() }
            }
            End::Held => {
                self.failures.remove(job);
                // Before slurmctld is asked: one that is held is never forgotten.
                self.held.insert(job.clone(), HeldJob { gpus });
                // What is most to the point stands first: a driver's own words may be long.
                let why = format!("it starts when NVIDIA's driver answers there again ({why})");
                Action::Hold {
                    job: job.clone(),
                    why,
                }
            }
            End::Killed => {
                fx.tell(job, format!("the job is ended: {why}"));
                self.failures.remove(job);
                Action::Kill {
                    job: job.clone(),
                    step: None,
                }
            }
        };
        let ending = Ending {
            action,
            why: why.to_owned(),
            counted: false,
        };
        self.open.insert(job.clone(), ending);
    }

    /// A failure of a job is on the disk: slurmctld is asked to requeue or end it.
    pub fn counted(&mut self, job: &JobId, fx: &mut Effects) {
        if let Some(ending) = self.open.get_mut(job) {
            ending.counted = true;
            if let Some(task) = ending.task() {
                fx.ask_first(task);
            }
        }
    }

    /// What slurmctld has not done yet is asked for again.
    pub fn ask_again(&self, fx: &mut Effects) {
        for task in self.open.values().filter_map(Ending::task) {
            fx.ask_first(task);
        }
    }

    /// slurmctld answered what becomes of a job. Where it is away, it is asked again.
    pub fn acted(&mut self, action: &Action, outcome: &Outcome, fx: &mut Effects) {
        self.held_acted(action, outcome, fx);
        let (Action::Requeue { job } | Action::Hold { job, .. } | Action::Kill { job, step: None }) =
            action
        else {
            return;
        };
        let Some(ending) = self.open.get_mut(job) else {
            return;
        };
        match outcome {
            _ if ending.action != *action => {}
            Outcome::NoAnswer(_) | Outcome::NotYet(_) => {}
            Outcome::Refused(_)
                if matches!(action, Action::Requeue { .. } | Action::Hold { .. }) =>
            {
                ending.action = Action::Kill {
                    job: job.clone(),
                    step: None,
                };
                if let Some(task) = ending.task() {
                    fx.ask_first(task);
                }
            }
            Outcome::Done(_) | Outcome::Nothing(_) | Outcome::Refused(_) => {
                self.open.remove(job);
            }
        }
    }

    /// The same about a job that is held, or is to be.
    fn held_acted(&mut self, action: &Action, outcome: &Outcome, fx: &mut Effects) {
        let (job, released) = match action {
            Action::Hold { job, .. } => (job.clone(), false),
            Action::LetGo { job } => (job.clone(), true),
            _ => return,
        };
        match outcome {
            Outcome::NoAnswer(_) | Outcome::NotYet(_) => return,
            // Whether it is held, shows when it is to be let go.
            Outcome::Done(_) | Outcome::Nothing(_) if !released => return,
            // Slurm holds a requeued job back for two minutes.
            Outcome::Done(_) => fx.push(Effect::Release(Release::of(&job, false))),
            Outcome::Nothing(_) | Outcome::Refused(_) => {}
        }
        self.held.remove(&job);
    }

    /// Lets jobs go whose GPUs are ready: they answer again, or are out of service, so that Slurm gives the job others.
    pub fn let_go(&mut self, ready: impl Fn(NvmlIndex) -> bool, now: Instant, fx: &mut Effects) {
        let late = |at| now.duration_since(at) >= LET_GO_EVERY;
        if self.held.is_empty() || !self.let_go.is_none_or(late) {
            return;
        }
        self.let_go = Some(now);
        let held = self.held.iter();
        let held = held.filter(|(job, _)| !self.open.contains_key(job));
        let back = held.filter(|(_, held)| held.gpus.iter().all(&ready));
        for (job, _) in back {
            fx.ask(WorkloadTask::Act(
                Action::LetGo { job: job.clone() },
                Why::Rule,
            ));
        }
    }
}
