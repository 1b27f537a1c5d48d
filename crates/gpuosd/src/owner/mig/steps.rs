//! Steps that wait for their instances, and what Slurm's records give to their jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use gpuos_core::limits::Asked;
use gpuos_core::mig::carve::Event;
use gpuos_core::step::StepId;
use gpuos_core::wire::{Code, MigAsk, Reply};
use gpuos_model::gpuset::GpuSet;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::{Job, JobState};

use super::super::{Message, Owner};
use super::mode::Stand;
use crate::desk::refused;
use crate::mig::pool::{Grant, HeldJob};
use crate::queue::{Release, Task as WorkloadTask, Why};

/// A step whose instances are not there by then is told so: the client's own patience ends soon after.
const ANSWER: Duration = Duration::from_secs(40);
/// Slurm is asked whether a job is gone so long after its last step, at first and at most.
const GONE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(15)];
/// A job that could not get its instances more often than that is ended: it would come back for ever.
const REQUEUES: u32 = 3;
/// The GPUs' numbers may be on their way to what gpuos.toml says for so long.
const RENUMBERED: Duration = Duration::from_secs(10);
/// Failures of so many jobs are remembered. Those that were cancelled before they came back are never asked for again.
const FAILURES: usize = 256;

/// A step that waits for its instances, or until its whole GPUs are out of MIG mode.
pub(super) struct Waiting {
    pub(super) id: StepId,
    /// Its GPUs of GRES `gpu`.
    pub(super) gpus: BTreeSet<u8>,
    asked: Asked,
    /// What it wants of slices.
    pub(super) ask: Option<MigAsk>,
    pub(super) since: Instant,
    /// Another step of its job ran here already.
    pub(super) later: bool,
    /// Slurm was asked about its job after the step was reported: an answer to an older question may be of the time
    /// before the job was requeued.
    pub(super) asked_record: bool,
    /// Slurm has said what its job has.
    pub(super) granted: bool,
    /// Why it must not run. Its tasks wait for what becomes of the job: a batch script that fails earlier ends it.
    pub(super) failed: Option<String>,
    reply: SyncSender<Reply>,
}

/// What becomes of a job that cannot have its instances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Requeued,
    /// Until the driver answers again.
    Held,
    Killed,
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
    pub(super) fn task(&self) -> Option<WorkloadTask> {
        let task = || WorkloadTask::Act(self.action.clone(), Why::Rule);
        self.counted.then(task)
    }
}

impl super::Mig {
    /// Whether a job's steps wait for slices, not only for whole GPUs.
    fn waits_for_slices(&self, job: u32) -> bool {
        let mut own = self
            .waiting
            .iter()
            .filter(|one| one.id.job == job)
            .peekable();
        own.peek().is_none() || own.any(|one| one.ask.is_some())
    }
}

impl Owner {
    /// A step starts whose job asked for slices, or has GPUs whole that move.
    pub(in super::super) fn mig_step(
        &mut self,
        id: StepId,
        (gpus, asked): (BTreeSet<u8>, Asked),
        ask: Option<MigAsk>,
        reply: SyncSender<Reply>,
    ) {
        let steps = self.mig.steps.entry(id.job).or_default();
        // While another step of the job runs here, what Slurm said before its first step still holds. A batch script is
        // the first step, and a number that comes again is that of a job that was requeued.
        let first = steps.is_empty() || id.is_special() || steps.contains_key(&id.step);
        steps.insert(id.step, ask.as_ref().map_or(0, bits_of));
        if first {
            self.mig.served.remove(&id.job);
        }
        let granted = !first && self.mig.grants.contains_key(&id.job);
        let failed = self.mig.endings.get(&id.job).map(|one| one.why.clone());
        // Where GPUs are whole already, nothing is to be asked.
        if !granted && failed.is_none() && ask.is_some() {
            self.queue.push_first(WorkloadTask::Job(id.job));
        }
        self.mig.asks.remove(&id.job);
        let since = self.now();
        for gpu in self.mig_whole_of(&gpus).unwrap_or_default() {
            self.mig_look(gpu);
        }
        // Reported once more, it waits with its new connection.
        self.mig.waiting.retain(|one| one.id != id);
        self.mig.waiting.push(Waiting {
            id,
            gpus,
            asked,
            ask,
            since,
            later: !first,
            asked_record: false,
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
            self.mig.served.remove(&id.job);
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
        self.mig.told = Some(self.jobs_asked);
        let here = jobs.iter().filter(|job| job.is_running());
        let given = here.clone().map(|job| match job.unreadable.is_empty() {
            true => (job.id, self.mig_has(job).0),
            false => {
                let before = self.mig.given.get(&job.id);
                (job.id, before.copied().unwrap_or_default())
            }
        });
        self.mig.given = given.collect();
        let stays = here.filter(|job| job.state != JobState::Ending);
        self.mig.running = stays.map(|job| job.id).collect();
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
        self.mig.served.retain(|job, _| there.contains(job));
        for job in jobs.iter().filter(|job| !waits.contains(&job.id)) {
            self.mig_record(job);
        }
        self.mig_look_all();
    }

    /// Slurm is being asked about a job: the answer is for the steps that wait now.
    pub(in super::super) fn mig_asked(&mut self, job: u32) {
        let own = self.mig.waiting.iter_mut().filter(|one| one.id.job == job);
        own.for_each(|one| one.asked_record = true);
    }

    /// Slurm told one job; `None`: it knows it no more.
    pub(in super::super) fn mig_job(&mut self, job: u32, record: Option<&Job>) {
        let late = |one: &Waiting| {
            one.id.job == job && !one.asked_record && !one.granted && one.failed.is_none()
        };
        if self.mig.waiting.iter().any(late) {
            self.queue.push_first(WorkloadTask::Job(job));
            return;
        }
        if self.mig.endings.contains_key(&job) {
            return;
        }
        let here = record.is_some_and(|record| self.mig_record(record));
        if !here {
            self.mig_release(job);
            let what = match self.mig.waits_for_slices(job) {
                true => "any memory slice",
                false => "these GPUs",
            };
            let why = match record.map(|record| &record.unreadable[..]) {
                Some(why) if !why.is_empty() => format!(
                    "what Slurm has given job {job} cannot be read, for a text of the job looks like a part of its \
                     record ({why}): give the job a name and paths of one line"
                ),
                _ => format!("Slurm has not given job {job} {what} of this node"),
            };
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

    /// What a job has here by its record: bits, and GPUs that move and that it has whole.
    fn mig_has(&self, record: &Job) -> (u64, GpuSet) {
        match &self.mig.pool {
            Some(pool) => pool.has(&self.node, record),
            None => (record.slices_on(&self.node).0, GpuSet::EMPTY),
        }
    }

    /// A job whose record cannot be read keeps its grant for as long as it runs on here, and gets none. Returns whether it
    /// has one.
    fn mig_unread(&mut self, record: &Job) -> bool {
        let here = record.is_running() && record.nodes.contains(&self.node);
        let grant = self.mig.grants.get(&record.id);
        let keeps = here && grant.is_some_and(|grant| grant.restarts == record.restarts);
        if !keeps {
            self.mig_release(record.id);
            return false;
        }
        let own = self.mig.waiting.iter_mut();
        own.filter(|one| one.id.job == record.id)
            .for_each(|one| one.granted = true);
        true
    }

    /// Compares a job's grant with its record. Returns whether the job has slices here, or GPUs whole that move.
    fn mig_record(&mut self, record: &Job) -> bool {
        let job = record.id;
        if !record.unreadable.is_empty() {
            return self.mig_unread(record);
        }
        let (bits, whole) = self.mig_has(record);
        let here = record.is_running() && record.nodes.contains(&self.node);
        let old = self.mig.grants.get(&job);
        // A record without numbers says nothing about the slices of a job that still runs as it did.
        let nothing = bits == 0 && whole.is_empty();
        let runs_on = |old: &Grant| here && old.restarts == record.restarts;
        let same = old.is_some_and(|old| {
            let as_before = nothing || (bits, whole) == (old.bits, old.whole);
            runs_on(old) && as_before
        });
        // Its GPUs have left `moving`, and it has them as before, with what was made for it.
        let left = |old: &Grant| old.whole != whole && old.bits & !bits == 0;
        let left = !same && old.is_some_and(|old| runs_on(old) && left(old));
        let known = left && self.mig.pool.is_some();
        if let (true, Some(old)) = (known, self.mig.grants.get_mut(&job)) {
            (old.bits, old.whole) = (bits, whole);
            self.save(None);
        }
        let same = same || left;
        if !same {
            self.mig_release(job);
        }
        if !here || (nothing && !same) {
            return false;
        }
        let mut own = self.mig.waiting.iter().filter(|one| one.id.job == job);
        let waits = own.clone().next().is_some();
        let ask = own.find_map(|one| one.ask.clone());
        if !same {
            let Some(pool) = &self.mig.pool else {
                return true;
            };
            let others = self.mig.grants.iter();
            // Who had these slices before has them no more.
            let others = others.filter(|(_, other)| other.bits & bits == 0);
            let others: Vec<_> = others.flat_map(|(_, other)| other.pieces.clone()).collect();
            let pinned = record.required_nodes.contains(&self.node);
            match pool.grant(&self.node, record, (ask.as_ref(), &others)) {
                Ok(grant) => self.mig_granted(job, Grant { pinned, ..grant }),
                // Its whole GPUs are to be had all the same.
                Err(_) if ask.is_none() && waits => {
                    let grant = Grant {
                        restarts: record.restarts,
                        requeue: record.may_requeue,
                        whole,
                        pinned,
                        ..Grant::default()
                    };
                    self.mig_granted(job, grant);
                }
                // It would be so again: the job is not requeued.
                Err(why) if ask.is_some() => self.mig_end(job, &why, End::Killed),
                // Without a step there is nobody to tell, and nothing to be made.
                Err(_) => return true,
            }
        }
        if let (Some(grant), true) = (self.mig.grants.get_mut(&job), waits) {
            grant.wanted |= ask.is_some();
            let mut gpus: BTreeSet<u8> = grant.pieces.iter().map(|piece| piece.gpu).collect();
            gpus.extend(grant.whole.iter().filter_map(|gpu| u8::try_from(gpu).ok()));
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
            self.mig.served.remove(&job);
        }
        if self.mig.grants.remove(&job).is_none() {
            return;
        }
        for gpu in self.mig.carvers.keys().copied().collect::<Vec<u8>>() {
            self.mig_event(gpu, Event::Release { job });
        }
        self.save(None);
    }

    /// A job cannot have its instances now: it is requeued, or ended where that may not be or was so too often. Where the
    /// driver is away, it is held instead of ended: nothing is wrong with the job.
    pub(super) fn mig_fail(&mut self, job: u32, why: &str) {
        if self.mig.endings.contains_key(&job) {
            return;
        }
        let grant = self.mig.grants.get(&job);
        let Some((requeue, pinned)) = grant.map(|grant| (grant.requeue, grant.pinned)) else {
            // Slurm has not said what the job is.
            self.mig_refuse(job, why, refuse);
            return;
        };
        let away = self.mig_driver_away(job);
        if away && !requeue {
            // As where a GPU is out of service: it keeps what it has, and only its step does not run.
            self.mig_denied(job, why, refuse);
            return;
        }
        let failures = self.mig.failures.entry(job).or_default();
        *failures = failures.saturating_add(1);
        let often = *failures > REQUEUES;
        while self.mig.failures.len() > FAILURES {
            self.mig.failures.pop_first();
        }
        let end = match requeue {
            true if away && (often || pinned) => End::Held,
            true if !often => End::Requeued,
            _ => End::Killed,
        };
        self.mig_end(job, why, end);
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

    /// Tells a job's steps why they must not run, and has the job requeued, held or ended.
    fn mig_end(&mut self, job: u32, why: &str, end: End) {
        let gpus = self.mig_gpus_of(job);
        self.mig_denied(job, why, fail);
        let action = match end {
            End::Requeued => {
                self.releases.retain(|release| release.job != job);
                self.releases.push(Release::of(job, true));
                Action::Requeue { job }
            }
            End::Held => {
                self.mig.failures.remove(&job);
                // Before slurmctld is asked: one that is held is never forgotten.
                self.mig.held_jobs.insert(job, HeldJob { gpus });
                // What is most to the point stands first: a driver's own words may be long.
                let why = format!("it starts when NVIDIA's driver answers there again ({why})");
                Action::Hold { job, why }
            }
            End::Killed => {
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
        self.mig_held_acted(action, outcome);
        let (Action::Requeue { job } | Action::Hold { job, .. } | Action::Kill { job, step: None }) =
            action
        else {
            return;
        };
        let Some(ending) = self.mig.endings.get_mut(job) else {
            return;
        };
        match outcome {
            _ if ending.action != *action => {}
            Outcome::Away(_) | Outcome::NotYet(_) => {}
            Outcome::Refused(_)
                if matches!(action, Action::Requeue { .. } | Action::Hold { .. }) =>
            {
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
        let what = match self.mig.waits_for_slices(job) {
            true => "MIG instances",
            false => "whole GPUs",
        };
        self.mig_release(job);
        self.mig_note(
            Some(job),
            format!("job {job} does not get its {what}: {why}"),
        );
        self.mig_refuse(job, why, tell);
    }

    /// Tells the steps of a job that they must not run.
    pub(super) fn mig_refuse(&mut self, job: u32, why: &str, tell: fn(&Waiting, &str)) {
        let waiting = std::mem::take(&mut self.mig.waiting);
        let (own, others) = waiting.into_iter().partition(|one| one.id.job == job);
        self.mig.waiting = others;
        for one in own {
            tell(&one, why);
        }
    }

    /// Answers the steps whose instances are there, or whose GPUs are whole, and those that have waited too long.
    pub(super) fn mig_answer(&mut self) {
        self.mig_modes();
        let now = self.now();
        let mut late = Vec::new();
        let mut ready = Vec::new();
        for one in std::mem::take(&mut self.mig.waiting) {
            if let Some(why) = &one.failed {
                fail(&one, why);
                continue;
            }
            match self.mig_stand(&one) {
                Stand::Ready(variables) => ready.push((one, variables)),
                Stand::Refused(why) => refuse(&one, &why),
                Stand::Waits => {
                    let is_late = now.duration_since(one.since) >= ANSWER;
                    if is_late && one.ask.is_none() && self.mig.served.contains_key(&one.id.job) {
                        // Its job runs: only this step does not.
                        refuse(&one, &self.mig_late(one.id.job));
                        continue;
                    }
                    if is_late {
                        late.push(one.id.job);
                    }
                    self.mig.waiting.push(one);
                }
            }
        }
        if ready.iter().any(|(one, _)| !one.gpus.is_empty()) {
            self.tell_limits();
        }
        for (one, variables) in ready {
            let whole = self.mig_whole_of(&one.gpus).unwrap_or_default();
            if !whole.is_empty() {
                self.mig.served.entry(one.id.job).or_default().extend(whole);
            }
            self.mig_succeeded(one.id.job);
            self.prepare_with(one.id.job, one.gpus, one.asked, (variables, one.reply));
        }
        for job in late {
            let why = self.mig_late(job);
            self.mig_fail(job, &why);
        }
    }

    /// How far a step is.
    fn mig_stand(&self, one: &Waiting) -> Stand {
        let Some(pool) = &self.mig.pool else {
            return match (&one.ask, self.mig.configured) {
                // gpuos.toml cannot be read, or not yet: what moves is as it was when it could be.
                (None, false) if self.mig_is_whole_as_known(one) => Stand::Ready(BTreeMap::new()),
                (_, false) => Stand::Waits,
                (Some(_), true) => {
                    let node = &self.node;
                    Stand::Refused(format!("gpuos.toml has no [[mig.pool]] with node {node}"))
                }
                (None, true) => Stand::Ready(BTreeMap::new()),
            };
        };
        if let Some(why) = self.mig_misnamed(&one.gpus) {
            // After a change of gpuos.toml, who the GPUs are is looked up anew first.
            let waits = self.now().duration_since(one.since) < RENUMBERED;
            return if waits {
                Stand::Waits
            } else {
                Stand::Refused(why)
            };
        }
        let whole = self.mig_whole_of(&one.gpus);
        let is_whole =
            |gpu: &u8| self.mig_is_whole(*gpu, one.since) || self.mig_was_whole(one, *gpu);
        if !whole.is_some_and(|gpus| gpus.iter().all(is_whole)) {
            return Stand::Waits;
        }
        let Some(ask) = &one.ask else {
            return Stand::Ready(BTreeMap::new());
        };
        let job = one.id.job;
        let grant = self.mig.grants.get(&job).filter(|_| one.granted);
        let ready = |grant: &&Grant| self.mig.ready(job, grant).is_some();
        let Some(grant) = grant.filter(ready) else {
            return Stand::Waits;
        };
        let asked = bits_of(ask);
        let variables = pool.environment(grant, asked & grant.bits, |piece| {
            self.mig.uuid(piece.gpu, |claim| {
                (claim.job, claim.window) == (job, piece.window)
            })
        });
        if !variables.values().all(String::is_empty) {
            return Stand::Ready(variables);
        }
        // Of a job with whole nodes, these may all be of GPUs that are whole for it, or nobody asked for them.
        let gpus = grant.whole.iter().filter_map(|gpu| u8::try_from(gpu).ok());
        let whole = gpus.fold(0, |all, gpu| all | pool.all_bits(gpu));
        let step = one.id.step;
        match (grant.pieces.is_empty(), ask.request.is_empty()) {
            _ if asked & whole != 0 => Stand::Ready(BTreeMap::new()),
            (true, true) => Stand::Ready(BTreeMap::new()),
            (true, false) => Stand::Refused(format!(
                "step {step} asks for {}, and job {job} has whole nodes and has asked for no instances: submit it with \
                 --gpuos-mig",
                ask.request
            )),
            (false, _) => Stand::Refused(format!(
                "none of the memory slices that step {step} names is one that Slurm gave to job {job}"
            )),
        }
    }

    /// Why something takes so long.
    fn mig_late(&self, job: u32) -> String {
        let files = self
            .mig
            .files
            .values()
            .find_map(|files| files.trouble.clone());
        let troubles = ["slurmctld", "disk", "library", "config"];
        let trouble = troubles
            .iter()
            .find_map(|of| self.troubles.get(of).cloned());
        let why = self.mig_in_the_way().or(files).or(trouble);
        let why = why.unwrap_or_else(|| "see `gpuos mig` on the node".into());
        let what = match self.mig.waits_for_slices(job) {
            true => "they were not there",
            false => "its GPUs were not out of MIG mode",
        };
        format!("{what} within {} s: {why}", ANSWER.as_secs())
    }
}

/// The bits that a step names.
fn bits_of(ask: &MigAsk) -> u64 {
    let bits = ask.slices.iter().map(|bit| usize::from(*bit));
    bits.fold(GpuSet::EMPTY, GpuSet::with).0
}

/// Its tasks end at once. Slurm may have another run of the job on this node next: a slurmctld that was started anew
/// and has lost this one drains the node where it still meets it.
pub(super) fn refuse(one: &Waiting, why: &str) {
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
