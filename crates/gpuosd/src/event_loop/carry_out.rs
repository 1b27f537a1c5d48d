//! Does what subsystems want.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpuos_core::health::{Audit, Event, Job};

use super::effect::{Effect, Effects, Quota, Then};
use super::journal::{self, Users};
use super::{EventLoop, Message, health};
use crate::blocking::Device;
use crate::disk::Ack;
use crate::isolation::Order;
use crate::jobs::of_gres;
use crate::known::Jobs;
use crate::store::{self, Saved};
use gpuos_core::limits::{self, MpsEvent};
use gpuos_model::node_gpu::NodeGpu;

use super::client::done;
use super::effect::Starting;
use super::limits::Prepare;

/// What is said of what is not done, because of whom the GPUs are or because that is not known yet.
const UNTOLD: &str =
    "the workload manager's daemon on this host has not told yet who gives its GPUs to jobs";
const ADVISES: &str = "gpuos only advises on this host: another one gives its GPUs to jobs, and what is to be done is an administrator's";

impl EventLoop {
    /// Carries effects out in their order; what follows from one comes before the next.
    pub(super) fn carry_out(&mut self, effects: Effects) {
        for effect in effects {
            self.carry(effect);
        }
    }

    fn carry(&mut self, effect: Effect) {
        let now = self.now();
        match effect {
            Effect::Ask(task) => self.node.scheduler.ask(task),
            Effect::AskFirst(task) => self.node.scheduler.ask_first(task),
            Effect::PollScheduler(look) => self.node.scheduler.poll_by(look, now.at),
            Effect::Publish(revision, part) => self.node.scheduler.publish(revision, part),
            Effect::Release(release) => self.node.scheduler.release(release),
            Effect::ForgetRelease(job) => self.node.scheduler.forget_release(&job),
            Effect::Device(Device::Reset(gpu)) if self.withheld().is_some() => {
                self.rules(Event::ResetDone {
                    gpu: gpu.number,
                    ok: false,
                    message: self.withheld().unwrap_or_default().into(),
                });
            }
            // Its process is told of, and goes on.
            Effect::Isolation(Order::Kill { .. }) if self.withheld().is_some() => {}
            Effect::Device(task) => log_if_ended(self.ports.device.send(task), "resets and checks"),
            Effect::Limits(task) => log_if_ended(self.ports.limits.send(task), "power limits"),
            Effect::Mps(task) => self.ports.mps.begin(task),
            Effect::Mig(gpu, task) => self.ports.mig.begin(gpu, task),
            Effect::Isolation(order) => drop(self.ports.isolation.send(order)),
            Effect::Programs(order) => {
                log_if_ended(self.ports.memory.watch.send(order), "programs");
            }
            Effect::CallDriver(order) => {
                log_if_ended(self.ports.memory.caller.send(order), "drivers");
            }
            Effect::LookAtMemory(order) => {
                log_if_ended(self.ports.memory.pressure.send(order), "pressure");
            }
            Effect::Renumber => self.ports.numbering.renew(),
            Effect::Save(then) => self.save(then),
            Effect::Log(audit, quota) => {
                self.log(&audit, quota, |_| {});
            }
            Effect::Found(finding, audit) => {
                let quota = Quota::User(finding.uid);
                self.log(&audit, quota, |_| journal::warn_of(&finding));
            }
            Effect::Note {
                text,
                job,
                uid,
                quota,
            } => {
                let audit = Audit {
                    at_ms: now.wall_ms,
                    job,
                    uid,
                    text,
                    ..Audit::default()
                };
                self.log(&audit, quota, |_| {});
            }
            Effect::Warn(gpu, text) => {
                let users = self.users();
                self.journal.warn(gpu, text, &users, now);
            }
            Effect::Reply(client, reply) => client.answer(reply),
            Effect::Trouble(of, what) => self.node.troubles.set(of, what),
            Effect::Rules(event) => self.rules(event),
            Effect::Command(admin) => drop(self.apply_rules(Event::Admin(admin))),
            Effect::Grow(gpus) => {
                if self.node.health.grow(gpus) {
                    self.save(Then::Nothing);
                }
            }
            Effect::KnowPooled(gpu) => {
                if self.node.health.know_pooled(gpu) {
                    self.save(Then::Nothing);
                }
            }
            Effect::KeepPooled(gpus) => self.node.health.keep_pooled(&gpus),
            Effect::Undivided(gpu) => self.node.health.undivided(gpu),
            Effect::MayNotRequeue(job) => self.node.reports.may_not_requeue(&job),
            Effect::PublishJobs => self.publish_jobs(Event::Reported),
            Effect::PublishLimits => self.publish_limits(),
            Effect::Holders(holders) => self.settings(|own, on, fx| own.holders(holders, on, fx)),
            Effect::User(job, uid) => self.journal.knows(&job, uid),
            Effect::Request(peer, request, client) => self.request(peer, request, client),
            Effect::Starting(starting) => self.start(starting),
            Effect::Prepare(one) => self.settings(|own, on, fx| own.prepare(one, on, fx)),
            Effect::Carve(gpu) => self.mig(|mig, on, fx| mig.carve(gpu, on, fx)),
            Effect::KnowInstances(instances) => self.ports.known.set_instances(instances),
        }
    }

    /// Why nothing is done to GPUs and processes on them.
    fn withheld(&self) -> Option<&'static str> {
        let manager = &self.ports.manager;
        match (manager.knows_whose(), manager.advises()) {
            (false, _) => Some(UNTOLD),
            (_, true) => Some(ADVISES),
            (true, false) => None,
        }
    }

    /// Tells the health rules, and has done what they say. Returns whether they said anything.
    fn apply_rules(&mut self, event: Event) -> bool {
        let now = self.now();
        self.telemetry.event(&event, now);
        let said = self.node.health.apply(event, now);
        let jobs = self.node.reports.table();
        self.telemetry.effects(&said, jobs, now);
        let any = !said.is_empty();
        let fx = health::effects(said, &self.node.gpus);
        self.carry_out(fx);
        for (gpu, job) in self.suspicions.look(self.node.health.node(), now.at) {
            let audit = Audit {
                at_ms: now.wall_ms,
                gpu: Some(gpu),
                text: format!("job {job} is asked to save: GPU {gpu} is degraded"),
                job: Some(job),
                ..Audit::default()
            };
            self.log(&audit, Quota::Job, |_| {});
        }
        any
    }

    /// The same; the state is saved where anything came of it.
    pub(super) fn rules(&mut self, event: Event) {
        if self.apply_rules(event) {
            self.save(Then::Nothing);
        }
    }

    /// Has the GPUs of a step prepared.
    fn start(&mut self, step: Starting) {
        self.memory.started(&step.id, step.memory);
        let waits = !step.id.is_extern() && self.mig.concerns(&step.gpus, step.switchable);
        if step.mig.is_some() || waits {
            return self.mig(|mig, on, fx| mig.step(step, on, fx));
        }
        if !step.asked.waits() {
            return step.client.answer(done("noted"));
        }
        let one = Prepare {
            job: step.id.job,
            gpus: of_gres(&step.gpus),
            asked: step.asked,
            environment: Default::default(),
            waited: false,
            client: step.client,
        };
        self.settings(|own, on, fx| own.prepare(one, on, fx));
    }

    /// Users of the jobs of this node.
    pub(super) fn users(&self) -> Users {
        self.isolation.users(self.node.reports.table())
    }

    /// Tells those who answer clients whose jobs are here, and how many GPUs they have.
    pub(super) fn make_known(&self, jobs: &[Job]) {
        let users = self.users();
        let mut gpus: BTreeMap<u32, BTreeSet<NodeGpu>> = BTreeMap::new();
        for job in jobs {
            if let Some(uid) = users.get(&job.job) {
                gpus.entry(*uid).or_default().extend(&job.gpus);
            }
        }
        let need = gpus.into_iter().map(|(uid, gpus)| (uid, gpus.len()));
        self.ports.known.set(Jobs {
            need: Arc::new(need.collect()),
            users,
        });
    }

    /// Writes a line of the audit log, unless its user has had too many.
    fn log(&mut self, audit: &Audit, quota: Quota, first: impl FnOnce(&Audit)) {
        let (users, now) = (self.users(), self.now());
        if self
            .journal
            .is_logged((quota, audit.job.as_ref()), &users, now)
        {
            first(audit);
            let line = self.journal.log(audit, &users);
            self.ports.disk.audit(vec![line]);
        }
    }

    /// Writes the state.
    pub(super) fn save(&mut self, then: Then) {
        self.times.saved = self.now().at;
        let (limits, mps) = self.settings.state();
        let saved = Saved {
            node: self.node.name.clone(),
            boot: self.boot.clone(),
            health: self.node.health.node().clone(),
            jobs: self.node.reports.table().clone(),
            releases: self.node.scheduler.releases().to_vec(),
            limits: limits.clone(),
            mps: mps.clone(),
            mig: self.mig.journal(),
            memory: self.memory.state(),
        };
        let ack = self.ack(then);
        self.ports.disk.save(store::encode(&saved), ack);
    }

    /// Who is told when the state is safe.
    fn ack(&self, then: Then) -> Option<Ack> {
        let to = self.ports.to.clone();
        let tell = move |message: Message| drop(to.send(message));
        Some(match then {
            Then::Nothing => return None,
            Then::Limits(revision) => Box::new(move |told| {
                tell(
                    limits::Event::Saved {
                        revision,
                        result: told,
                    }
                    .into(),
                )
            }),
            Then::Mps(revision) => Box::new(move |told| {
                tell(
                    MpsEvent::Saved {
                        revision,
                        result: told,
                    }
                    .into(),
                )
            }),
            Then::Mig(gpu, revision) => Box::new(move |told| {
                tell(Message::Mig(gpu, crate::mig::Notice::Saved(revision, told)));
            }),
            Then::Memory(revision) => Box::new(move |_| tell(Message::MemorySaved(revision))),
            Then::MigCounted(job) => Box::new(move |_| tell(Message::MigCounted(job))),
            Then::Answer(client, message) => Box::new(move |saved| {
                client.answer(done(&match saved {
                    Ok(()) => message,
                    Err(why) => format!(
                        "{message}; it holds until gpuosd ends, for it could not be saved: {why}"
                    ),
                }));
            }),
        })
    }
}

fn log_if_ended<T>(sent: Result<(), std::sync::mpsc::SendError<T>>, of: &str) {
    if sent.is_err() {
        tracing::error!("the thread for {of} has ended");
    }
}
