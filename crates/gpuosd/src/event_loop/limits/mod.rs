//! What is set on whole GPUs for jobs: power limits, clocks, and daemons of MPS; and the steps that wait for it.

mod mps;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpuos_core::health::Sample;
use gpuos_core::job::JobId;
use gpuos_core::limits::{Asked, Effect as Said, Event, Holder, Limits, Mps, MpsEvent, step};
use gpuos_core::wire::Reply;
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::node_gpu::NodeGpu;

use super::client::Client;
use super::effect::{Effect, Effects, PollBy, Quota, Then};
use super::facts::Facts;
use crate::limits::Task;

/// A step that waits for its GPUs is answered within this time or not at all: it does not wait longer itself.
const ANSWER: Duration = Duration::from_secs(30);
/// One that has slices is answered after this, with what is there: without an answer its tasks would not run, and it has
/// waited for the slices already.
const BESIDE_SLICES: Duration = Duration::from_secs(3);
/// While something is set, Slurm is asked so often whether its jobs are still there: a slurmstepd that was
/// killed has told no end.
const LOOK_EVERY: Duration = Duration::from_secs(300);

/// A step whose GPUs are to be set.
#[derive(Debug)]
pub struct Prepare {
    /// Its job.
    pub job: JobId,
    /// Its GPUs of GRES `gpu`.
    pub gpus: BTreeSet<GresGpu>,
    /// What it asked for.
    pub asked: Asked,
    /// What it is told besides: its slices, if it has any.
    pub environment: BTreeMap<String, String>,
    /// It has waited for slices already, or for GPUs to be whole.
    pub waited: bool,
    /// Where the answer goes.
    pub client: Client,
}

/// Power limits, clocks and MPS.
pub struct Settings {
    limits: Limits,
    mps: Mps,
    /// Where folders of MPS are.
    mps_folder: PathBuf,
    /// Steps that wait until the GPUs of their jobs are set, and since when.
    waiting: Vec<(Instant, Prepare)>,
}

impl Settings {
    /// As it was saved.
    pub fn restore(limits: Limits, mps: Mps, mps_folder: PathBuf) -> Settings {
        Settings {
            limits,
            mps,
            mps_folder,
            waiting: Vec::new(),
        }
    }

    /// What is kept of limits and of MPS.
    pub fn state(&self) -> (&Limits, &Mps) {
        (&self.limits, &self.mps)
    }

    /// The jobs that have GPUs whole. Nothing is told before the GPUs are known: nothing could be set or undone.
    pub fn holders(&mut self, holders: Vec<Holder>, on: &Facts<'_>, fx: &mut Effects) {
        if !on.gpus.found().is_empty() {
            self.limits(Event::Jobs(holders.clone()), on, fx);
            self.mps(MpsEvent::Jobs(holders), on, fx);
        }
    }

    /// Tells the step function of limits.
    pub fn limits(&mut self, event: Event, on: &Facts<'_>, fx: &mut Effects) {
        for said in step(&mut self.limits, event, on.now.running_ms, on.now.wall_ms) {
            fx.push(match said {
                Said::Read { gpu } => Effect::Limits(Task::Read(on.gpus.known(gpu.into()))),
                Said::Set { gpu, set } => Effect::Limits(Task::Set(on.gpus.known(gpu.into()), set)),
                Said::Save { revision } => Effect::Save(Then::Limits(revision)),
                Said::Audit(audit) => Effect::Log(audit, Quota::Job),
            });
        }
        self.answer(on, fx);
    }

    /// A poll has shown a GPU: whether its power limit is what was set.
    pub fn shown(&mut self, gpu: NodeGpu, sample: &Sample, on: &Facts<'_>, fx: &mut Effects) {
        // Nothing is set on those of a pool.
        let Some(gpu) = gpu.gres() else {
            return;
        };
        let kept = self.limits.applied().get(&gpu);
        let set = kept.and_then(|kept| kept.power_mw).map(|[_, set]| set);
        match (set, sample.power_limit_mw) {
            (Some(set), Some(shown)) if set == shown => {
                let limit_mw = shown;
                self.limits(Event::Sample { gpu, limit_mw }, on, fx);
            }
            (Some(_), Some(_)) => {
                fx.push(Effect::Limits(Task::ReadLimit(on.gpus.known(gpu.into()))))
            }
            _ => {}
        }
    }

    /// A step waits for the GPUs of its job.
    pub fn prepare(&mut self, one: Prepare, on: &Facts<'_>, fx: &mut Effects) {
        if !one.asked.waits() {
            return fx.reply(one.client, prepared(Vec::new(), one.environment));
        }
        if on.gpus.found().is_empty() {
            let why = "nothing is done yet for the GPUs of this job: NVIDIA's library does not answer gpuosd";
            let notes = vec![why.to_owned()];
            return fx.reply(one.client, prepared(notes, one.environment));
        }
        self.waiting.push((on.now.at, one));
        self.answer(on, fx);
    }

    /// Answers steps whose GPUs are set, and lets those go that have waited too long.
    fn answer(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        for (since, one) in std::mem::take(&mut self.waiting) {
            let waited = on.now.at.duration_since(since);
            let late = one.waited && waited >= BESIDE_SLICES;
            let answer = self.step_reply(&one, on);
            match answer.or_else(|| late.then(|| unsettled(&one))) {
                Some(answer) => fx.reply(one.client, answer),
                None if waited < ANSWER => self.waiting.push((since, one)),
                None => {}
            }
        }
    }

    /// What a step is told, once all is known.
    fn step_reply(&self, one: &Prepare, on: &Facts<'_>) -> Option<Reply> {
        let mut notes = self.limits.job_notes(&one.job)?;
        let mut environment = one.environment.clone();
        if one.asked.mps.is_some() {
            match self.mps_for(one, on)? {
                Ok(variables) => environment.extend(variables),
                Err(note) => notes.push(note),
            }
        }
        Some(prepared(notes, environment))
    }

    /// Time went by.
    pub fn tick(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        self.limits(Event::Tick, on, fx);
        self.mps(MpsEvent::Tick, on, fx);
        if !self.limits.applied().is_empty() || !self.mps.servers().is_empty() {
            fx.poll_scheduler(PollBy::AfterLast(LOOK_EVERY));
        }
    }
}

/// What a step with slices is told whose GPUs are not set in time.
fn unsettled(one: &Prepare) -> Reply {
    let after = BESIDE_SLICES.as_secs();
    let what = match (one.asked.sets(), one.asked.mps.is_some()) {
        (true, true) => {
            "power and clocks of this job's whole GPUs are not set, and MPS is not there"
        }
        (false, true) => "MPS is not there",
        _ => "power and clocks of this job's whole GPUs are not set",
    };
    let notes = vec![format!("{what} after {after} s: the step runs without")];
    prepared(notes, one.environment.clone())
}

fn prepared(notes: Vec<String>, environment: BTreeMap<String, String>) -> Reply {
    Reply::Prepared {
        notes,
        environment,
        failed: None,
    }
}
