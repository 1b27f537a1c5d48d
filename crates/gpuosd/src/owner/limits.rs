//! Power limits and clocks of jobs: what [`gpuos_core::limits`] is told, and what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use gpuos_core::health::Sample;
use gpuos_core::limits::{Asked, Effect, Event, MpsEvent, step};
use gpuos_core::wire::Reply;

use super::{Message, Owner};
use crate::disk::Ack;
use crate::limits::Task;

/// A step that waits for its GPUs is answered within this time or not at all: it does not wait longer itself.
const ANSWER: Duration = Duration::from_secs(30);
/// One that has slices is answered after this, with what is there: without an answer its tasks would not run, and it has
/// waited for the slices already.
const BESIDE_SLICES: Duration = Duration::from_secs(3);
/// While something is set, Slurm is asked so often whether its jobs are still there: a slurmstepd that was
/// killed has told no end.
const LOOK_EVERY: Duration = Duration::from_secs(300);

/// A step that waits until the GPUs of its job are set.
pub(super) struct Waiting {
    job: u32,
    gpus: BTreeSet<u8>,
    asked: Asked,
    /// What the step is told besides: its slices, if it has any.
    environment: BTreeMap<String, String>,
    /// It has waited for slices already, or for GPUs to be whole.
    waited: bool,
    since: Instant,
    reply: SyncSender<Reply>,
}

impl Owner {
    /// Tells which jobs there are. Not before the GPUs are known: nothing could be set or undone.
    pub(super) fn tell_limits(&mut self) {
        if !self.found.is_empty() {
            let holders = self.mig_holders_of_whole();
            self.limits(Event::Jobs(holders.clone()));
            self.mps(MpsEvent::Jobs(holders));
        }
    }

    pub(super) fn limits(&mut self, event: Event) {
        let now = self.now().duration_since(self.began).as_millis() as u64;
        let wall = (self.ports.wall)();
        let mut lines = Vec::new();
        for effect in step(&mut self.limits, event, now, wall) {
            match effect {
                Effect::Read { gpu } => self.set_device(gpu, Task::Read),
                Effect::Set { gpu, set } => self.set_device(gpu, |found| Task::Set(found, set)),
                Effect::Save { revision } => {
                    let to = self.ports.to.clone();
                    let ack: Ack = Box::new(move |told| {
                        let _ = to.send(Message::Limits(Event::Saved { revision, told }));
                    });
                    self.save(Some(ack));
                }
                Effect::Audit(audit) => {
                    let uid = self.user_of(audit.job);
                    if self.is_heard(uid) {
                        self.log(&audit, &mut lines);
                    }
                }
            }
        }
        self.ports.disk.audit(lines);
        self.answer_steps();
    }

    fn set_device(&mut self, gpu: u8, task: impl FnOnce(crate::gpus::Found) -> Task) {
        let found = self.known(gpu);
        if self.ports.limits.send(task(found)).is_err() {
            tracing::error!("the thread for power limits has ended");
        }
    }

    /// A poll has shown a GPU: whether its power limit is what was set.
    pub(super) fn limit_shown(&mut self, gpu: u8, sample: &Sample) {
        let kept = self.limits.kept().get(&gpu);
        let set = kept.and_then(|kept| kept.power_mw).map(|[_, set]| set);
        match (set, sample.power_limit_mw) {
            (Some(set), Some(shown)) if set == shown => {
                let limit_mw = shown;
                self.limits(Event::Sample { gpu, limit_mw });
            }
            (Some(_), Some(_)) => self.set_device(gpu, Task::Look),
            _ => {}
        }
    }

    /// A step waits for the GPUs of its job.
    pub(super) fn prepare(
        &mut self,
        job: u32,
        gpus: BTreeSet<u8>,
        asked: Asked,
        reply: SyncSender<Reply>,
    ) {
        self.prepare_now(job, gpus, asked, (BTreeMap::new(), false, reply));
    }

    /// The same for one that has waited already, with variables that are known.
    pub(super) fn prepare_with(
        &mut self,
        job: u32,
        gpus: BTreeSet<u8>,
        asked: Asked,
        (environment, reply): (BTreeMap<String, String>, SyncSender<Reply>),
    ) {
        self.prepare_now(job, gpus, asked, (environment, true, reply));
    }

    fn prepare_now(
        &mut self,
        job: u32,
        gpus: BTreeSet<u8>,
        asked: Asked,
        (environment, waited, reply): (BTreeMap<String, String>, bool, SyncSender<Reply>),
    ) {
        if !asked.waits() {
            let _ = reply.try_send(Reply::Prepared {
                notes: Vec::new(),
                environment,
                failed: None,
            });
            return;
        }
        if self.found.is_empty() {
            let why = "nothing is done yet for the GPUs of this job: NVIDIA's library does not answer gpuosd";
            let notes = vec![why.to_owned()];
            let _ = reply.try_send(Reply::Prepared {
                notes,
                environment,
                failed: None,
            });
            return;
        }
        let since = self.now();
        self.waiting.push(Waiting {
            job,
            gpus,
            asked,
            environment,
            waited,
            since,
            reply,
        });
        self.answer_steps();
    }

    pub(super) fn answer_steps(&mut self) {
        let now = self.now();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|waiting| {
            let waited = now.duration_since(waiting.since);
            let late = waiting.waited && waited >= BESIDE_SLICES;
            match self
                .answer(waiting)
                .or_else(|| late.then(|| unsettled(waiting)))
            {
                Some(answer) => {
                    let _ = waiting.reply.try_send(answer);
                    false
                }
                None => waited < ANSWER,
            }
        });
        self.waiting = waiting;
    }

    /// What a step is told, once all is known.
    fn answer(&self, waiting: &Waiting) -> Option<Reply> {
        let mut notes = self.limits.settled(waiting.job)?;
        let mut environment = waiting.environment.clone();
        if waiting.asked.mps.is_some() {
            match self.mps_for(waiting.job, &waiting.gpus, &waiting.asked)? {
                Ok(variables) => environment.extend(variables),
                Err(note) => notes.push(note),
            }
        }
        Some(Reply::Prepared {
            notes,
            environment,
            failed: None,
        })
    }

    /// Time went by.
    pub(super) fn tick_limits(&mut self) {
        self.limits(Event::Tick);
        self.mps(MpsEvent::Tick);
        if !self.limits.kept().is_empty() || !self.mps.kept().is_empty() {
            self.look = self.look.min(self.looked + LOOK_EVERY);
        }
    }
}

/// What a step with slices is told whose GPUs are not set in time.
fn unsettled(waiting: &Waiting) -> Reply {
    let after = BESIDE_SLICES.as_secs();
    let what = match (waiting.asked.sets(), waiting.asked.mps.is_some()) {
        (true, true) => {
            "power and clocks of this job's whole GPUs are not set, and MPS is not there"
        }
        (false, true) => "MPS is not there",
        _ => "power and clocks of this job's whole GPUs are not set",
    };
    Reply::Prepared {
        notes: vec![format!("{what} after {after} s: the step runs without")],
        environment: waiting.environment.clone(),
        failed: None,
    }
}
