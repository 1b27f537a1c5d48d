//! The loop: takes messages one after the other, and waits for nothing but the next one.
//!
//! The state of the node is in subsystems. Each is told what happened and answers with [`effect::Effect`]s; none of them does anything
//! itself, or has a hold of another. [`EventLoop::handle`] says which message is whose, [`carry_out`] does what they want.
//!
//! - [`health`]: the health rules,
//! - [`gpus`]: who the GPUs are, and whether NVIDIA's library answers,
//! - [`host`]: network adapters, memory, file systems, the kernel's log,
//! - [`reports`]: steps that spank_gpuos reports, and who has which GPUs ([`grants`]),
//! - [`scheduler`]: what slurmctld is asked and told, and when,
//! - [`limits`]: power limits, clocks and MPS,
//! - [`mig`]: MIG instances,
//! - [`isolation`]: who is on the GPUs,
//! - [`memory`]: memory in tiers, and whose turn it is on a GPU,
//! - [`journal`]: what is written down, and who hears it ([`watchers`], [`quiet`]),
//! - [`telemetry`]: metrics and traces.
//!
//! Those that many look at are together in [`facts::Node`].

mod carry_out;
mod client;
mod effect;
mod facts;
mod gpus;
mod grants;
mod health;
mod host;
mod isolation;
mod journal;
mod limits;
mod memory;
mod message;
mod mig;
mod ports;
mod quiet;
mod reports;
mod requests;
mod scheduler;
mod telemetry;
mod troubles;
mod watchers;

use std::time::{Duration, Instant};

use gpuos_config::gpuos_toml::Config;
use gpuos_core::health::{Event, Job, NodeHealth};
use gpuos_core::job::JobId;
use gpuos_core::limits as core_limits;
use gpuos_core::limits::MpsEvent;
use gpuos_core::peers::PeerView;
use gpuos_core::step::StepId;
use gpuos_core::wire::Code;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::Job as Record;

use client::{Client, done};
use effect::{Effect, Effects, Now, Then};
use facts::{Facts, Node};
use gpus::Gpus;
use health::Health;
use host::Host;
use journal::Journal;
use limits::Settings;
use memory::Memory;
pub use message::Message;
use mig::Mig;
pub use ports::{Ports, Start};
use reports::Reports;
use scheduler::Scheduler;
use telemetry::Telemetry;
use troubles::Troubles;

use crate::blocking::Answer;
use crate::isolation::keep::Keeper;
use crate::isolation::{Notice as Seen, Order};
use crate::metrics::checkpoints::NamedJobs;
use crate::metrics::keep::Rest;
use crate::peers::Report;
use crate::queue::{Release, Task, Why};
use crate::socket_handler::refused;
use crate::store::Saved;
use crate::suspicion::Suspicions;

/// The rules are told the jobs so often: what they asked for and is still there, they ask for again.
const JOBS_EVERY: Duration = Duration::from_secs(5);
/// A state that nothing happened to is saved so often: counters are worth no more.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// The daemon's start, and what is done every so often.
struct Times {
    began: Instant,
    started_ms: u64,
    /// When the state was saved last.
    saved: Instant,
    /// When the rules were told the jobs last.
    jobs_published: Instant,
}

/// The loop, and all state.
pub struct EventLoop {
    boot: String,
    node: Node,
    host: Host,
    settings: Settings,
    mig: Mig,
    memory: Memory,
    isolation: Keeper,
    peers: Vec<PeerView>,
    journal: Journal,
    telemetry: Telemetry,
    suspicions: Suspicions,
    times: Times,
    ports: Ports,
}

impl EventLoop {
    /// Begins with what was saved.
    pub fn new(start: Start, ports: Ports) -> EventLoop {
        let now = (ports.steady)();
        let seed = u64::from(crc32fast::hash(start.node.as_bytes()));
        let saved = start.saved.filter(|saved| saved.node == start.node);
        let booted = |saved: &Saved| !start.boot.is_empty() && saved.boot != start.boot;
        let rebooted = saved.as_ref().is_some_and(booted);
        let adopt = saved.is_none();
        let mut saved = saved.unwrap_or_else(|| Saved {
            node: start.node.clone(),
            boot: start.boot.clone(),
            health: NodeHealth::new(0, seed),
            jobs: Default::default(),
            releases: Vec::new(),
            limits: Default::default(),
            mps: Default::default(),
            mig: Default::default(),
            memory: Default::default(),
        });
        if rebooted {
            saved.jobs = Default::default();
            saved.memory = Default::default();
        }
        let suspicions = Suspicions::new(start.polls.1.clone(), &saved.health);
        let switchable = saved.mig.switchable.keys().copied().collect();
        let asked = ports.manager.daemon();
        let named = ports.manager.steps_name_gpus();
        ports.numbering.remembered(saved.mig.pool, switchable);
        let mut all = EventLoop {
            boot: start.boot,
            host: Host::default(),
            settings: Settings::restore(saved.limits, saved.mps, ports.mps.folder.clone()),
            mig: Mig::restore(saved.mig, now),
            memory: {
                let own = &ports.memory;
                let config = own.config.clone();
                let tiers = (own.host, own.nvme.clone());
                Memory::restore(saved.memory, own.members.clone(), tiers, config)
            },
            isolation: Keeper::default(),
            peers: Vec::new(),
            journal: Journal::new(&start.node),
            telemetry: Telemetry::new(&start.node, ports.manager.clone(), start.polls.clone()),
            suspicions,
            times: Times {
                began: now,
                started_ms: (ports.wall)(),
                saved: now,
                jobs_published: now,
            },
            ports,
            node: Node {
                interval: start.polls.0,
                health: Health::restore(saved.health),
                gpus: Gpus::new(start.polls.0, now),
                reports: Reports::restore(&start.node, saved.jobs).naming_gpus(named),
                scheduler: Scheduler::new(saved.releases, adopt, now).asking(asked),
                troubles: Troubles::default(),
                name: start.node,
            },
        };
        all.node.scheduler.ask(Task::Config);
        let started = core_limits::Event::Started { rebooted };
        all.settings(|settings, on, fx| settings.limits(started, on, fx));
        let started = MpsEvent::Started { rebooted };
        all.settings(|settings, on, fx| settings.mps(started, on, fx));
        all.rules(Event::Started { rebooted });
        all.make_known(&all.jobs_with_processes());
        all
    }

    /// What is known of gpuos.toml before it is read as ever: what is forbidden is so for the first step, too.
    pub fn begin_with(&mut self, config: &Config) {
        self.journal.set(config.access.clone());
        self.node.reports.set(config.forbidden.clone());
        self.memory(|memory, on, fx| memory.configured(&config.memory, on, fx));
    }

    /// Reports of steps wait so long for what slurmctld has to say.
    pub fn answer_within(&mut self, patience: Duration) {
        self.node.reports.wait_for(patience);
    }

    /// Takes a message. Returns whether the daemon goes on.
    pub fn handle(&mut self, message: Message) -> bool {
        let now = self.now();
        match message {
            Message::Library(told) => {
                let fx = self.node.gpus.opened(told);
                self.carry_out(fx);
            }
            Message::Polled => {
                let fx = self.node.gpus.answered(now);
                self.carry_out(fx);
            }
            Message::Health(event) => self.health_event(event),
            Message::Host(told) => {
                let node = (&self.node.gpus, &self.node.health);
                let fx = self.host.on_notice(told, node, now);
                self.carry_out(fx);
            }
            Message::Isolation(told) => {
                match &told {
                    Seen::Killed { outcome, .. } => self.telemetry.killed(outcome.is_ok()),
                    Seen::Round { seen, .. } => {
                        self.memory(|memory, on, fx| memory.on_gpus(&seen.processes, on, fx));
                    }
                }
                let jobs = self.node.reports.table();
                let fx = isolation::on_notice(&mut self.isolation, told, jobs, now);
                self.carry_out(fx);
            }
            Message::Asked {
                peer,
                request,
                reply,
            } => {
                let client = Client::new(reply);
                let fx = self.node.reports.asked(peer, request, client, now);
                self.carry_out(fx);
            }
            Message::Watch(peer, watcher) => self.journal.watch(peer, watcher),
            Message::Told(renumbered) => {
                if renumbered {
                    self.ports.numbering.told();
                }
                self.node.scheduler.heard(now.at);
            }
            Message::WorkloadUser(uid) => self.journal.workload_user(uid),
            Message::Workload(task, answer) => self.answered(task, answer),
            Message::Limits(event) => self.settings(|own, on, fx| own.limits(event, on, fx)),
            Message::Mps(event) => self.settings(|own, on, fx| own.mps(event, on, fx)),
            Message::Mig(gpu, told) => {
                self.mig(|mig, on, fx| mig.on_notice(gpu, told, on, fx));
                self.mig(|mig, on, fx| mig.finish(on, fx));
            }
            Message::MigCounted(job) => self.mig(|mig, _, fx| mig.counted(&job, fx)),
            Message::Memory(told) => self.memory(|memory, on, fx| memory.on_notice(told, on, fx)),
            Message::MemorySaved(revision) => {
                self.memory(|memory, on, fx| memory.saved(revision, on, fx));
            }
            Message::Peers(report) => self.reported(report),
            Message::Reload => self.node.scheduler.ask(Task::Config),
            Message::End => return false,
        }
        self.ask_next();
        true
    }

    /// Time went by; at least one call each second.
    pub fn tick(&mut self) {
        let now = self.now();
        let fx = self.node.gpus.tick(now);
        self.carry_out(fx);
        if now.at.duration_since(self.times.jobs_published) >= JOBS_EVERY {
            self.publish_jobs(Event::Reported);
        }
        let (health, jobs) = (self.node.health.node(), self.node.reports.table());
        self.node.scheduler.tick(health, jobs, now.at);
        let fx = self.host.tick(now);
        self.carry_out(fx);
        let unconfirmed = self.node.health.node().unconfirmed();
        self.node.troubles.set("kernel-log", unconfirmed);
        for (uid, text) in self.journal.suppressed(now) {
            let mut fx = Effects::default();
            fx.note(text, None, Some(uid));
            self.carry_out(fx);
        }
        self.release_overdue();
        if let Some(held) = self.telemetry.held() {
            let NamedJobs { jobs, more } = held;
            self.rules(Event::Held { jobs, more });
        }
        if let Some(short) = self.memory.is_short() {
            self.rules(Event::Short(short));
        }
        self.rules(Event::Tick);
        self.settings(|settings, on, fx| settings.tick(on, fx));
        self.mig(|mig, on, fx| mig.tick(on, fx));
        if now.at.duration_since(self.times.saved) >= SAVE_EVERY {
            self.save(Then::Nothing);
        }
        let disk = self.ports.disk.trouble();
        let disk = disk.map(|why| format!("cannot write {why}"));
        self.node.troubles.set("disk", disk);
        if let Some(room) = self.mig.room(&self.node.facts(now)) {
            self.ports.manager.set_pool_room(room);
        }
        self.show();
        self.ask_next();
    }

    /// Has the next thing done by the thread for Slurm's commands.
    fn ask_next(&mut self) {
        let now = self.now();
        let Some(task) = self.node.scheduler.next(now.at) else {
            return;
        };
        if let Task::Job(job) = &task {
            self.mig.job_asked(job);
            self.node.reports.job_asked(job);
        }
        if self.ports.workload.send(task).is_err() {
            self.node.scheduler.ended();
        }
    }

    /// When the first of those that wait for slurmctld's word has waited long enough, or memory in tiers is to be told of the time.
    pub fn held_until(&self) -> Option<Instant> {
        let until = [self.node.reports.held_until(), self.memory.due()];
        until.into_iter().flatten().min()
    }

    /// Those who have waited long enough go on without what slurmctld would have had to say.
    pub fn release_overdue(&mut self) {
        let now = self.now();
        let fx = self.node.reports.late(now);
        self.carry_out(fx);
        self.memory(Memory::tick);
    }

    /// Sets a trouble of somebody else's, or that it is over.
    pub fn trouble(&mut self, of: &'static str, what: Option<String>) {
        self.node.troubles.set(of, what);
    }

    /// Saves for the last time.
    pub fn end(&mut self, patience: Duration) {
        self.save(Then::Nothing);
        if !self.ports.disk.flush(patience) {
            tracing::error!("the state could not be saved at the end");
        }
    }

    /// Something for the health rules, of which others take note.
    fn health_event(&mut self, event: Event) {
        let now = self.now();
        self.poll_jobs_soon(&event);
        self.host.on_health_event(&event, &self.node.health, now);
        match &event {
            Event::Sample { gpu, sample } => {
                self.settings(|own, on, fx| own.shown(*gpu, sample, on, fx));
            }
            Event::ResetDone { gpu, ok: true, .. } => {
                if let Some(nvml) = self.mig.index(*gpu) {
                    self.mig(|mig, on, fx| mig.probe(nvml, on, fx));
                }
                if let Some(gpu) = gpu.gres() {
                    let reset = core_limits::Event::Reset { gpu };
                    self.settings(|own, on, fx| own.limits(reset, on, fx));
                }
            }
            _ => {}
        }
        self.rules(event);
    }

    /// A fault is looked at with the jobs that hold its GPU: one that has only just started is not known yet.
    fn poll_jobs_soon(&mut self, event: &Event) {
        let gpu = match event {
            Event::Xid { gpu, .. } | Event::Lost { gpu } | Event::RecoveryAction { gpu, .. } => {
                *gpu
            }
            _ => return,
        };
        let is_new = |gpu| self.node.reports.table().is_new(gpu);
        // Of the jobs on a GPU of the pool there may always be one more.
        if self.mig.index(gpu).is_some() || gpu.gres().is_some_and(is_new) {
            let (soon, now) = (effect::PollBy::AfterLast(reports::LOOK_AGAIN), self.now());
            self.node.scheduler.poll_by(soon, now.at);
        }
    }

    /// What the other nodes of jobs give to do.
    fn reported(&mut self, report: Report) {
        let mut fx = Effects::default();
        match report {
            Report::View(peers, trouble) => {
                self.peers = peers;
                fx.trouble("peers", trouble);
            }
            Report::Note(text) => fx.note(text, None, None),
            Report::Down(job) => {
                fx.push(Effect::ForgetRelease(job.clone()));
                fx.push(Effect::Release(Release::of_a_lost_node(&job)));
            }
        }
        self.carry_out(fx);
    }

    /// What slurmctld answered, and what follows from it.
    fn answered(&mut self, task: Task, answer: Answer) {
        let fx = self.node.scheduler.answered(&answer, self.now());
        self.carry_out(fx);
        match (task, answer) {
            (Task::Act(action, why), Answer::Act(outcome)) => self.acted(&action, why, outcome),
            (_, Answer::Show(Ok(record))) => {
                self.host.shown(&record);
                let unnamed = self.node.gpus.is_empty();
                let health = self.node.health.node();
                let fx = self.node.scheduler.shown(&record, health, unnamed);
                self.carry_out(fx);
            }
            (Task::Jobs(mark), Answer::Jobs(Ok(jobs))) => self.jobs_received(&jobs, mark),
            (Task::Job(job), Answer::Job(Ok(record))) => {
                let record = record.as_deref();
                let mut fx = Effects::default();
                self.node.reports.unreadable(record, &mut fx);
                self.carry_out(fx);
                self.job_received(&job, record);
                self.mig(|mig, on, fx| mig.job_received(&job, record, on, fx));
            }
            // Not asked again: its steps wait.
            (Task::Job(job), Answer::Job(Err(_))) => self.job_received(&job, None),
            (_, Answer::Config(told, untold)) => {
                self.mig(|mig, on, fx| mig.switchable_file_written(untold, on.now.at, fx));
                self.config_read(told);
            }
            _ => {}
        }
    }

    fn acted(&mut self, action: &Action, why: Why, outcome: Outcome) {
        let now = self.now();
        self.telemetry.acted(action, &outcome, now);
        self.mig(|mig, _, fx| mig.acted(action, &outcome, fx));
        let jobs = self.node.reports.table();
        let fx = self
            .node
            .scheduler
            .acted((action, why), outcome, jobs, now.at);
        self.carry_out(fx);
    }

    fn jobs_received(&mut self, jobs: &[Record], mark: u64) {
        let asked = self.node.scheduler.jobs_asked();
        let fx = self.node.reports.jobs_received(jobs, mark);
        self.carry_out(fx);
        self.ports.peers.jobs(jobs);
        let node = &self.node.name;
        let slices = |job: &Record| self.mig.on_moving(node, job);
        self.isolation.jobs(node, jobs, slices, asked);
        // Before the rules, which are told who has slices now.
        self.mig(|mig, on, fx| mig.jobs_received(jobs, asked, on, fx));
        self.memory(|memory, on, fx| {
            memory.keep_jobs(on, fx);
            for job in jobs {
                memory.job_received(job, on, fx);
            }
        });
        self.publish_jobs(Event::Jobs);
    }

    fn job_received(&mut self, job: &JobId, record: Option<&Record>) {
        let fx = self.node.reports.job_received(job, record);
        self.carry_out(fx);
        let fx = self.node.reports.job_received_late(job, record);
        self.carry_out(fx);
        // After its step, which has waited for this.
        if let Some(record) = record.filter(|record| record.unreadable.is_empty()) {
            self.memory(|memory, on, fx| memory.job_received(record, on, fx));
        }
    }

    /// gpuos.toml was read, or what is wrong with it; `None`: slurmctld has to say where it is.
    fn config_read(&mut self, told: Result<Option<Box<Config>>, String>) {
        let unread = matches!(told, Ok(None));
        let (answer, trouble) = match told {
            Ok(Some(config)) => {
                self.configured(config);
                (done("gpuos.toml is read"), None)
            }
            Ok(None) => {
                let why = "slurmctld does not answer and has to say where gpuos.toml is; it is asked again until it \
                           does, and what was read before stays in force (--config names the file without it)";
                (refused(Code::Failed, why.into()), Some(why.into()))
            }
            Err(why) => {
                let stays = format!("{why}; what was read before stays in force");
                tracing::error!("{stays}");
                (refused(Code::Failed, why), Some(stays))
            }
        };
        if trouble.is_some() {
            self.ports.numbering.configured(&self.node.name, None);
            self.node.troubles.set("config", trouble);
        }
        let fx = self.node.scheduler.configured(unread, &answer);
        self.carry_out(fx);
    }

    fn configured(&mut self, config: Box<Config>) {
        let numbering = &self.ports.numbering;
        numbering.configured(&self.node.name, Some(&config.mig));
        self.node.health.set(config.health.clone());
        self.telemetry.set(&config);
        self.suspicions.set(config.checkpoint.enabled);
        self.memory(|memory, on, fx| memory.configured(&config.memory, on, fx));
        self.ports.peers.configure(config.heartbeat);
        self.node.troubles.set("config", None);
        tracing::info!("gpuos.toml is read");
        self.begin_with(&config);
        self.isolation.set(&config.isolation);
        let devices = Order::Devices(config.isolation.devices);
        let _ = self.ports.isolation.send(devices);
        let _ = self.ports.file_systems.send(config.file_systems.clone());
        self.mig(|mig, on, fx| mig.configured(&config.mig, on, fx));
        self.host.configured(config);
    }

    fn now(&self) -> Now {
        let at = (self.ports.steady)();
        Now {
            at,
            running_ms: at.saturating_duration_since(self.times.began).as_millis() as u64,
            wall_ms: (self.ports.wall)(),
        }
    }

    /// Has MIG do something.
    fn mig(&mut self, tell: impl FnOnce(&mut Mig, &Facts<'_>, &mut Effects)) {
        let mut fx = Effects::default();
        let now = self.now();
        tell(&mut self.mig, &self.node.facts(now), &mut fx);
        self.carry_out(fx);
    }

    /// Has memory in tiers do something.
    fn memory(&mut self, tell: impl FnOnce(&mut Memory, &Facts<'_>, &mut Effects)) {
        let mut fx = Effects::default();
        let now = self.now();
        tell(&mut self.memory, &self.node.facts(now), &mut fx);
        self.carry_out(fx);
    }

    /// Has power limits, clocks and MPS do something.
    fn settings(&mut self, tell: impl FnOnce(&mut Settings, &Facts<'_>, &mut Effects)) {
        let mut fx = Effects::default();
        let now = self.now();
        tell(&mut self.settings, &self.node.facts(now), &mut fx);
        self.carry_out(fx);
    }

    /// Tells the rules, by this event, and all others who has GPUs.
    fn publish_jobs(&mut self, event: impl FnOnce(Vec<Job>) -> Event) {
        let jobs = self.jobs_with_processes();
        self.make_known(&jobs);
        self.times.jobs_published = self.now().at;
        self.rules(event(jobs));
        self.publish_limits();
    }

    fn publish_limits(&mut self) {
        let now = self.now();
        let holders = mig::health::holders_of_whole(&self.mig, &self.node.facts(now));
        self.settings(|settings, on, fx| settings.holders(holders, on, fx));
    }

    /// Jobs for the health rules, with the processes that were seen of them.
    fn jobs_with_processes(&self) -> Vec<Job> {
        let mut jobs = self.node.reports.table().health_jobs();
        for job in &mut jobs {
            if let Some(step) = job.step {
                job.pids = self.isolation.pids(&job.job, &StepId::name(step));
            }
        }
        let slices = mig::health::holders(&self.mig, self.node.health.node());
        for job in &mut jobs {
            // Slurm's word, where it is not known of the job's whole GPUs.
            if let Some(known) = slices.iter().find(|one| one.job == job.job) {
                job.requeue = known.requeue;
            }
        }
        jobs.extend(slices);
        jobs
    }

    /// Hands the node over to Prometheus and the map files.
    fn show(&mut self) {
        for (of, what) in self.telemetry.troubles() {
            self.node.troubles.set(of, what);
        }
        let now = self.now();
        let facts = self.node.facts(now);
        self.telemetry.show(&Rest {
            node: facts.node,
            health: facts.health,
            found: facts.gpus.found(),
            pooled: facts.gpus.pooled(),
            jobs: facts.jobs,
            isolation: &self.isolation,
            started_ms: self.times.started_ms,
            sampled_ms_ago: facts.sampled_ms_ago(),
            waiting: self.node.scheduler.waiting(),
            peers: &self.peers,
            slices: mig::status::slices(&self.mig, &facts),
            memory: memory::status::status(&self.memory, now.at),
            troubles: facts.troubles.names().collect(),
        });
    }
}
