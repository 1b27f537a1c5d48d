//! The owner of the state: takes messages, asks the health rules, has their effects done. It waits for
//! nothing but the next message.

mod clients;
mod forbid;
mod given;
mod host;
mod isolation;
mod library;
mod limits;
mod mig;
mod mps;
mod peers;
mod quiet;
mod watchers;
mod workload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::{Duration, Instant};

use gpuos_core::health::{Audit, Effect, Event, NodeHealth, Rules, number, step};
use gpuos_core::limits as core_limits;
use gpuos_core::limits::{Limits, Mps, MpsEvent};
use gpuos_core::peers::PeerView;
use gpuos_core::wire::{Happening, Peer, Reply, Request};
use gpuos_model::gpuset::GpuSet;
use gpuos_workload::WorkloadManager;
use gpuos_workload::action::Action;

use crate::audit;
use crate::disk::{Ack, Disk};
use crate::gpus::Found;
use crate::host::Told;
use crate::host::hardware::Hardware;
use crate::host::kernel::{Second, Strangers};
use crate::host::links::Links;
use crate::isolation::{self as isolation_thread, Order};
use crate::jobs::Table;
use crate::metrics::Keeper;
use crate::metrics::keep::Rest;
use crate::mig::Hands;
use crate::mig::pool::Journal;
use crate::mps::Runner;
use crate::numbering::Numbering;
use crate::peers::{Peers, Report};
use crate::queue::{Queue, Release, Task, Why};
use crate::store::{self, Saved};
use crate::traces::Traces;
use crate::work::{Answer, Device};

/// The rules are told the jobs so often: what they asked for and is still there, they ask for again.
const JOBS_EVERY: Duration = Duration::from_secs(5);
/// With a GPU out of service, Slurm is asked so often what is still on the node.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// After a GPU went out or came back it is asked more often, for so long: a reset waits for what it says.
const CHANGED: Duration = Duration::from_secs(60);
/// How often then.
const LOOK_OFTEN: Duration = Duration::from_secs(6);
/// Faults have Slurm asked no sooner than so long after it was asked last.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// A state that nothing happened to is saved so often: counters are worth no more.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// A requeued job is looked after so often.
const RELEASE_EVERY: Duration = Duration::from_secs(1);
/// Wait after a slurmctld that was away, at most.
const AWAY: Duration = Duration::from_secs(30);
/// Jobs whose first step was just reported are looked up after so long, and others with them.
const MEET: Duration = Duration::from_secs(30);

/// What the owner is told.
#[derive(Debug)]
pub enum Message {
    /// The library was opened, or why not.
    Library(Result<Vec<Found>, String>),
    /// A round of polls has come to its end.
    Polled,
    /// Something for the rules.
    Health(Event),
    /// A client asks.
    Asked {
        /// Who.
        peer: Peer,
        /// What.
        request: Request,
        /// Where the answer goes.
        reply: SyncSender<Reply>,
    },
    /// A client watches.
    Watch(Peer, SyncSender<Happening>),
    /// Which user the controller of the workload manager runs as, by its word.
    WorkloadUser(u32),
    /// A task came to its end.
    Workload(Task, Answer),
    /// Something of the host beside its GPUs.
    Host(Told),
    /// Something about power limits and clocks.
    Limits(core_limits::Event),
    /// Something about MPS.
    Mps(MpsEvent),
    /// Something about MIG instances, with NVML's index of the GPU.
    Mig(u8, crate::mig::Told),
    /// The disk knows that a job could not get its MIG instances.
    MigCounted(u32),
    /// Of the other nodes of jobs.
    Peers(Report),
    /// Who is on the GPUs.
    Isolation(isolation_thread::Told),
    /// Read gpuos.toml again.
    Reload,
    /// End.
    End,
}

/// Where effects go.
pub struct Ports {
    /// Told which GPUs are in a pool.
    pub numbering: Arc<Numbering>,
    /// What the workload manager is asked and told, one at a time.
    pub workload: Sender<Task>,
    /// The workload manager, for threads that ask it besides.
    pub manager: Arc<dyn WorkloadManager>,
    /// Resets and checks.
    pub device: Sender<Device>,
    /// File systems to ask whether they answer.
    pub file_systems: Sender<Vec<PathBuf>>,
    /// Power limits and clocks.
    pub limits: Sender<crate::limits::Task>,
    /// MPS daemons.
    pub mps: Arc<Runner>,
    /// Makes and destroys MIG instances.
    pub mig: Arc<Hands>,
    /// To the owner itself, for those who answer later.
    pub to: SyncSender<Message>,
    /// Kills, and whether control groups are looked at.
    pub isolation: Sender<Order>,
    /// State and audit log.
    pub disk: Disk,
    /// The other nodes of jobs.
    pub peers: Peers,
    /// Milliseconds since 1970, from a clock that may jump: for dates.
    pub wall: Box<dyn Fn() -> u64 + Send>,
    /// A clock that never jumps: for all that waits.
    pub steady: Box<dyn Fn() -> Instant + Send>,
}

/// What is known at the start.
pub struct Start {
    /// Slurm's name of the node.
    pub node: String,
    /// This boot.
    pub boot: String,
    /// What was saved; `None`: nothing that could be used.
    pub saved: Option<Saved>,
    /// Seconds between polls.
    pub interval: Duration,
}

/// The owner.
pub struct Owner {
    node: String,
    boot: String,
    interval: Duration,
    health: NodeHealth,
    rules: Rules,
    jobs: Table,
    metrics: Keeper,
    traces: Traces,
    limits: Limits,
    mps: Mps,
    mig: mig::Mig,
    /// Steps that wait for their GPUs to be set.
    waiting: Vec<limits::Waiting>,
    releases: Vec<Release>,
    found: Vec<Found>,
    /// Those of the pool.
    pooled: Vec<Found>,
    queue: Queue,
    ports: Ports,
    links: Links,
    kernel: Second,
    strangers: Strangers,
    hardware: Hardware,
    isolation: isolation_thread::keep::Keeper,
    watchers: watchers::Watchers,
    seers: watchers::Seers,
    quiet: quiet::Quiet,
    held: forbid::Held,
    /// What steps are told besides, where their answers come from, and where those go.
    notes: Vec<(Vec<String>, Receiver<Reply>, SyncSender<Reply>)>,
    reloads: Vec<SyncSender<Reply>>,
    /// What keeps the daemon from its work, by whom.
    troubles: BTreeMap<&'static str, String>,
    published: String,
    peers: Vec<PeerView>,
    /// GPUs that Slurm's record shows as out are still to be taken over: nothing may be written there
    /// before.
    adopt: bool,
    started_ms: u64,
    polled: Option<Instant>,
    began: Instant,
    /// When the rules were asked last.
    stepped: Option<Instant>,
    silent: bool,
    saved: Instant,
    told_jobs: Instant,
    /// Jobs of which was said that their records cannot be read.
    unread_jobs: std::collections::BTreeSet<u32>,
    /// When Slurm is asked for the node's record and jobs next.
    look: Instant,
    looked: Instant,
    /// When slurmctld took another state of the GPUs last.
    changed: Option<Instant>,
    /// When the jobs were asked for that the last answer is about.
    jobs_asked: Instant,
    released: Instant,
    /// gpuos.toml is to be read once slurmctld says where it is.
    unread: bool,
    away: u32,
    not_before: Instant,
}

impl Owner {
    /// Begins with what was saved.
    pub fn new(start: Start, ports: Ports) -> Owner {
        let now = (ports.steady)();
        let seed = u64::from(crc32fast::hash(start.node.as_bytes()));
        let saved = start.saved.filter(|saved| saved.node == start.node);
        let booted = |saved: &Saved| !start.boot.is_empty() && saved.boot != start.boot;
        let rebooted = saved.as_ref().is_some_and(booted);
        let adopt = saved.is_none();
        let (health, jobs, releases, limits, mps, mig) = match saved {
            Some(saved) => (
                saved.health,
                saved.jobs,
                saved.releases,
                saved.limits,
                saved.mps,
                saved.mig,
            ),
            None => {
                let health = NodeHealth::new(0, seed);
                (
                    health,
                    Table::default(),
                    Vec::new(),
                    Limits::default(),
                    Mps::default(),
                    Journal::default(),
                )
            }
        };
        let moving = mig.moving.keys().copied().map(usize::from);
        let moving = moving.fold(GpuSet::EMPTY, GpuSet::with);
        ports.numbering.remembered(mig.pool, moving);
        let mut owner = Owner {
            traces: Traces::new(&start.node, ports.manager.clone()),
            node: start.node,
            boot: start.boot,
            interval: start.interval,
            health,
            rules: Rules::default(),
            jobs: if rebooted { Table::default() } else { jobs },
            metrics: Keeper::new(start.interval),
            limits,
            mps,
            mig: mig::Mig::restore(mig),
            waiting: Vec::new(),
            releases,
            found: Vec::new(),
            pooled: Vec::new(),
            queue: Queue::default(),
            started_ms: (ports.wall)(),
            ports,
            links: Links::default(),
            kernel: Second::default(),
            strangers: Strangers::default(),
            hardware: Hardware::default(),
            isolation: isolation_thread::keep::Keeper::default(),
            watchers: watchers::Watchers::default(),
            seers: watchers::Seers::default(),
            quiet: quiet::Quiet::default(),
            held: forbid::Held::default(),
            notes: Vec::new(),
            reloads: Vec::new(),
            troubles: BTreeMap::new(),
            published: String::new(),
            peers: Vec::new(),
            adopt,
            polled: None,
            began: now,
            stepped: None,
            silent: false,
            saved: now,
            told_jobs: now,
            unread_jobs: std::collections::BTreeSet::new(),
            look: now,
            looked: now,
            changed: None,
            jobs_asked: now,
            released: now,
            unread: false,
            away: 0,
            not_before: now,
        };
        owner.queue.push(Task::Config);
        owner.limits(core_limits::Event::Started { rebooted });
        owner.mps(MpsEvent::Started { rebooted });
        owner.apply(Event::Started { rebooted });
        owner
    }

    /// Takes a message. Returns whether the daemon goes on.
    pub fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Library(told) => self.library(told),
            Message::Polled => self.polled(),
            Message::Health(event) => {
                self.look_soon(&event);
                self.note_xid(&event);
                match &event {
                    Event::Sample { gpu, sample } => self.limit_shown(*gpu, sample),
                    Event::ResetDone { gpu, ok: true, .. } => {
                        if let Some(nvml) = self.mig.index(*gpu) {
                            self.mig_look(nvml);
                        }
                        if !number::is_of_pool(*gpu) {
                            self.limits(core_limits::Event::Reset { gpu: *gpu });
                        }
                    }
                    _ => {}
                }
                self.apply(event);
            }
            Message::Host(told) => self.host(told),
            Message::Isolation(told) => self.isolation(told),
            Message::Asked {
                peer,
                request,
                reply,
            } => self.asked(peer, request, reply),
            Message::Watch(peer, watcher) => self.watchers.add(peer, watcher),
            Message::WorkloadUser(uid) => self.seers.workload_user = Some(uid),
            Message::Workload(task, answer) => self.answered(task, answer),
            Message::Limits(event) => self.limits(event),
            Message::Mps(event) => self.mps(event),
            Message::Mig(gpu, told) => self.mig(gpu, told),
            Message::MigCounted(job) => self.mig_counted(job),
            Message::Peers(report) => self.reported(report),
            Message::Reload => self.queue.push(Task::Config),
            Message::End => return false,
        }
        if !self.notes.is_empty() {
            self.hand_on();
        }
        self.send_next();
        true
    }

    /// A fault is looked at with the jobs that hold its GPU: one that has only just started is not known yet.
    fn look_soon(&mut self, event: &Event) {
        let gpu = match event {
            Event::Xid { gpu, .. } | Event::Lost { gpu } | Event::RecoveryAction { gpu, .. } => {
                *gpu
            }
            _ => return,
        };
        // Of the jobs on a GPU of the pool there may always be one more.
        if self.mig.index(gpu).is_some() || self.jobs.is_new(gpu) {
            self.look = self.look.min(self.looked + LOOK_AGAIN);
        }
    }

    /// Time went by; at least one call each second.
    pub fn tick(&mut self) {
        let now = self.now();
        self.hear_library(now);
        if now.duration_since(self.told_jobs) >= JOBS_EVERY {
            self.tell_jobs();
        }
        if self.unread && now >= self.not_before {
            // What slurmctld says of jobs is looked at with it.
            self.queue.push_first(Task::Config);
        }
        if now >= self.look && now >= self.not_before {
            self.queue.push(Task::Show);
            self.queue.push(Task::Jobs(self.jobs.mark()));
            self.look = now + LOOK_EVERY;
            self.looked = now;
        }
        if self.health.part().has_any_out() || self.health.drain.is_some() || self.adopt {
            let changed = self
                .changed
                .is_some_and(|at| now.duration_since(at) < CHANGED);
            let every = if changed { LOOK_OFTEN } else { LOOK_EVERY };
            self.look = self.look.min(now + every);
        }
        if now.duration_since(self.released) >= RELEASE_EVERY && now >= self.not_before {
            self.released = now;
            self.release();
        }
        self.late_xids();
        self.tell_left_out();
        self.let_late_go();
        self.hand_on();
        self.apply(Event::Tick);
        self.tick_limits();
        self.tick_mig();
        if now.duration_since(self.saved) >= SAVE_EVERY {
            self.save(None);
        }
        match self.ports.disk.trouble() {
            Some(why) => drop(self.troubles.insert("disk", format!("cannot write {why}"))),
            None => drop(self.troubles.remove("disk")),
        }
        self.show();
        self.send_next();
    }

    /// Hands the node over to Prometheus and the map files.
    fn show(&mut self) {
        self.trouble("metrics", self.metrics.trouble());
        self.trouble("traces", self.traces.trouble());
        self.metrics.show(&Rest {
            node: &self.node,
            health: &self.health,
            found: &self.found,
            pooled: &self.pooled,
            jobs: &self.jobs,
            isolation: &self.isolation,
            started_ms: self.started_ms,
            sampled_ms_ago: self.sampled_ms_ago(),
            waiting: (self.queue.len() + self.releases.len()) as u32,
            peers: &self.peers,
            slices: self.mig_slices(),
            troubles: self.troubles.keys().copied().collect(),
        });
    }

    /// Sets a trouble of somebody else's, or that it is over.
    pub fn trouble(&mut self, of: &'static str, what: Option<String>) {
        match what {
            Some(what) => drop(self.troubles.insert(of, what)),
            None => drop(self.troubles.remove(of)),
        }
    }

    /// Saves for the last time.
    pub fn end(&mut self, patience: Duration) {
        self.save(None);
        if !self.ports.disk.flush(patience) {
            tracing::error!("the state could not be saved at the end");
        }
    }

    fn send_next(&mut self) {
        let Some(task) = self.queue.begin() else {
            return;
        };
        if matches!(task, Task::Jobs(_)) {
            self.jobs_asked = self.now();
        }
        if let Task::Job(job) = &task {
            self.mig_asked(*job);
            self.held_asked(*job);
        }
        if self.ports.workload.send(task).is_err() {
            tracing::error!("the thread for Slurm's commands has ended");
            self.queue.done();
        }
    }

    /// Tells the rules, and has done what they say.
    fn apply(&mut self, event: Event) {
        let effects = self.step(event);
        if !effects.is_empty() {
            self.save(None);
        }
    }

    fn now(&self) -> Instant {
        (self.ports.steady)()
    }

    fn sampled_ms_ago(&self) -> Option<u64> {
        let ago = |at| self.now().saturating_duration_since(at).as_millis() as u64;
        self.polled.map(ago)
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        let now = (self.ports.wall)();
        let steady = self.now();
        if let Some(before) = self.stepped.replace(steady) {
            // In whole milliseconds since the start: parts that are left out would add up.
            let since = |at: Instant| at.duration_since(self.began).as_millis() as u64;
            self.health.went_by(now, since(steady) - since(before));
        }
        self.metrics.event(&event);
        self.traces.event(now, &event);
        let effects = step(&mut self.health, &self.rules, event, now);
        self.metrics.effects(&effects);
        self.traces.effects(now, &effects, &self.jobs);
        let mut lines = Vec::new();
        for effect in &effects {
            self.effect(effect, now, &mut lines);
        }
        self.ports.disk.audit(lines);
        effects
    }

    fn effect(&mut self, effect: &Effect, now: u64, lines: &mut Vec<String>) {
        let act = |action| Task::Act(action, Why::Rule);
        match effect {
            Effect::Warn { gpu, text } => {
                tracing::warn!(gpu = gpu.map(number::name), "{text}");
                self.happen(now, "warn", *gpu, None, text);
            }
            Effect::KillStep { job, step, .. } => self.queue.push(act(Action::Kill {
                job: *job,
                step: *step,
            })),
            Effect::Requeue {
                job, avoid_node, ..
            } => {
                self.releases.retain(|release| release.job != *job);
                self.releases.push(Release::of(*job, *avoid_node));
                self.queue.push(act(Action::Requeue { job: *job }));
            }
            Effect::Publish { revision, part } => {
                // Not over what has not been read yet: told later that it failed, the rules try again.
                if !self.adopt {
                    let task = Task::Act(Action::Publish(part.clone()), Why::Publish(*revision));
                    self.queue.push(task);
                }
            }
            Effect::DrainNode { reason } => self.queue.push(act(Action::Drain {
                reason: reason.clone(),
            })),
            Effect::UndrainNode { reason } => self.queue.push(act(Action::Undrain {
                reason: reason.clone(),
            })),
            Effect::Reset { gpu } => self.device(*gpu, Device::Reset),
            Effect::Check { gpu } => self.device(*gpu, Device::Check),
            Effect::Audit(audit) => self.log(audit, lines),
        }
    }

    fn log(&mut self, audit: &Audit, lines: &mut Vec<String>) {
        lines.push(audit::line(&self.node, audit));
        let what = audit.rule.as_deref().unwrap_or("audit");
        let on = audit
            .gpu
            .map_or_else(String::new, |gpu| format!("GPU {}: ", number::name(gpu)));
        tracing::info!(
            gpu = audit.gpu.map(number::name),
            rule = audit.rule.as_deref(),
            job = audit.job,
            uid = audit.uid,
            "{on}{}",
            audit.text
        );
        self.happen(audit.at_ms, what, audit.gpu, audit.job, &audit.text);
    }

    /// A line of the daemon's own in the audit log.
    fn note(&mut self, text: String, job: Option<u32>, uid: Option<u32>) {
        let audit = Audit {
            at_ms: (self.ports.wall)(),
            job,
            uid,
            text,
            ..Audit::default()
        };
        let mut lines = Vec::new();
        self.log(&audit, &mut lines);
        self.ports.disk.audit(lines);
    }

    fn happen(&mut self, at_ms: u64, what: &str, gpu: Option<u8>, job: Option<u32>, message: &str) {
        let event = Happening {
            at_ms,
            what: what.into(),
            gpu,
            job,
            message: message.into(),
        };
        if !self.watchers.is_empty() {
            let users = self.isolation.users(&self.jobs);
            self.watchers.tell(&event, &self.seers, &users);
        }
    }

    fn tell_jobs(&mut self) {
        self.told_jobs = self.now();
        let jobs = self.told_jobs_with_processes();
        self.apply(Event::Reported(jobs));
        self.tell_limits();
    }

    /// Writes the state; `ack` is told when it is safe.
    fn save(&mut self, ack: Option<Ack>) {
        self.saved = self.now();
        let saved = Saved {
            node: self.node.clone(),
            boot: self.boot.clone(),
            health: self.health.clone(),
            jobs: self.jobs.clone(),
            releases: self.releases.clone(),
            limits: self.limits.clone(),
            mps: self.mps.clone(),
            mig: self.mig.journal(),
        };
        self.ports.disk.save(store::encode(&saved), ack);
    }
}

fn done(message: &str) -> Reply {
    Reply::Done {
        message: message.into(),
    }
}
