//! What Slurm's records give to jobs, and what becomes of jobs that cannot have it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use gpuos_core::job::JobId;
use gpuos_core::mig::carve::Event;
use gpuos_model::gpu_index::{NvmlIndex, NvmlSet};
use gpuos_model::mig::MigPlacement;
use gpuos_workload::PoolRoom;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::{Job, JobState, Unplaced};

use super::endings::End;
use super::steps::{RefusalReply, Waiting, refuse};
use super::{Mig, boards};
use crate::event_loop::effect::{Effect, Effects, Then};
use crate::event_loop::facts::Facts;
use crate::mig::choose::{self, Beside};
use crate::mig::pool::{Grant, Pool};
use crate::queue::Task as WorkloadTask;

/// What is known of jobs by Slurm's records.
#[derive(Default)]
pub struct Records {
    /// What was given to jobs, and is made for them.
    pub grants: BTreeMap<JobId, Grant>,
    /// Bits that Slurm had given to jobs when it told all of them, with or without a grant.
    pub granted: BTreeMap<JobId, u64>,
    /// Jobs that ran then and did not end.
    pub running: BTreeSet<JobId>,
    /// Whether it would requeue these jobs.
    pub requeue: BTreeMap<JobId, bool>,
    /// Jobs whose slices are chosen here and have no room now, and why.
    pub no_room: BTreeMap<JobId, String>,
    /// When it was asked for all jobs of the node; it has told them.
    pub asked: Option<Instant>,
}

impl Mig {
    /// Slurm told all jobs of the node, for which it was asked then.
    pub fn jobs_received(
        &mut self,
        jobs: &[Job],
        asked: Instant,
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        if self.division.pool().is_none() && self.records.grants.is_empty() {
            return;
        }
        self.records.asked = Some(asked);
        let here = jobs.iter().filter(|job| job.is_running());
        let given = here.clone().map(|job| match job.unreadable.is_empty() {
            true => (job.id.clone(), self.has(&self.known(job, on), on).0),
            false => {
                let before = self.records.granted.get(&job.id);
                (job.id.clone(), before.copied().unwrap_or_default())
            }
        });
        self.records.granted = given.collect();
        let stays = here.filter(|job| job.state != JobState::Ending);
        self.records.running = stays.map(|job| job.id.clone()).collect();
        let requeue = jobs.iter().map(|job| (job.id.clone(), job.may_requeue));
        self.records.requeue = requeue.collect();
        // Slurm is asked about these by themselves: this answer may be older than their steps.
        let waits: BTreeSet<JobId> = self
            .steps
            .waiting
            .iter()
            .map(|one| one.id.job.clone())
            .collect();
        let mut there: BTreeSet<JobId> = jobs.iter().map(|job| job.id.clone()).collect();
        there.extend(waits.iter().cloned());
        let grants = self.records.grants.keys().cloned();
        let gone: Vec<JobId> = grants.filter(|job| !there.contains(job)).collect();
        for job in gone {
            self.release(&job, on, fx);
        }
        self.steps.only(&there);
        self.records.no_room.retain(|job, _| there.contains(job));
        for job in jobs.iter().filter(|job| !waits.contains(&job.id)) {
            self.record(job, on, fx);
        }
        self.boards.probe_all(on.now, fx);
    }

    /// Slurm told one job; `None`: it knows it no more.
    pub fn job_received(
        &mut self,
        job: &JobId,
        record: Option<&Job>,
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        let late = |one: &Waiting| {
            one.id.job == *job && !one.asked_record && !one.granted && one.failed.is_none()
        };
        if self.steps.waiting.iter().any(late) {
            fx.ask_first(WorkloadTask::Job(job.clone()));
            return;
        }
        if self.endings.has(job) {
            return;
        }
        let here = record.is_some_and(|record| self.record(record, on, fx));
        // Before gpuos.toml is read its GPUs cannot be told from its record: steps with whole ones wait for what the
        // library shows.
        let unread = !self.division.is_configured() && !self.steps.wait_for_slices(job);
        let readable = |record: &Job| record.unreadable.is_empty() && is_here(record, on);
        let waits = unread && record.is_some_and(readable);
        if !here && !waits {
            self.release(job, on, fx);
            let what = match self.steps.wait_for_slices(job) {
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
            self.steps.refuse_steps(job, &why, refuse, fx);
        }
        self.steps.asked_about(job, here, on.now.at);
        self.answer(on, fx);
    }

    /// What a job has here by its record: bits, and MIG-switchable GPUs that it has whole.
    fn has(&self, record: &Job, on: &Facts<'_>) -> (u64, NvmlSet) {
        match self.division.pool() {
            Some(pool) => pool.has(on.node, record),
            None => (record.slices_on(on.node).0, NvmlSet::EMPTY),
        }
    }

    /// A record with the slices that were chosen for its run, where the workload manager has only counted them.
    fn known<'a>(&self, record: &'a Job, on: &Facts<'_>) -> Cow<'a, Job> {
        let grant = self.records.grants.get(&record.id);
        let grant = grant.filter(|grant| grant.restarts == record.restarts);
        match (&record.unplaced, grant, self.division.pool()) {
            (Some(_), Some(grant), Some(pool)) => {
                let chosen = (grant.bits, pool.names(&grant.pieces));
                Cow::Owned(choose::with(record, on.node, chosen))
            }
            _ => Cow::Borrowed(record),
        }
    }

    /// The same with slices that are chosen now, where none were yet and there is room.
    fn placed<'a>(&mut self, record: &'a Job, on: &Facts<'_>) -> Cow<'a, Job> {
        self.records.no_room.remove(&record.id);
        let known = self.known(record, on);
        let (Some(wish), Some(pool)) = (&record.unplaced, self.division.pool()) else {
            return known;
        };
        if matches!(known, Cow::Owned(_)) || !is_here(record, on) {
            return known;
        }
        // A journal that was lost may have left instances of nobody there.
        if let Some(why) = self.unseen(wish, pool) {
            self.records.no_room.insert(record.id.clone(), why);
            return known;
        }
        let others = self.records.grants.iter();
        let others = others.filter(|(job, _)| **job != record.id);
        let others: Vec<&Grant> = others.map(|(_, grant)| grant).collect();
        let nobodys = self.nobodys(pool);
        let beside = Beside {
            others: &others,
            nobodys: &nobodys,
            usable: self.usable(pool, on),
        };
        match choose::choose(pool, wish, beside) {
            Ok(chosen) => Cow::Owned(choose::with(record, on.node, chosen)),
            Err(why) => {
                self.records.no_room.insert(record.id.clone(), why);
                known
            }
        }
    }

    /// Instances of nobody.
    fn nobodys(&self, pool: &Pool) -> Vec<(NvmlIndex, MigPlacement)> {
        let all = pool.gpus.iter();
        all.flat_map(|gpu| self.boards.nobodys(*gpu)).collect()
    }

    /// GPUs of the pool that are in service.
    fn in_service(&self, pool: &Pool, on: &Facts<'_>) -> NvmlSet {
        let is_out = |gpu: NvmlIndex| {
            let number = self.division.number(gpu);
            on.health.gpu(number).is_some() && on.health.state(number).is_out()
        };
        let gpus = pool.gpus.iter().copied();
        gpus.filter(|gpu| !is_out(*gpu)).collect()
    }

    /// Those of them that show what is on them.
    fn usable(&self, pool: &Pool, on: &Facts<'_>) -> NvmlSet {
        let gpus = self.in_service(pool, on).iter();
        gpus.filter(|gpu| matches!(self.boards.view(*gpu), Some(Ok(_))))
            .collect()
    }

    /// What the pool has room for; `None`: it is not known yet.
    pub fn room(&self, on: &Facts<'_>) -> Option<PoolRoom> {
        if !self.division.is_configured() {
            return None;
        }
        let Some(pool) = self.division.pool() else {
            return Some(PoolRoom::default());
        };
        let others: Vec<&Grant> = self.records.grants.values().collect();
        let nobodys = self.nobodys(pool);
        let beside = Beside {
            others: &others,
            nobodys: &nobodys,
            usable: self.usable(pool, on),
        };
        choose::room(pool, beside, self.in_service(pool, on)).ok()
    }

    /// Why slices cannot be chosen yet: a GPU on which they are to be shows nothing of itself.
    fn unseen(&self, wish: &Unplaced, pool: &Pool) -> Option<String> {
        let mut own = pool.gpus.iter().filter(|gpu| wish.gpus.contains(**gpu));
        own.find_map(|gpu| match self.boards.view(*gpu) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(format!("GPU {gpu}: {why}")),
            None => Some(format!("GPU {gpu} has not been looked at yet")),
        })
    }

    /// A job whose record cannot be read keeps its grant for as long as it runs on here, and gets none. Returns whether it
    /// has one.
    fn unread(&mut self, record: &Job, on: &Facts<'_>, fx: &mut Effects) -> bool {
        let here = is_here(record, on);
        let grant = self.records.grants.get(&record.id);
        let keeps = here && grant.is_some_and(|grant| grant.restarts == record.restarts);
        if !keeps {
            self.release(&record.id, on, fx);
            return false;
        }
        self.steps.granted(&record.id);
        true
    }

    /// Compares a job's grant with its record. Returns whether the job has slices here, or MIG-switchable GPUs whole.
    fn record(&mut self, record: &Job, on: &Facts<'_>, fx: &mut Effects) -> bool {
        let job = &record.id;
        if !record.unreadable.is_empty() {
            return self.unread(record, on, fx);
        }
        if record.unplaced.is_some() && self.division.pool().is_none() && is_here(record, on) {
            // Before gpuos.toml is read, or where it has no pool: which of the two its steps are told.
            return true;
        }
        let placed = self.placed(record, on);
        let record = &*placed;
        if self.records.no_room.contains_key(job) {
            let old = self.records.grants.get(job);
            if old.is_some_and(|old| old.restarts != record.restarts) {
                // What its run before had is not kept until there is room.
                self.release(job, on, fx);
            }
            let any = record
                .unplaced
                .as_ref()
                .is_some_and(|wish| wish.gpus.is_empty());
            let pool = self.division.pool().filter(|_| any);
            let all = pool.map(|pool| pool.gpus.clone()).unwrap_or_default();
            let named = record.unplaced.iter().flat_map(|wish| wish.gpus.iter());
            for gpu in named.chain(all) {
                if matches!(self.boards.view(gpu), Some(Err(_))) && !self.boards.is_probing(gpu) {
                    self.boards.probe(gpu, on.now, fx);
                }
            }
            // Its steps wait until there is some, or are told why not.
            return true;
        }
        let (bits, whole) = self.has(record, on);
        let here = is_here(record, on);
        let old = self.records.grants.get(job);
        // A record without numbers says nothing about the slices of a job that still runs as it did.
        let nothing = bits == 0 && whole.is_empty();
        let runs_on = |old: &Grant| here && old.restarts == record.restarts;
        let same = old.is_some_and(|old| {
            let as_before = nothing || (bits, whole) == (old.bits, old.whole);
            runs_on(old) && as_before
        });
        // Its GPUs have left `switchable`, and it has them as before, with what was made for it.
        let left = |old: &Grant| old.whole != whole && old.bits & !bits == 0;
        let left = !same && old.is_some_and(|old| runs_on(old) && left(old));
        let known = left && self.division.pool().is_some();
        if let (true, Some(old)) = (known, self.records.grants.get_mut(job)) {
            (old.bits, old.whole) = (bits, whole);
            fx.save();
        }
        let same = same || left;
        if !same {
            self.release(job, on, fx);
        }
        if !here || (nothing && !same) {
            return false;
        }
        if !same && !self.grant(record, (bits, whole), on, fx) {
            return true;
        }
        let (waits, ask) = self.steps.of(job);
        if let (Some(grant), true) = (self.records.grants.get_mut(job), waits) {
            grant.wanted |= ask.is_some();
            let mut gpus: BTreeSet<NvmlIndex> =
                grant.pieces.iter().map(|piece| piece.gpu).collect();
            gpus.extend(grant.whole.iter());
            self.steps.granted(job);
            for gpu in gpus {
                self.boards.probe(gpu, on.now, fx);
            }
        }
        true
    }

    /// Gives a job what its record says. Returns whether there was anything to say of it.
    fn grant(
        &mut self,
        record: &Job,
        (bits, whole): (u64, NvmlSet),
        on: &Facts<'_>,
        fx: &mut Effects,
    ) -> bool {
        let (waits, ask) = self.steps.of(&record.id);
        let Some(pool) = self.division.pool() else {
            return false;
        };
        let others = self.records.grants.iter();
        // Who had these slices before has them no more.
        let others = others.filter(|(_, other)| other.bits & bits == 0);
        let others: Vec<_> = others.flat_map(|(_, other)| other.pieces.clone()).collect();
        let pinned = record.required_nodes.iter().any(|node| node == on.node);
        match pool.grant(on.node, record, (ask.as_ref(), &others)) {
            Ok(grant) => {
                let chosen = record.unplaced.is_some();
                let grant = Grant {
                    pinned,
                    chosen,
                    ..grant
                };
                self.granted(&record.id, grant, on, fx);
            }
            // Its whole GPUs are to be had all the same.
            Err(_) if ask.is_none() && waits => {
                let grant = Grant {
                    restarts: record.restarts,
                    requeue: record.may_requeue,
                    whole,
                    pinned,
                    ..Grant::default()
                };
                self.granted(&record.id, grant, on, fx);
            }
            Err(why) if record.unplaced.is_some() => {
                self.denied(&record.id, (&why, refuse), on, fx);
            }
            // It would be so again: the job is not requeued.
            Err(why) if ask.is_some() => self.end(&record.id, (&why, End::Killed), on, fx),
            // Without a step there is nobody to tell, and nothing to be made.
            Err(_) => return false,
        }
        true
    }

    /// Slurm gives a bit to one job: whoever had these before has them no more.
    fn granted(&mut self, job: &JobId, grant: Grant, on: &Facts<'_>, fx: &mut Effects) {
        let others = self.records.grants.iter();
        let others = others.filter(|(other, old)| **other != *job && old.bits & grant.bits != 0);
        let others: Vec<JobId> = others.map(|(other, _)| other.clone()).collect();
        for other in others {
            self.release(&other, on, fx);
        }
        self.records.grants.insert(job.clone(), grant);
        fx.save();
    }

    /// A job is over here.
    fn release(&mut self, job: &JobId, on: &Facts<'_>, fx: &mut Effects) {
        self.steps.released(job);
        if self.records.grants.remove(job).is_none() {
            return;
        }
        for gpu in self.boards.all() {
            self.event(gpu, Event::Release { job: job.clone() }, on, fx);
        }
        fx.save();
    }

    /// A job cannot have its instances now: it is requeued, or ended where that may not be or was so too often.
    pub(super) fn fail(&mut self, job: &JobId, why: &str, on: &Facts<'_>, fx: &mut Effects) {
        if self.endings.has(job) {
            return;
        }
        let grant = self.records.grants.get(job);
        let chosen = grant.is_some_and(|grant| grant.chosen);
        if chosen && !self.runs_with_chosen(job) {
            // Its start is refused, and it is queued again.
            self.denied(job, (why, refuse), on, fx);
            return;
        }
        let Some((requeue, pinned)) = grant.map(|grant| (grant.requeue, grant.pinned)) else {
            // Slurm has not said what the job is.
            self.steps.refuse_steps(job, why, refuse, fx);
            return;
        };
        // What a running job had is gone, whatever the driver says now: nobody else queues or ends the job.
        let away = !chosen && self.is_driver_silent(job, on);
        if away && !requeue {
            // As where a GPU is out of service: it keeps what it has, and only its step does not run.
            self.denied(job, (why, refuse), on, fx);
            return;
        }
        let end = self.endings.failed(job, (requeue, pinned), away);
        self.end(job, (why, end), on, fx);
    }

    /// A job cannot have its instances on a GPU that is out of service. One that may not be requeued keeps what it has: only
    /// its step does not run.
    pub(super) fn withheld(&mut self, job: &JobId, why: &str, on: &Facts<'_>, fx: &mut Effects) {
        let grant = self.records.grants.get(job);
        if grant.is_some_and(|grant| grant.requeue) {
            self.fail(job, why, on, fx);
            return;
        }
        if self.runs_with_chosen(job) {
            // Its grant is all that tells what was chosen for it.
            self.steps.refuse_steps(job, why, refuse, fx);
            return;
        }
        self.denied(job, (why, refuse), on, fx);
    }

    /// Whether a job runs with slices that were chosen here. Only its grant tells which they are.
    pub(super) fn runs_with_chosen(&self, job: &JobId) -> bool {
        let grant = self.records.grants.get(job);
        grant.is_some_and(|grant| grant.chosen && grant.served)
    }

    /// Tells a job's steps why they must not run, and has the job requeued, held or ended.
    fn end(&mut self, job: &JobId, (why, end): (&str, End), on: &Facts<'_>, fx: &mut Effects) {
        let gpus = self.gpus_of(job);
        self.denied(job, (why, super::steps::fail), on, fx);
        self.endings.begin(job, (why, end), gpus, fx);
        fx.push(Effect::Save(Then::MigCounted(job.clone())));
    }

    /// A job does not get its instances: what was made for it goes, and its steps are told.
    fn denied(
        &mut self,
        job: &JobId,
        (why, tell): (&str, RefusalReply),
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        let what = match self.steps.wait_for_slices(job) {
            true => "MIG instances",
            false => "whole GPUs",
        };
        self.release(job, on, fx);
        let text = format!("job {job} does not get its {what}: {why}");
        boards::note(Some(job.clone()), text, on.now, fx);
        self.steps.refuse_steps(job, why, tell, fx);
    }

    /// A failure of a job is on the disk.
    pub fn counted(&mut self, job: &JobId, fx: &mut Effects) {
        self.endings.counted(job, fx);
    }

    /// slurmctld has changed something, or not.
    pub fn acted(&mut self, action: &Action, outcome: &Outcome, fx: &mut Effects) {
        self.endings.acted(action, outcome, fx);
    }

    /// The GPUs on which a job has something, by NVML's index.
    fn gpus_of(&self, job: &JobId) -> NvmlSet {
        let Some(grant) = self.records.grants.get(job) else {
            return NvmlSet::EMPTY;
        };
        let pieces = grant.pieces.iter();
        let gpus = pieces.fold(NvmlSet::EMPTY, |all, piece| all.with(piece.gpu));
        grant.whole.iter().fold(gpus, NvmlSet::with)
    }

    /// Whether the driver says nothing of a job's GPUs: then the job cannot be at fault.
    fn is_driver_silent(&self, job: &JobId, on: &Facts<'_>) -> bool {
        let answers = |gpu: NvmlIndex| {
            let view = self.boards.view(gpu);
            !matches!(view, Some(Err(_)))
        };
        on.gpus.is_unreachable() || !self.gpus_of(job).iter().all(answers)
    }
}

fn is_here(record: &Job, on: &Facts<'_>) -> bool {
    record.is_running() && record.nodes.iter().any(|node| node == on.node)
}
