//! MIG instances of jobs: what [`gpuos_core::mig::carve`] is told, and what it says.
//!
//! Only what Slurm's own record gives to a job is made for it. A job's grant is its bits of GRES `gpuos` and the instances
//! that they are; it stands until Slurm says that the job is gone ([`records`]).
//!
//! - [`division`]: which GPUs are divided, or can be,
//! - [`boards`]: these GPUs, one by one,
//! - [`steps`]: steps that wait,
//! - [`switches`]: changes of MIG mode that they wait for,
//! - [`endings`]: jobs that cannot have what they were given,
//! - [`memory`], [`health`], [`status`]: how it is told to clients and to the health rules.

mod boards;
mod division;
mod endings;
pub mod health;
mod memory;
mod records;
pub mod status;
mod steps;
mod switches;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpuos_config::gpuos_toml::MigConfig;
use gpuos_core::job::JobId;
use gpuos_core::mig::carve::{Answer, Event};
use gpuos_core::step::StepId;
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::job::Job as Record;

use boards::Boards;
use division::Division;
use endings::Endings;
use records::Records;
use steps::{Steps, Waiting, refuse};
use switches::{Left, Next, Switches};

use super::effect::{Effect, Effects, PollBy};
use super::facts::Facts;
use crate::mig::pool::{Grant, Journal, Pool, held, slices_text, unknown};
use crate::mig::{NotSwitched, Notice, View};
use crate::queue::Task as WorkloadTask;

/// Slurm's jobs are looked at so often while there are grants, and a file that could not be written is tried again.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Where a reset waits for it, instances are counted so often.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// All that is known of MIG.
pub struct Mig {
    division: Division,
    boards: Boards,
    memory: memory::Polls,
    records: Records,
    steps: Steps,
    switches: Switches,
    endings: Endings,
    /// The journal could not be written.
    unsaved: bool,
    times: Times,
}

/// When things are done again.
struct Times {
    /// The daemon's start.
    began: Instant,
    /// When instances were counted for the health rules.
    counted: Option<Instant>,
    /// spank_gpuos could not be told which GPUs are MIG-switchable: when that is tried again.
    publish_again: Option<Instant>,
}

impl Mig {
    /// As it was saved.
    pub fn restore(journal: Journal, now: Instant) -> Mig {
        Mig {
            division: Division::restore(journal.pool, journal.switchable),
            boards: Boards::restore(journal.claims),
            memory: memory::Polls::default(),
            records: Records {
                grants: journal.grants,
                granted: journal.given,
                ..Records::default()
            },
            steps: Steps::default(),
            switches: Switches::default(),
            endings: Endings::restore(journal.failures, journal.held),
            unsaved: false,
            times: Times {
                began: now,
                counted: None,
                publish_again: None,
            },
        }
    }

    /// What is to be saved.
    pub fn journal(&self) -> Journal {
        Journal {
            claims: self.boards.journal(),
            grants: self.records.grants.clone(),
            failures: self.endings.failures().clone(),
            held: self.endings.held().clone(),
            pool: self.division.fixed(),
            switchable: self.division.switchable().clone(),
            given: self.records.granted.clone(),
        }
    }

    /// NVML's index of a GPU of the pool; `None`: it is none.
    pub fn index(&self, number: NodeGpu) -> Option<NvmlIndex> {
        self.division.index(number)
    }

    /// Whether a step has to wait until its GPUs are whole. `asks`: it waits for an answer.
    pub fn concerns(&self, gpus: &[u8], asks: bool) -> bool {
        self.division.concerns(gpus, asks)
    }

    /// The MIG-switchable GPUs of which a job has slices, by its record.
    pub fn on_moving(&self, node: &str, job: &Record) -> Vec<GresGpu> {
        health::on_moving(&self.division, node, job)
    }

    /// Whether Slurm has told all jobs of the node.
    fn is_known(&self) -> bool {
        self.records.asked.is_some()
    }

    /// Slices that jobs hold by Slurm's records, on one GPU.
    fn held(&self, gpu: NvmlIndex) -> Vec<gpuos_core::mig::JobPlacement> {
        let own = |placement| {
            let view = self.boards.view(gpu)?.ok()?;
            let mut on = view.shown.iter().filter(|one| one.placement == placement);
            view.jobs.get(&on.next()?.gi).cloned()
        };
        let mut all = held(&self.records.grants, gpu, own);
        if let Some(pool) = self.division.pool()
            && let Some(first) = pool.first(gpu)
        {
            let slices = pool.geometry.slices();
            let (given, grants) = (&self.records.granted, &self.records.grants);
            all.extend(unknown(given, grants, (first, slices)));
        }
        all
    }

    /// Whether a GPU was whole when it was looked at last, and stays so.
    fn is_shown_whole(&self, gpu: NvmlIndex) -> bool {
        self.boards.is_whole(gpu) == Some(true) && !self.switches.has(gpu)
    }

    /// Whether spank_gpuos could be told which GPUs are MIG-switchable; if not, that is tried again.
    pub fn switchable_file_written(&mut self, why: Option<String>, now: Instant, fx: &mut Effects) {
        self.times.publish_again = why.is_some().then_some(now + LOOK_EVERY);
        fx.trouble("switchable-file", why);
    }

    /// gpuos.toml was read.
    pub fn configured(&mut self, config: &MigConfig, on: &Facts<'_>, fx: &mut Effects) {
        let before = self.division.set(Pool::of(config, on.node));
        let switchable =
            |gpu: &&GresGpu| !self.division.switchable().values().any(|one| one == *gpu);
        for gpu in before.switchable().values().filter(switchable) {
            fx.push(Effect::Undivided((*gpu).into()));
        }
        for gpu in self.division.pool().iter().flat_map(|pool| &pool.gpus) {
            self.boards.know(*gpu);
            fx.push(Effect::KnowPooled(self.division.number(*gpu)));
        }
        let pool = self.division.pool();
        if pool.is_some() && before.pool() != pool {
            fx.poll_scheduler(PollBy::In(Duration::ZERO));
        }
        if !self.division.has_same_gpus(&before) {
            fx.save();
        }
        for gpu in self.boards.all() {
            self.boards.write_files(gpu, self.division.pool(), fx);
            self.boards.probe(gpu, on.now, fx);
        }
        self.answer(on, fx);
    }

    /// The thread of a GPU has done something.
    pub fn on_notice(&mut self, gpu: NvmlIndex, told: Notice, on: &Facts<'_>, fx: &mut Effects) {
        match told {
            Notice::Changed => {
                self.memory.changed(gpu, &self.boards);
                self.boards.probe(gpu, on.now, fx);
            }
            Notice::Saved(revision, Ok(())) => self.event(gpu, Event::Saved(revision), on, fx),
            // Nothing is done before the journal is on the disk: it is written again.
            Notice::Saved(_, Err(_)) => self.unsaved = true,
            Notice::Done(answer) => {
                if let Answer::Refused { why } = &answer {
                    tracing::warn!(gpu = u8::from(gpu), "the driver refused: {why}");
                }
                self.memory.made(gpu, &answer);
                self.event(gpu, Event::Done(answer), on, fx);
                self.boards.probe_if_requested(gpu, on.now, fx);
            }
            Notice::Shown(view) => self.shown(gpu, view, on, fx),
            Notice::Memory(memory, load) => self.memory.on_answer(gpu, (memory, load), on.now.at),
            Notice::Mode(turned, told) => self.turned(gpu, turned, told, on, fx),
            Notice::Files(layout, written) => self.boards.files_written(gpu, layout, written),
        }
    }

    /// After each of these: what is wrong is told, and steps are answered.
    pub fn finish(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        fx.trouble("slices", self.boards.files_trouble());
        fx.trouble("switchable", self.division.misnumbered(on.gpus));
        fx.trouble("mig", self.boards.unfit());
        self.answer(on, fx);
    }

    fn shown(
        &mut self,
        gpu: NvmlIndex,
        view: Result<Box<View>, String>,
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        let switchable = self.division.switchable().contains_key(&gpu);
        let shown = view.as_ref().ok().map(|view| view.shown.clone());
        self.boards.shown(gpu, view, switchable, (on.now, fx));
        if let Some(shown) = shown.filter(|_| self.is_known()) {
            let held = self.held(gpu);
            let pool = self.division.pool();
            let foreign = pool.map(|pool| pool.foreign).unwrap_or_default();
            self.boards.repeat_if_calling(gpu);
            let seen = Event::Seen {
                shown,
                held,
                foreign,
            };
            self.event(gpu, seen, on, fx);
        }
        let count = health::count(gpu, (&self.division, &self.boards), on.health);
        if let Some(event) = count {
            fx.push(Effect::Rules(event));
        }
        // Once the rules have said whether the GPU is in service.
        fx.push(Effect::Carve(gpu));
    }

    /// Has made on a GPU what steps wait for.
    pub fn carve(&mut self, gpu: NvmlIndex, on: &Facts<'_>, fx: &mut Effects) {
        let (unfit, whole) = match self.boards.view(gpu) {
            Some(Ok(view)) => (view.unfit.clone(), view.whole),
            Some(Err(why)) => (Some(format!("GPU {gpu}: {why}")), false),
            None => return,
        };
        let switching = self.switches.has(gpu);
        let whole = whole && unfit.is_none();
        let mut switch = false;
        let out = health::out(gpu, &self.division, on.health);
        let wanted = self.records.grants.iter();
        let wanted = wanted.filter(|(_, grant)| grant.wanted);
        let wanted: Vec<(JobId, Grant)> = wanted
            .map(|(job, grant)| (job.clone(), grant.clone()))
            .collect();
        for (job, grant) in wanted {
            let own = grant.pieces.iter().filter(|piece| piece.gpu == gpu);
            for piece in own {
                if self.boards.is_claimed(&job, piece) {
                    continue;
                }
                if let Some(why) = &out {
                    self.withheld(&job, why, on, fx);
                    break;
                }
                if let Some(why) = &unfit {
                    self.fail(&job, why, on, fx);
                    break;
                }
                if whole || switching {
                    switch |= whole;
                    break;
                }
                let carve = Event::Carve {
                    job: job.clone(),
                    profile: piece.profile,
                    placement: piece.placement,
                };
                self.event(gpu, carve, on, fx);
            }
        }
        if switch {
            self.switches.want(gpu, true, on.now.at);
        }
    }

    /// Tells the step function of a GPU.
    fn event(&mut self, gpu: NvmlIndex, event: Event, on: &Facts<'_>, fx: &mut Effects) {
        let pool = self.division.pool();
        for (job, why) in self.boards.step((gpu, event), pool, on.now, fx) {
            let who = self.boards.users(gpu, self.records.grants.get(&job));
            self.fail(&job, &format!("GPU {gpu}: {why}{who}"), on, fx);
        }
    }

    /// Has NVML asked what it shows of a GPU.
    pub fn probe(&mut self, gpu: NvmlIndex, on: &Facts<'_>, fx: &mut Effects) {
        self.boards.probe(gpu, on.now, fx);
    }

    /// A step has ended.
    pub fn ended(&mut self, id: &StepId, on: &Facts<'_>) {
        self.steps.ended(id, on.now.at);
    }

    /// slurmctld is being asked about a job.
    pub fn job_asked(&mut self, job: &JobId) {
        self.steps.job_asked(job);
    }

    /// Time went by.
    pub fn tick(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        let now = on.now.at;
        if self
            .times
            .publish_again
            .take_if(|due| now >= *due)
            .is_some()
        {
            fx.ask(WorkloadTask::Config);
        }
        if self.boards.all().is_empty() && self.steps.waiting.is_empty() {
            return;
        }
        if on.gpus.polled().is_some() && !on.gpus.is_unreachable() {
            let ready = |gpu| {
                let answers = matches!(self.boards.view(gpu), Some(Ok(_)));
                answers || health::out(gpu, &self.division, on.health).is_some()
            };
            self.endings.let_go(ready, now, fx);
        }
        let unsaved = std::mem::take(&mut self.unsaved);
        for gpu in self.boards.all() {
            self.event(gpu, Event::Tick, on, fx);
            if unsaved {
                self.boards.save(gpu, fx);
            }
        }
        if self.division.renews(on.gpus, now, self.times.began) {
            fx.push(Effect::Renumber);
        }
        self.boards.tick(on.now, fx);
        self.probe_unconfigured(on, fx);
        self.memory.tick(&self.boards, on.interval, now, fx);
        self.count_again(on, fx);
        if !self.records.grants.is_empty() || !self.is_known() {
            fx.poll_scheduler(PollBy::AfterLast(LOOK_EVERY));
        }
        if on.may_ask {
            for job in self.steps.due(now) {
                fx.ask_first(WorkloadTask::Job(job));
            }
            self.endings.ask_again(fx);
        }
        self.finish(on, fx);
    }

    /// Looks again at the GPUs that wait for a reset.
    fn count_again(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        let late = |at: Instant| on.now.at.duration_since(at) >= COUNT_EVERY;
        if !self.times.counted.is_none_or(late) {
            return;
        }
        self.times.counted = Some(on.now.at);
        for gpu in self.boards.all() {
            if health::waits_for_reset(gpu, &self.division, on.health) {
                self.boards.probe(gpu, on.now, fx);
            }
        }
    }

    /// Looks at MIG-switchable GPUs while gpuos.toml cannot be read: nothing else asks for that.
    fn probe_unconfigured(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        let waits = self.steps.waiting.iter().any(|one| one.ask.is_none());
        if !waits || self.division.pool().is_some() {
            return;
        }
        for gpu in self.division.switchable().keys() {
            if !self.boards.is_probing(*gpu) {
                self.boards.probe(*gpu, on.now, fx);
            }
        }
    }

    /// Has GPUs turned that steps wait for.
    fn switch_modes(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        let mut asks = Vec::new();
        let mut wants = BTreeSet::new();
        let waiting = self.steps.waiting.iter();
        for one in waiting.filter(|one| one.failed.is_none()) {
            let whole = self.division.whole_of(&one.gpus, on.gpus);
            for gpu in whole.unwrap_or_default() {
                if self.boards.mode_since(gpu, one.since) == Some(true) {
                    wants.insert(gpu);
                    asks.extend((!one.granted && !one.asked_record).then_some(one.id.job.clone()));
                }
            }
        }
        for job in asks {
            fx.ask_first(WorkloadTask::Job(job));
        }
        for gpu in wants {
            self.switches.want(gpu, false, on.now.at);
        }
        for gpu in self.switches.gpus() {
            let Some(wanted) = self.switches.wanted(gpu) else {
                continue;
            };
            let facts = self.switch_facts(gpu, wanted, on);
            let next = self.switches.step(gpu, &facts, on.now.at);
            self.follow(gpu, next, on, fx);
        }
    }

    /// What a change of a GPU depends on; `wanted`: which, and since when records count for it.
    fn switch_facts(
        &self,
        gpu: NvmlIndex,
        (divided, records): (bool, Instant),
        on: &Facts<'_>,
    ) -> switches::Facts {
        let waiting = self.wait_for(gpu, divided, on);
        let granted = |job: &&JobId| {
            let mut own = self.steps.waiting.iter().filter(|one| one.id.job == **job);
            own.any(|one| one.granted)
        };
        let lacks = |job: &&JobId| {
            let grant = self.records.grants.get(job);
            !grant.is_some_and(|grant| grant.whole.contains(gpu))
        };
        switches::Facts {
            is_on: self.boards.mode_since(gpu, records),
            unknown: self.division.pool().is_none() || on.gpus.found().is_empty(),
            wrong: self.division.wrong(gpu, on.gpus),
            records: self.records.asked,
            may_ask: on.may_ask,
            jobs_pending: !waiting.iter().all(|job| granted(&job)),
            not_allocated: waiting
                .iter()
                .filter(granted)
                .filter(lacks)
                .cloned()
                .collect(),
            others: self.others(gpu, divided, on),
            running: self.records.running.clone(),
            left: self.left(gpu),
            waiting,
        }
    }

    /// Jobs that wait for a change.
    fn wait_for(&self, gpu: NvmlIndex, divided: bool, on: &Facts<'_>) -> BTreeSet<JobId> {
        if divided {
            let grants = self.records.grants.iter();
            let lacks = grants
                .filter(|(_, grant)| grant.wanted)
                .filter(|(job, grant)| {
                    let mut own = grant.pieces.iter().filter(|piece| piece.gpu == gpu);
                    own.any(|piece| !self.boards.is_claimed(job, piece))
                });
            return lacks.map(|(job, _)| job.clone()).collect();
        }
        let has = |one: &&Waiting| {
            let own = self.division.whole_of(&one.gpus, on.gpus);
            one.failed.is_none() && own.unwrap_or_default().contains(&gpu)
        };
        let waiting = self.steps.waiting.iter().filter(has);
        waiting.map(|one| one.id.job.clone()).collect()
    }

    /// Jobs that have a GPU as the other kind, by Slurm's records.
    fn others(&self, gpu: NvmlIndex, divided: bool, on: &Facts<'_>) -> BTreeSet<JobId> {
        let Some(pool) = self.division.pool() else {
            return BTreeSet::new();
        };
        if divided {
            let number = self.division.switchable().get(&gpu);
            let whole = number.map(|number| on.jobs.on(*number));
            return whole.into_iter().flatten().collect();
        }
        let bits = pool.all_bits(gpu);
        let grants = self.records.grants.iter();
        let grants = grants.map(|(job, grant)| (job, grant.bits));
        let given = self.records.granted.iter().map(|(job, bits)| (job, *bits));
        let own = grants.chain(given).filter(|(_, own)| own & bits != 0);
        own.map(|(job, _)| job.clone()).collect()
    }

    /// What is left on a GPU.
    fn left(&self, gpu: NvmlIndex) -> Left {
        let claimed = !self.boards.claims(gpu).is_empty();
        let first = match self.boards.view(gpu) {
            Some(Ok(view)) => view.shown.first(),
            _ => None,
        };
        match first {
            Some(one) if !claimed => {
                let slices = slices_text(one.placement);
                Left::OfNobody(format!(
                    "GPU {gpu}: GPU instance {} in memory slices {slices} was made by nobody that gpuos knows and stays",
                    one.gi
                ))
            }
            None if !claimed && !self.boards.calling(gpu) => Left::Nothing,
            _ => Left::OfJobs,
        }
    }

    /// Does what is next for a change.
    fn follow(&mut self, gpu: NvmlIndex, next: Next, on: &Facts<'_>, fx: &mut Effects) {
        match next {
            Next::Wait => {}
            Next::AskJobs => fx.ask_first(WorkloadTask::Jobs(on.jobs.mark())),
            Next::Refuse(jobs) => {
                for job in jobs {
                    let why = format!("Slurm has not given GPU {gpu} to job {job}");
                    self.steps.refuse_steps(&job, &why, refuse, fx);
                }
            }
            Next::Turn(divided) => {
                fx.push(Effect::Mig(gpu, crate::mig::Task::Mode(divided)));
            }
            Next::Probe => self.boards.probe(gpu, on.now, fx),
            Next::Keep(why) => self.keep(gpu, &why, on, fx),
        }
    }

    /// A GPU does not change: who waits for it is told.
    fn keep(&mut self, gpu: NvmlIndex, why: &str, on: &Facts<'_>, fx: &mut Effects) {
        let Some(divided) = self.switches.over(gpu) else {
            return;
        };
        for job in self.wait_for(gpu, divided, on) {
            self.fail(&job, why, on, fx);
        }
        self.boards.probe(gpu, on.now, fx);
    }

    /// The driver has changed a mode, or not.
    fn turned(
        &mut self,
        gpu: NvmlIndex,
        divided: bool,
        told: Result<(), NotSwitched>,
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        self.switches.turned(gpu);
        match told {
            Ok(()) => {
                self.switches.over(gpu);
                self.boards.turned(gpu, divided);
                let what = if divided {
                    "is in MIG mode"
                } else {
                    "is whole"
                };
                boards::note(None, format!("GPU {gpu} {what} now"), on.now, fx);
                self.boards.probe(gpu, on.now, fx);
            }
            Err(NotSwitched::Used(why)) => {
                let state = if divided { "on" } else { "off" };
                let why = format!("GPU {gpu}: its MIG mode cannot be turned {state}: {why}");
                let next = self.switches.held(gpu, why, on.now.at);
                self.follow(gpu, next, on, fx);
            }
            Err(NotSwitched::Refused(why)) => self.keep(gpu, &format!("GPU {gpu}: {why}"), on, fx),
        }
    }
}
