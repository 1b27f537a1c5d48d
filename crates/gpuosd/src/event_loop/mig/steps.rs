//! Steps that wait for their instances, or until their whole GPUs are out of MIG mode.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_core::limits::Asked;
use gpuos_core::step::StepId;
use gpuos_core::wire::{Code, MigAsk, Reply};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::gpuset::GpuSet;

use super::{Mig, health};
use crate::event_loop::client::Client;
use crate::event_loop::effect::{Effect, Effects, Starting};
use crate::event_loop::facts::Facts;
use crate::event_loop::limits::Prepare;
use crate::jobs::of_gres;
use crate::mig::pool::Grant;
use crate::queue::Task as WorkloadTask;
use crate::socket_handler::refused;

/// A step whose instances are not there by then is told so: the client's own patience ends soon after.
const ANSWER: Duration = Duration::from_secs(40);
/// Slurm is asked whether a job is gone so long after its last step, at first and at most.
const GONE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(15)];
/// The GPUs' numbers may be on their way to what gpuos.toml says for so long.
const RENUMBERED: Duration = Duration::from_secs(10);

/// A step that waits for its instances, or until its whole GPUs are out of MIG mode.
pub struct Waiting {
    /// The step.
    pub id: StepId,
    /// Its GPUs of GRES `gpu`.
    pub gpus: BTreeSet<GresGpu>,
    asked: Asked,
    /// What it wants of slices.
    pub ask: Option<MigAsk>,
    /// When it was reported.
    pub since: Instant,
    /// Another step of its job ran here already.
    later: bool,
    /// Slurm was asked about its job after the step was reported: an answer to an older question may be of the time
    /// before the job was requeued.
    pub asked_record: bool,
    /// Slurm has said what its job has.
    pub granted: bool,
    /// Why it must not run. Its tasks wait for what becomes of the job: a batch script that fails earlier ends it.
    pub failed: Option<String>,
    client: Client,
}

/// What a step is told.
enum Stand {
    /// Not yet.
    Waits,
    /// Why it never will be.
    Refused(String),
    /// Its variables.
    Ready(BTreeMap<String, String>),
}

/// How a step is told that it must not run.
pub type RefusalReply = fn(&str) -> Reply;

/// Steps of jobs with slices, or with whole MIG-switchable GPUs.
#[derive(Default)]
pub struct Steps {
    /// Those that wait.
    pub waiting: Vec<Waiting>,
    /// Those of jobs with slices that run, and the bits that each was started with.
    running: BTreeMap<JobId, BTreeMap<u32, u64>>,
    /// MIG-switchable GPUs that steps of these jobs have whole, while such steps run.
    served: BTreeMap<JobId, BTreeSet<NvmlIndex>>,
    /// Jobs that Slurm is asked about, when next, and how long after that again.
    asks: BTreeMap<JobId, (Instant, Duration)>,
}

impl Steps {
    /// The steps of a job that run, and the bits that each was started with.
    pub fn running(&self, job: &JobId) -> impl Iterator<Item = (u32, u64)> {
        let steps = self.running.get(job).into_iter().flatten();
        steps.map(|(step, bits)| (*step, *bits))
    }

    /// Whether steps of a job wait, and what they want of slices.
    pub fn of(&self, job: &JobId) -> (bool, Option<MigAsk>) {
        let mut own = self.waiting.iter().filter(|one| one.id.job == *job);
        let waits = own.clone().next().is_some();
        (waits, own.find_map(|one| one.ask.clone()))
    }

    /// Whether a job's steps wait for slices, not only for whole GPUs.
    pub fn wait_for_slices(&self, job: &JobId) -> bool {
        let (waits, ask) = self.of(job);
        !waits || ask.is_some()
    }

    /// A step has come. Returns whether it is the first of its job.
    fn started(&mut self, id: &StepId, bits: u64) -> bool {
        let steps = self.running.entry(id.job.clone()).or_default();
        // While another step of the job runs here, what Slurm said before its first step still holds. A batch script is
        // the first step, and a number that comes again is that of a job that was requeued.
        let first = steps.is_empty() || id.is_special() || steps.contains_key(&id.step);
        steps.insert(id.step, bits);
        if first {
            self.served.remove(&id.job);
        }
        self.asks.remove(&id.job);
        first
    }

    /// A step has ended. After the last one of a job, Slurm is asked whether the job is gone.
    pub fn ended(&mut self, id: &StepId, now: Instant) {
        // Nobody waits for its answer any more.
        self.waiting.retain(|one| one.id != *id);
        let Some(steps) = self.running.get_mut(&id.job) else {
            return;
        };
        steps.remove(&id.step);
        if steps.is_empty() {
            self.running.remove(&id.job);
            self.served.remove(&id.job);
            self.asks.insert(id.job.clone(), (now + GONE[0], GONE[0]));
        }
    }

    /// There are these jobs, and no others.
    pub fn only(&mut self, there: &BTreeSet<JobId>) {
        self.running.retain(|job, _| there.contains(job));
        self.served.retain(|job, _| there.contains(job));
    }

    /// A job is over here; steps of it that wait are of its next run.
    pub fn released(&mut self, job: &JobId) {
        let waiting = &self.waiting;
        if let Some(steps) = self.running.get_mut(job) {
            steps.retain(|step, _| {
                let id = StepId {
                    job: job.clone(),
                    step: *step,
                };
                waiting.iter().any(|one| one.id == id)
            });
            if steps.is_empty() {
                self.running.remove(job);
            }
            self.served.remove(job);
        }
    }

    /// Slurm has said what a job has.
    pub fn granted(&mut self, job: &JobId) {
        let own = self.waiting.iter_mut().filter(|one| one.id.job == *job);
        own.for_each(|one| one.granted = true);
    }

    /// Slurm is being asked about a job: the answer is for the steps that wait now.
    pub fn job_asked(&mut self, job: &JobId) {
        let own = self.waiting.iter_mut().filter(|one| one.id.job == *job);
        own.for_each(|one| one.asked_record = true);
    }

    /// It has told of it; `here`: the job still has something here, and is asked about again.
    pub fn asked_about(&mut self, job: &JobId, here: bool, now: Instant) {
        match self.asks.get_mut(job) {
            Some((due, wait)) if here => {
                *wait = (*wait * 2).min(GONE[1]);
                *due = now + *wait;
            }
            _ => drop(self.asks.remove(job)),
        }
    }

    /// Jobs that Slurm is asked about now.
    pub fn due(&self, now: Instant) -> BTreeSet<JobId> {
        let waits = self.waiting.iter();
        let waits = waits.filter(|one| !one.granted && one.failed.is_none());
        let due = self.asks.iter().filter(|(_, (due, _))| now >= *due);
        waits
            .map(|one| one.id.job.clone())
            .chain(due.map(|(job, _)| job.clone()))
            .collect()
    }

    /// Tells the steps of a job that they must not run.
    pub fn refuse_steps(&mut self, job: &JobId, why: &str, tell: RefusalReply, fx: &mut Effects) {
        let waiting = std::mem::take(&mut self.waiting);
        let (own, others) = waiting.into_iter().partition(|one| one.id.job == *job);
        self.waiting = others;
        for one in own {
            fx.reply(one.client, tell(why));
        }
    }
}

impl Mig {
    /// A step starts whose job asked for slices, or has MIG-switchable GPUs whole.
    pub fn step(&mut self, starting: Starting, on: &Facts<'_>, fx: &mut Effects) {
        let Starting {
            id,
            gpus,
            asked,
            mig: ask,
            client,
            ..
        } = starting;
        let gpus = of_gres(&gpus);
        let first = self.steps.started(&id, ask.as_ref().map_or(0, bits_of));
        let granted = !first && self.records.grants.contains_key(&id.job);
        let failed = self.endings.why(&id.job);
        // Where GPUs are whole already, nothing is to be asked.
        if !granted && failed.is_none() && ask.is_some() {
            fx.ask_first(WorkloadTask::Job(id.job.clone()));
        }
        for gpu in self.division.whole_of(&gpus, on.gpus).unwrap_or_default() {
            self.boards.probe(gpu, on.now, fx);
        }
        // Reported once more, it waits with its new connection.
        self.steps.waiting.retain(|one| one.id != id);
        self.steps.waiting.push(Waiting {
            id,
            gpus,
            asked,
            ask,
            since: on.now.at,
            later: !first,
            asked_record: false,
            granted,
            failed,
            client,
        });
        self.answer(on, fx);
    }

    /// Answers the steps whose instances are there, or whose GPUs are whole, and those that have waited too long.
    pub(super) fn answer(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        self.switch_modes(on, fx);
        let mut late = Vec::new();
        let mut ready = Vec::new();
        for one in std::mem::take(&mut self.steps.waiting) {
            if let Some(why) = &one.failed {
                let reply = fail(why);
                fx.reply(one.client, reply);
                continue;
            }
            match self.stand(&one, on) {
                Stand::Ready(variables) => ready.push((one, variables)),
                Stand::Refused(why) => fx.reply(one.client, refuse(&why)),
                Stand::Waits => {
                    let is_late = on.now.at.duration_since(one.since) >= ANSWER;
                    let served = self.steps.served.contains_key(&one.id.job);
                    let runs = self.runs_with_chosen(&one.id.job);
                    if is_late && ((one.ask.is_none() && served) || runs) {
                        // Its job runs: only this step does not.
                        let reply = refuse(&self.late(&one.id.job, on));
                        fx.reply(one.client, reply);
                        continue;
                    }
                    if is_late {
                        late.push(one.id.job.clone());
                    }
                    self.steps.waiting.push(one);
                }
            }
        }
        if ready.iter().any(|(one, _)| !one.gpus.is_empty()) {
            fx.push(Effect::Holders(health::holders_of_whole(self, on)));
        }
        if ready.iter().any(|(one, _)| one.ask.is_some()) {
            fx.push(Effect::KnowInstances(self.boards.instances()));
        }
        for (one, environment) in ready {
            let job = one.id.job;
            let whole = self.division.whole_of(&one.gpus, on.gpus);
            let whole = whole.unwrap_or_default();
            if !whole.is_empty() {
                self.steps
                    .served
                    .entry(job.clone())
                    .or_default()
                    .extend(whole);
            }
            self.succeeded(&job, fx);
            fx.push(Effect::Prepare(Prepare {
                job,
                gpus: one.gpus,
                asked: one.asked,
                environment,
                waited: true,
                client: one.client,
            }));
        }
        for job in late {
            let why = self.late(&job, on);
            self.fail(&job, &why, on, fx);
        }
    }

    /// A step of a job may run. Its failures are forgotten once the job has all that it is to have here.
    fn succeeded(&mut self, job: &JobId, fx: &mut Effects) {
        let has_all = self.records.grants.get(job).is_some_and(|grant| {
            let mut whole = grant.whole.iter();
            whole.all(|gpu| self.is_shown_whole(gpu)) && self.boards.is_ready(job, grant)
        });
        if has_all {
            self.endings.succeeded(job);
            let grant = self.records.grants.get_mut(job);
            if let Some(grant) = grant.filter(|grant| grant.chosen && !grant.served) {
                grant.served = true;
                fx.save();
            }
        }
    }

    /// How far a step is.
    fn stand(&self, one: &Waiting, on: &Facts<'_>) -> Stand {
        let Some(pool) = self.division.pool() else {
            return match (&one.ask, self.division.is_configured()) {
                // gpuos.toml cannot be read, or not yet: what is MIG-switchable is as it was when it could be.
                (None, false) if self.is_whole_as_known(one, on) => Stand::Ready(BTreeMap::new()),
                (_, false) => Stand::Waits,
                (Some(_), true) => {
                    let node = on.node;
                    Stand::Refused(format!("gpuos.toml has no [[mig.pool]] with node {node}"))
                }
                (None, true) => Stand::Ready(BTreeMap::new()),
            };
        };
        if let Some(why) = self.division.misnamed(&one.gpus, on.gpus) {
            // After a change of gpuos.toml, who the GPUs are is looked up anew first.
            let waits = on.now.at.duration_since(one.since) < RENUMBERED;
            return if waits {
                Stand::Waits
            } else {
                Stand::Refused(why)
            };
        }
        let whole = self.division.whole_of(&one.gpus, on.gpus);
        let is_whole =
            |gpu: &NvmlIndex| self.is_whole(*gpu, one.since) || self.was_whole(one, *gpu);
        if !whole.is_some_and(|gpus| gpus.iter().all(is_whole)) {
            return Stand::Waits;
        }
        let Some(ask) = &one.ask else {
            return Stand::Ready(BTreeMap::new());
        };
        let job = &one.id.job;
        let grant = self.records.grants.get(job).filter(|_| one.granted);
        let ready = |grant: &&Grant| self.boards.is_ready(job, grant);
        let Some(grant) = grant.filter(ready) else {
            return Stand::Waits;
        };
        // Whose slices were chosen here does not know them.
        let asked = match ask.slices.is_empty() {
            true => grant.bits,
            false => bits_of(ask),
        };
        let variables = pool.environment(grant, asked & grant.bits, |piece| {
            self.boards.uuid(piece.gpu, |claim| {
                claim.job == *job && claim.placement == piece.placement
            })
        });
        if !variables.values().all(String::is_empty) {
            return Stand::Ready(variables);
        }
        // Of a job with whole nodes, these may all be of GPUs that are whole for it, or nobody asked for them.
        let gpus = grant.whole.iter();
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

    /// Whether a GPU has been seen whole since then, and stays so.
    fn is_whole(&self, gpu: NvmlIndex, since: Instant) -> bool {
        self.boards.mode_since(gpu, since) == Some(false) && !self.switches.has(gpu)
    }

    /// Whether all GPUs of a step that moved when gpuos.toml could be read last have been seen whole since it came.
    fn is_whole_as_known(&self, one: &Waiting, on: &Facts<'_>) -> bool {
        let own = self.division.whole_of(&one.gpus, on.gpus);
        let own = own.unwrap_or_default();
        let whole = own.iter().all(|gpu| self.is_whole(*gpu, one.since));
        !own.is_empty() && whole && self.division.misnamed(&one.gpus, on.gpus).is_none()
    }

    /// Whether a job has the GPU whole as one of its steps before this one had it: nobody else has changed that since.
    fn was_whole(&self, one: &Waiting, gpu: NvmlIndex) -> bool {
        let served = self.steps.served.get(&one.id.job);
        one.later && served.is_some_and(|gpus| gpus.contains(&gpu)) && self.is_shown_whole(gpu)
    }

    /// Why something takes so long.
    fn late(&self, job: &JobId, on: &Facts<'_>) -> String {
        let troubles = ["slurmctld", "pbs_mom", "disk", "library", "config"];
        let mut troubles = troubles.iter().filter_map(|of| on.troubles.get(of));
        let why = self.records.no_room.get(job).cloned();
        let why = why.or_else(|| self.switches.in_the_way());
        let why = why.or(self.boards.files_trouble());
        let why = why.or_else(|| troubles.next().cloned());
        let why = why.unwrap_or_else(|| "see `gpuos mig` on the node".into());
        let what = match self.steps.wait_for_slices(job) {
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
pub fn refuse(why: &str) -> Reply {
    refused(Code::Forbidden, why.to_owned())
}

/// Its tasks wait for what becomes of their job.
pub fn fail(why: &str) -> Reply {
    Reply::Prepared {
        notes: Vec::new(),
        environment: BTreeMap::new(),
        failed: Some(why.to_owned()),
    }
}
