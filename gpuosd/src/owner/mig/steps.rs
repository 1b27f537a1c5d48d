//! Steps that wait for their instances, and what Slurm's records give to their jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use gpuos_core::gpuset::GpuSet;
use gpuos_core::limits::Asked;
use gpuos_core::mig::carve::Event;
use gpuos_core::wire::{Code, MigAsk, Reply, StepId};
use gpuos_host::slurm::Job;
use gpuos_host::slurm::act::{Action, Outcome, SPECIAL_STEPS};

use super::super::{Message, Owner};
use crate::desk::refused;
use crate::mig::pool::Grant;
use crate::queue::{Release, Task as Slurms, Why};

/// A step whose instances are not there by then is told so: the client's own patience ends soon after.
const ANSWER: Duration = Duration::from_secs(40);
/// Slurm is asked whether a job is gone so long after its last step, at first and at most.
const GONE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(15)];
/// A job that could not get its instances more often than that is ended: it would come back for ever.
const REQUEUES: u32 = 3;
/// Failures of so many jobs are remembered. Those that were cancelled before they came back are never asked for again.
const FAILURES: usize = 256;

/// A step that waits for its instances.
pub(super) struct Waiting {
    pub(super) id: StepId,
    gpus: BTreeSet<u8>,
    asked: Asked,
    pub(super) ask: MigAsk,
    since: Instant,
    /// Slurm was asked about its job after the step was reported: an answer to an older question may be of the time
    /// before the job was requeued.
    asked_slurm: bool,
    /// Slurm has said what its job has.
    pub(super) granted: bool,
    /// Why it must not run. Its tasks wait for what becomes of the job: a batch script that fails earlier ends it.
    pub(super) failed: Option<String>,
    reply: SyncSender<Reply>,
}

/// What slurmctld is to do about a job, until it has answered.
pub(super) struct Ending {
    action: Action,
    why: String,
    /// The failure is counted on the disk, or cannot be: one that is forgotten would be one more try.
    counted: bool,
}

impl Ending {
    /// What slurmctld is asked, once it may be.
    pub(super) fn task(&self) -> Option<Slurms> {
        let task = || Slurms::Act(self.action.clone(), Why::Rule);
        self.counted.then(task)
    }
}

impl Owner {
    /// A step starts whose job asked for slices.
    pub(in super::super) fn mig_step(
        &mut self,
        id: StepId,
        (gpus, asked): (BTreeSet<u8>, Asked),
        ask: MigAsk,
        reply: SyncSender<Reply>,
    ) {
        let steps = self.mig.steps.entry(id.job).or_default();
        // While another step of the job runs here, what Slurm said before its first step still holds. A batch script is
        // the first step, and a number that comes again is that of a job that was requeued.
        let first = steps.is_empty() || id.step >= SPECIAL_STEPS || steps.contains_key(&id.step);
        let bits = ask.slices.iter().map(|bit| usize::from(*bit));
        steps.insert(id.step, bits.fold(GpuSet::EMPTY, GpuSet::with).0);
        let granted = !first && self.mig.grants.contains_key(&id.job);
        let failed = self.mig.endings.get(&id.job).map(|one| one.why.clone());
        if !granted && failed.is_none() {
            self.queue.push_first(Slurms::Job(id.job));
        }
        self.mig.asks.remove(&id.job);
        let since = self.now();
        // Reported once more, it waits with its new connection.
        self.mig.waiting.retain(|one| one.id != id);
        self.mig.waiting.push(Waiting {
            id,
            gpus,
            asked,
            ask,
            since,
            asked_slurm: false,
            granted,
            failed,
            reply,
        });
        self.mig_answer();
    }

    /// A step has ended. After the last one of a job, Slurm is asked whether the job is gone.
    pub(in super::super) fn mig_ended(&mut self, id: StepId) {
        // Nobody waits for its answer any more.
        self.mig.waiting.retain(|one| one.id != id);
        let Some(steps) = self.mig.steps.get_mut(&id.job) else {
            return;
        };
        steps.remove(&id.step);
        if steps.is_empty() {
            self.mig.steps.remove(&id.job);
            let due = (self.now() + GONE[0], GONE[0]);
            self.mig.asks.insert(id.job, due);
        }
    }

    /// Slurm told all jobs of the node.
    pub(in super::super) fn mig_jobs(&mut self, jobs: &[Job]) {
        if self.mig.pool.is_none() && self.mig.grants.is_empty() {
            return;
        }
        self.mig.known = true;
        let running = jobs.iter().filter(|job| job.is_running());
        let given = running.map(|job| (job.id, job.slices_on(&self.node).0));
        self.mig.given = given.collect();
        let requeue = jobs.iter().map(|job| (job.id, job.may_requeue));
        self.mig.requeue = requeue.collect();
        // Slurm is asked about these by themselves: this answer may be older than their steps.
        let waits: BTreeSet<u32> = self.mig.waiting.iter().map(|one| one.id.job).collect();
        let mut there: BTreeSet<u32> = jobs.iter().map(|job| job.id).collect();
        there.extend(&waits);
        let grants = self.mig.grants.keys().copied();
        let gone: Vec<u32> = grants.filter(|job| !there.contains(job)).collect();
        for job in gone {
            self.mig_release(job);
        }
        self.mig.steps.retain(|job, _| there.contains(job));
        for job in jobs.iter().filter(|job| !waits.contains(&job.id)) {
            self.mig_record(job);
        }
        self.mig_look_all();
    }

    /// Slurm is being asked about a job: the answer is for the steps that wait now.
    pub(in super::super) fn mig_asked(&mut self, job: u32) {
        let own = self.mig.waiting.iter_mut().filter(|one| one.id.job == job);
        own.for_each(|one| one.asked_slurm = true);
    }

    /// Slurm told one job; `None`: it knows it no more.
    pub(in super::super) fn mig_job(&mut self, job: u32, record: Option<&Job>) {
        let late = |one: &Waiting| {
            one.id.job == job && !one.asked_slurm && !one.granted && one.failed.is_none()
        };
        if self.mig.waiting.iter().any(late) {
            self.queue.push_first(Slurms::Job(job));
            return;
        }
        if self.mig.endings.contains_key(&job) {
            return;
        }
        let here = record.is_some_and(|record| self.mig_record(record));
        if !here {
            self.mig_release(job);
            let why = format!("Slurm has not given job {job} any memory slice of this node");
            self.mig_refuse(job, &why, refuse);
        }
        match self.mig.asks.get_mut(&job) {
            Some((due, wait)) if here => {
                *wait = (*wait * 2).min(GONE[1]);
                *due = (self.ports.steady)() + *wait;
            }
            _ => drop(self.mig.asks.remove(&job)),
        }
        self.mig_answer();
    }

    /// Compares a job's grant with its record. Returns whether the job has slices here.
    fn mig_record(&mut self, record: &Job) -> bool {
        let job = record.id;
        let bits = record.slices_on(&self.node).0;
        let here = record.is_running() && record.nodes.contains(&self.node);
        let old = self.mig.grants.get(&job);
        // A record without numbers says nothing about the slices of a job that still runs as it did.
        let same = old.is_some_and(|old| {
            here && old.restarts == record.restarts && (bits == 0 || bits == old.bits)
        });
        if !same {
            self.mig_release(job);
        }
        if !here || (bits == 0 && !same) {
            return false;
        }
        let asks = |waiting: &&Waiting| waiting.id.job == job;
        let ask = self
            .mig
            .waiting
            .iter()
            .find(asks)
            .map(|one| one.ask.clone());
        if !same {
            let Some(pool) = &self.mig.pool else {
                return true;
            };
            let others = self.mig.grants.iter();
            // Who had these slices before has them no more.
            let others = others.filter(|(_, other)| other.bits & bits == 0);
            let others: Vec<_> = others.flat_map(|(_, other)| other.pieces.clone()).collect();
            match pool.grant(&self.node, record, (ask.as_ref(), &others)) {
                Ok(grant) => self.mig_granted(job, grant),
                // It would be so again: the job is not requeued.
                Err(why) if ask.is_some() => self.mig_end(job, &why, false),
                // Without a step there is nobody to tell, and nothing to be made.
                Err(_) => return true,
            }
        }
        if let (Some(grant), Some(_)) = (self.mig.grants.get_mut(&job), ask) {
            grant.wanted = true;
            let gpus: BTreeSet<u8> = grant.pieces.iter().map(|piece| piece.gpu).collect();
            for waiting in &mut self.mig.waiting {
                waiting.granted |= waiting.id.job == job;
            }
            for gpu in gpus {
                self.mig_look(gpu);
            }
        }
        true
    }

    /// Slurm gives a bit to one job: whoever had these before has them no more.
    fn mig_granted(&mut self, job: u32, grant: Grant) {
        let others = self.mig.grants.iter();
        let others = others.filter(|(other, old)| **other != job && old.bits & grant.bits != 0);
        let others: Vec<u32> = others.map(|(other, _)| *other).collect();
        for other in others {
            self.mig_release(other);
        }
        self.mig.grants.insert(job, grant);
        self.save(None);
    }

    /// A job is over here.
    pub(super) fn mig_release(&mut self, job: u32) {
        let waiting = &self.mig.waiting;
        if let Some(steps) = self.mig.steps.get_mut(&job) {
            steps.retain(|step, _| {
                waiting
                    .iter()
                    .any(|one| one.id == StepId { job, step: *step })
            });
            if steps.is_empty() {
                self.mig.steps.remove(&job);
            }
        }
        if self.mig.grants.remove(&job).is_none() {
            return;
        }
        for gpu in self.mig.carvers.keys().copied().collect::<Vec<u8>>() {
            self.mig_event(gpu, Event::Release { job });
        }
        self.save(None);
    }

    /// A job cannot have its instances now: it is requeued, or ended where that may not be or was so too often.
    pub(super) fn mig_fail(&mut self, job: u32, why: &str) {
        if self.mig.endings.contains_key(&job) {
            return;
        }
        let Some(requeue) = self.mig.grants.get(&job).map(|grant| grant.requeue) else {
            // Slurm has not said what the job is.
            self.mig_refuse(job, why, refuse);
            return;
        };
        let failures = self.mig.failures.entry(job).or_default();
        *failures = failures.saturating_add(1);
        let requeue = requeue && *failures <= REQUEUES;
        while self.mig.failures.len() > FAILURES {
            self.mig.failures.pop_first();
        }
        self.mig_end(job, why, requeue);
    }

    /// A job cannot have its instances on a GPU that is out of service. One that may not be requeued keeps what it has: only
    /// its step does not run.
    pub(super) fn mig_withheld(&mut self, job: u32, why: &str) {
        let requeue = self.mig.grants.get(&job).is_some_and(|grant| grant.requeue);
        if requeue {
            self.mig_fail(job, why);
            return;
        }
        self.mig_denied(job, why, refuse);
    }

    /// Tells a job's steps why they must not run, and has the job requeued or ended.
    fn mig_end(&mut self, job: u32, why: &str, requeue: bool) {
        self.mig_denied(job, why, fail);
        let action = match requeue {
            true => {
                self.releases.retain(|release| release.job != job);
                self.releases.push(Release::of(job, true));
                Action::Requeue { job }
            }
            false => {
                self.mig.failures.remove(&job);
                Action::Kill { job, step: None }
            }
        };
        let ending = Ending {
            action,
            why: why.to_owned(),
            counted: false,
        };
        self.mig.endings.insert(job, ending);
        let to = self.ports.to.clone();
        self.save(Some(Box::new(move |_| {
            let _ = to.send(Message::MigCounted(job));
        })));
    }

    /// A failure of a job is on the disk: slurmctld is asked to requeue or end it.
    pub(in super::super) fn mig_counted(&mut self, job: u32) {
        if let Some(ending) = self.mig.endings.get_mut(&job) {
            ending.counted = true;
            if let Some(task) = ending.task() {
                self.queue.push_first(task);
            }
        }
    }

    /// slurmctld answered what becomes of a job. Where it is away, it is asked again.
    pub(in super::super) fn mig_acted(&mut self, action: &Action, outcome: &Outcome) {
        let (Action::Requeue { job } | Action::Kill { job, step: None }) = action else {
            return;
        };
        let Some(ending) = self.mig.endings.get_mut(job) else {
            return;
        };
        match outcome {
            _ if ending.action != *action => {}
            Outcome::Away(_) | Outcome::NotYet(_) => {}
            Outcome::Refused(_) if matches!(action, Action::Requeue { .. }) => {
                ending.action = Action::Kill {
                    job: *job,
                    step: None,
                };
                if let Some(task) = ending.task() {
                    self.queue.push_first(task);
                }
            }
            Outcome::Done(_) | Outcome::Nothing(_) | Outcome::Refused(_) => {
                self.mig.endings.remove(job);
            }
        }
    }

    /// A job does not get its instances: what was made for it goes, and its steps are told.
    fn mig_denied(&mut self, job: u32, why: &str, tell: fn(&Waiting, &str)) {
        self.mig_release(job);
        self.mig_note(
            Some(job),
            format!("job {job} does not get its MIG instances: {why}"),
        );
        self.mig_refuse(job, why, tell);
    }

    /// Tells the steps of a job that they must not run.
    fn mig_refuse(&mut self, job: u32, why: &str, tell: fn(&Waiting, &str)) {
        let waiting = std::mem::take(&mut self.mig.waiting);
        let (own, others) = waiting.into_iter().partition(|one| one.id.job == job);
        self.mig.waiting = others;
        for one in own {
            tell(&one, why);
        }
    }

    /// Answers the steps whose instances are there, and those that have waited too long.
    pub(super) fn mig_answer(&mut self) {
        let now = self.now();
        let mut late = Vec::new();
        let mut had = Vec::new();
        for mut one in std::mem::take(&mut self.mig.waiting) {
            if let Some(why) = &one.failed {
                fail(&one, why);
                continue;
            }
            let Some(pool) = &self.mig.pool else {
                // gpuos.toml may not have been read yet.
                if !self.mig.configured && now.duration_since(one.since) < ANSWER {
                    self.mig.waiting.push(one);
                } else {
                    let why = format!("gpuos.toml has no [[mig.pool]] with node {}", self.node);
                    refuse(&one, &why);
                }
                continue;
            };
            let grant = self.mig.grants.get(&one.id.job).filter(|_| one.granted);
            if let Some(grant) = grant
                && self.mig.ready(one.id.job, grant).is_some()
            {
                let asked = one.ask.slices.iter().map(|bit| usize::from(*bit));
                let asked = asked.fold(GpuSet::EMPTY, GpuSet::with).0;
                let variables = pool.environment(grant, asked & grant.bits, |piece| {
                    self.mig.uuid(piece.gpu, |claim| {
                        (claim.job, claim.window) == (one.id.job, piece.window)
                    })
                });
                let gpus = std::mem::take(&mut one.gpus);
                if variables.values().all(String::is_empty) {
                    let why = format!(
                        "none of the memory slices that step {} names is one that Slurm gave to job {}",
                        one.id.step, one.id.job
                    );
                    refuse(&one, &why);
                } else {
                    had.push(one.id.job);
                    self.prepare_with(one.id.job, gpus, one.asked, (variables, one.reply));
                }
            } else if now.duration_since(one.since) >= ANSWER {
                late.push(one.id.job);
                self.mig.waiting.push(one);
            } else {
                self.mig.waiting.push(one);
            }
        }
        for job in had {
            self.mig.failures.remove(&job);
        }
        for job in late {
            let why = self.mig_late();
            self.mig_fail(job, &why);
        }
    }

    /// Why something takes so long.
    fn mig_late(&self) -> String {
        let files = self
            .mig
            .files
            .values()
            .find_map(|files| files.trouble.clone());
        let troubles = ["slurmctld", "disk", "library"];
        let trouble = troubles
            .iter()
            .find_map(|of| self.troubles.get(of).cloned());
        let why = files.or(trouble);
        let why = why.unwrap_or_else(|| "see `gpuos mig` on the node".into());
        format!("they were not there within {} s: {why}", ANSWER.as_secs())
    }
}

/// Its tasks end at once. Slurm may have another run of the job on this node next: a slurmctld that was started anew
/// and has lost this one drains the node where it still meets it.
fn refuse(one: &Waiting, why: &str) {
    let _ = one.reply.try_send(refused(Code::Forbidden, why.to_owned()));
}

/// Its tasks wait for what becomes of their job.
fn fail(one: &Waiting, why: &str) {
    let reply = Reply::Prepared {
        notes: Vec::new(),
        environment: BTreeMap::new(),
        failed: Some(why.to_owned()),
    };
    let _ = one.reply.try_send(reply);
}
