//! The owner of the state: takes messages, asks the health rules, has their effects done. It waits for
//! nothing but the next message.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, SyncSender};
use std::time::{Duration, Instant};

use gpuos_core::config::Config;
use gpuos_core::health::{Admin, Audit, Effect, Event, ExtraPart, NodeHealth, Rules, Verb, step};
use gpuos_core::wire::{Code, DaemonStatus, Happening, Peer, Reply, Request, Status};
use gpuos_host::slurm::NodeRecord;
use gpuos_host::slurm::act::{Action, Outcome};

use crate::desk::refused;
use crate::disk::{Ack, Disk};
use crate::gpus::Found;
use crate::jobs::Table;
use crate::queue::{Queue, Release, Task, Why};
use crate::store::{self, Saved};
use crate::work::{Answer, Device};
use crate::{RELEASE, audit, status};

/// The rules are told the jobs so often: what they asked for and is still there, they ask for again.
const JOBS_EVERY: Duration = Duration::from_secs(5);
/// With a GPU out of service, Slurm is asked so often what is still on the node.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// A state that nothing happened to is saved so often: counters are worth no more.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// The library counts as silent after so many seconds more than an interval.
const SILENT: Duration = Duration::from_secs(10);
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
    Watch(SyncSender<Happening>),
    /// A task came to its end.
    Slurm(Task, Answer),
    /// Read gpuos.toml again.
    Reload,
    /// End.
    End,
}

/// Where effects go.
pub struct Ports {
    /// Slurm's commands.
    pub slurm: Sender<Task>,
    /// Resets and checks.
    pub device: Sender<Device>,
    /// State and audit log.
    pub disk: Disk,
    /// Milliseconds since 1970, from a clock that may jump.
    pub wall: Box<dyn Fn() -> u64 + Send>,
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
    releases: Vec<Release>,
    found: Vec<Found>,
    queue: Queue,
    ports: Ports,
    watchers: Vec<SyncSender<Happening>>,
    reloads: Vec<SyncSender<Reply>>,
    /// What keeps the daemon from its work, by whom.
    troubles: BTreeMap<&'static str, String>,
    published: String,
    /// GPUs that Slurm's record shows as out are still to be taken over: nothing may be written there
    /// before.
    adopt: bool,
    started_ms: u64,
    polled: Option<Instant>,
    began: Instant,
    silent: bool,
    saved: Instant,
    told_jobs: Instant,
    /// When Slurm is asked for the node's record and jobs next.
    look: Instant,
    released: Instant,
    away: u32,
    not_before: Instant,
}

impl Owner {
    /// Begins with what was saved.
    pub fn new(start: Start, ports: Ports) -> Owner {
        let now = Instant::now();
        let seed = u64::from(crc32fast::hash(start.node.as_bytes()));
        let saved = start.saved.filter(|saved| saved.node == start.node);
        let rebooted = saved.as_ref().is_some_and(|saved| saved.boot != start.boot);
        let adopt = saved.is_none();
        let (health, jobs, releases) = match saved {
            Some(saved) => (saved.health, saved.jobs, saved.releases),
            None => (NodeHealth::new(0, seed), Table::default(), Vec::new()),
        };
        let mut owner = Owner {
            node: start.node,
            boot: start.boot,
            interval: start.interval,
            health,
            rules: Rules::default(),
            jobs: if rebooted { Table::default() } else { jobs },
            releases,
            found: Vec::new(),
            queue: Queue::default(),
            started_ms: (ports.wall)(),
            ports,
            watchers: Vec::new(),
            reloads: Vec::new(),
            troubles: BTreeMap::new(),
            published: String::new(),
            adopt,
            polled: None,
            began: now,
            silent: false,
            saved: now,
            told_jobs: now,
            look: now,
            released: now,
            away: 0,
            not_before: now,
        };
        owner.queue.push(Task::Config);
        owner.apply(Event::Started { rebooted });
        owner
    }

    /// Takes a message. Returns whether the daemon goes on.
    pub fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Library(told) => self.library(told),
            Message::Polled => self.polled(),
            Message::Health(event) => self.apply(event),
            Message::Asked {
                peer,
                request,
                reply,
            } => self.asked(peer, request, reply),
            Message::Watch(watcher) => self.watchers.push(watcher),
            Message::Slurm(task, answer) => self.answered(task, answer),
            Message::Reload => self.queue.push(Task::Config),
            Message::End => return false,
        }
        self.send_next();
        true
    }

    /// Time went by; at least one call each second.
    pub fn tick(&mut self) {
        let now = Instant::now();
        let quiet = self.polled.unwrap_or(self.began);
        // A library that was never there is a trouble of its own, and no silence.
        let late = now.duration_since(quiet) > self.interval + SILENT;
        if late && !self.silent && !self.found.is_empty() {
            self.silent = true;
            self.apply(Event::LibrarySilent);
        }
        if now.duration_since(self.told_jobs) >= JOBS_EVERY {
            self.tell_jobs();
        }
        if now >= self.look && now >= self.not_before {
            self.queue.push(Task::Show);
            self.queue.push(Task::Jobs(self.jobs.mark()));
            self.look = now + LOOK_EVERY;
        }
        if !self.health.part().out.is_empty() || self.health.drain.is_some() || self.adopt {
            self.look = self.look.min(now + LOOK_EVERY);
        }
        if now.duration_since(self.released) >= RELEASE_EVERY && now >= self.not_before {
            self.released = now;
            self.release();
        }
        self.apply(Event::Tick);
        if now.duration_since(self.saved) >= SAVE_EVERY {
            self.save(None);
        }
        match self.ports.disk.trouble() {
            Some(why) => drop(self.troubles.insert("disk", format!("cannot write {why}"))),
            None => drop(self.troubles.remove("disk")),
        }
        self.send_next();
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
        if let Some(task) = self.queue.begin()
            && self.ports.slurm.send(task).is_err()
        {
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

    fn step(&mut self, event: Event) -> Vec<Effect> {
        let now = (self.ports.wall)();
        let effects = step(&mut self.health, &self.rules, event, now);
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
                tracing::warn!("{text}");
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
                self.releases.push(Release::of(*job, *avoid_node, now));
                self.queue.push(act(Action::Requeue { job: *job }));
            }
            Effect::Publish { revision, part } => {
                // Not over what has not been read yet: told later that it failed, the rules try again.
                if !self.adopt {
                    let task = Task::Act(Action::Extra(part.clone()), Why::Publish(*revision));
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
        match audit.gpu {
            Some(gpu) => tracing::info!("GPU {gpu}: {}", audit.text),
            None => tracing::info!("{}", audit.text),
        }
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
        // Whoever is too slow goes: telling never waits.
        self.watchers
            .retain(|watcher| watcher.try_send(event.clone()).is_ok());
    }

    fn device(&mut self, gpu: u8, task: fn(Found) -> Device) {
        let known = self.found.iter().find(|found| found.gres == gpu).cloned();
        // One that the library never showed is told to the command by its number.
        let known = known.unwrap_or(Found {
            gres: gpu,
            nvml: gpu,
            uuid: String::new(),
            name: String::new(),
            pci: gpu.to_string(),
        });
        if self.ports.device.send(task(known)).is_err() {
            tracing::error!("the thread for resets and checks has ended");
        }
    }

    fn library(&mut self, told: Result<Vec<Found>, String>) {
        match told {
            Ok(found) => {
                let most = found.iter().map(|gpu| gpu.gres + 1).max().unwrap_or(0);
                self.grow(usize::from(most));
                tracing::info!("{} GPUs: {}", found.len(), names(&found));
                // A GPU that did not say who it is keeps the name that it had.
                let before = std::mem::take(&mut self.found);
                self.found = found;
                for gpu in self.found.iter_mut().filter(|gpu| gpu.uuid.is_empty()) {
                    if let Some(old) = before.iter().find(|old| old.gres == gpu.gres) {
                        *gpu = old.clone();
                    }
                }
                self.trouble("library", None);
            }
            Err(why) => {
                if self.troubles.get("library") != Some(&why) {
                    tracing::error!("{why}");
                    self.troubles.insert("library", why);
                }
            }
        }
    }

    /// Makes room for GPUs that were not known: NVIDIA's library and Slurm may count differently.
    fn grow(&mut self, gpus: usize) {
        let gpus = gpus.min(gpuos_core::gpuset::MAX_GPUS);
        if gpus > self.health.gpus.len() {
            self.health.gpus.resize(gpus, Default::default());
            self.save(None);
        }
    }

    fn polled(&mut self) {
        self.polled = Some(Instant::now());
        if self.silent {
            self.silent = false;
            self.apply(Event::LibraryBack);
        }
    }

    fn tell_jobs(&mut self) {
        self.told_jobs = Instant::now();
        self.apply(Event::Jobs(self.jobs.told()));
    }

    /// Writes the state; `ack` is told when it is safe.
    fn save(&mut self, ack: Option<Ack>) {
        self.saved = Instant::now();
        let saved = Saved {
            node: self.node.clone(),
            boot: self.boot.clone(),
            health: self.health.clone(),
            jobs: self.jobs.clone(),
            releases: self.releases.clone(),
        };
        self.ports.disk.save(store::encode(&saved), ack);
    }

    fn release(&mut self) {
        let now = (self.ports.wall)();
        self.releases.retain(|release| !release.is_stale(now));
        for release in &self.releases {
            let action = Action::Release {
                job: release.job,
                avoid_node: release.avoid_node,
            };
            self.queue.push(Task::Act(action, Why::Rule));
        }
    }

    fn asked(&mut self, peer: Peer, request: Request, reply: SyncSender<Reply>) {
        let answer = match request {
            Request::Status => Reply::Status {
                status: Box::new(self.status()),
            },
            Request::Admin {
                verb,
                gpus,
                reason,
                force,
            } => {
                let admin = Admin {
                    verb,
                    gpu: None,
                    reason,
                    uid: peer.uid,
                    force,
                };
                return self.admin(admin, &gpus, reply);
            }
            Request::StepStart { id, uid, gpus } => {
                let new = self.jobs.started(id, uid, &gpus);
                let unknown = self
                    .jobs
                    .jobs
                    .get(&id.job)
                    .is_some_and(|job| job.requeue.is_none());
                if new && unknown {
                    self.look = self.look.min(Instant::now() + MEET);
                }
                self.grow(
                    gpus.iter()
                        .map(|gpu| usize::from(*gpu) + 1)
                        .max()
                        .unwrap_or(0),
                );
                self.tell_jobs();
                done("noted")
            }
            Request::StepEnd { id } => {
                if self.jobs.ended(id) {
                    self.look = self.look.min(Instant::now() + MEET);
                }
                self.tell_jobs();
                done("noted")
            }
            Request::Reload => {
                self.reloads.push(reply);
                self.queue.push(Task::Config);
                return;
            }
            // Answered before they come here.
            Request::Hello { .. } | Request::Watch | Request::Audit { .. } => {
                refused(Code::Malformed, "not a question for the daemon".into())
            }
        };
        let _ = reply.try_send(answer);
    }

    /// An administrator's command; it is answered once it is safe on the disk.
    fn admin(&mut self, admin: Admin, gpus: &[u8], reply: SyncSender<Reply>) {
        let have = self.health.gpus.len();
        if let Some(gpu) = gpus.iter().find(|gpu| usize::from(**gpu) >= have) {
            let why = format!("this node has no GPU {gpu}: it has {have}, numbered from 0");
            let _ = reply.try_send(refused(Code::Unknown, why));
            return;
        }
        let each: Vec<Option<u8>> = match gpus {
            [] => vec![None],
            gpus => gpus.iter().map(|gpu| Some(*gpu)).collect(),
        };
        let verb = verb_name(admin.verb);
        for gpu in &each {
            let one = Admin {
                gpu: *gpu,
                ..admin.clone()
            };
            self.step(Event::Admin(one));
        }
        let mut message = match gpus {
            [] => format!("{} {verb}", self.node),
            gpus => {
                let states = gpus
                    .iter()
                    .map(|gpu| format!("GPU {gpu} {}", self.health.state(*gpu).word()));
                format!("{}: {}", self.node, states.collect::<Vec<_>>().join(", "))
            }
        };
        let holding: Vec<String> = each
            .iter()
            .flatten()
            .flat_map(|gpu| self.jobs.on(*gpu))
            .map(|job| job.to_string())
            .collect();
        if admin.verb != Verb::Online && !admin.force && !holding.is_empty() {
            message = format!(
                "{message}; job {} runs on it and may end (--force ends it)",
                holding.join(", ")
            );
        }
        let ack: Ack = Box::new(move |saved| {
            let answer = match saved {
                Ok(()) => done(&message),
                Err(why) => done(&format!(
                    "{message}; it holds until gpuosd ends, for it could not be saved: {why}"
                )),
            };
            let _ = reply.try_send(answer);
        });
        self.save(Some(ack));
    }

    fn status(&self) -> Status {
        let drained = match (&self.health.hold, &self.health.drain) {
            (Some(hold), _) => Some(status::held(hold)),
            (None, Some(drain)) => Some(drain.reason.clone()),
            (None, None) => None,
        };
        let ago = self.polled.map(|at| at.elapsed().as_millis() as u64);
        Status {
            node: self.node.clone(),
            daemon: DaemonStatus {
                release: RELEASE.into(),
                started_ms: self.started_ms,
                sampled_ms_ago: ago,
                waiting: (self.queue.len() + self.releases.len()) as u32,
                troubles: self.troubles.values().cloned().collect(),
            },
            published: self.published.clone(),
            node_drained: drained,
            gpus: status::gpus(&self.health, &self.found, &self.jobs),
            jobs: self.jobs.status(),
        }
    }

    fn answered(&mut self, task: Task, answer: Answer) {
        self.queue.done();
        let away = match &answer {
            Answer::Act(Outcome::Away(why)) => Some(why.clone()),
            Answer::Show(Err(Outcome::Away(why))) | Answer::Jobs(Err(Outcome::Away(why))) => {
                Some(why.clone())
            }
            _ => None,
        };
        self.slurm_is(away);
        match (task, answer) {
            (Task::Act(action, why), Answer::Act(outcome)) => self.acted(action, why, outcome),
            (_, Answer::Show(Ok(record))) => self.shown(&record),
            (Task::Jobs(mark), Answer::Jobs(Ok(jobs))) => {
                self.jobs.set(&self.node, &jobs, mark);
                self.tell_jobs();
            }
            (_, Answer::Config(told)) => self.configured(told),
            _ => {}
        }
    }

    fn slurm_is(&mut self, away: Option<String>) {
        match away {
            Some(why) => {
                self.away = self.away.saturating_add(1);
                let wait = Duration::from_secs(1 << self.away.min(5)).min(AWAY);
                self.not_before = Instant::now() + wait;
                self.look = self.look.min(self.not_before);
                if !self.troubles.contains_key("slurmctld") {
                    tracing::warn!("{why}; it is asked again until it answers");
                }
                self.troubles.insert("slurmctld", why);
            }
            None => {
                if self.troubles.remove("slurmctld").is_some() {
                    tracing::info!("slurmctld answers again");
                    self.look = Instant::now();
                }
                self.away = 0;
            }
        }
    }

    fn acted(&mut self, action: Action, why: Why, outcome: Outcome) {
        let ok = matches!(outcome, Outcome::Done(_) | Outcome::Nothing(_));
        if let Why::Publish(revision) = why {
            if let (Action::Extra(part), true) = (&action, ok) {
                self.published = part.to_string();
            }
            self.apply(Event::Published { revision, ok });
        }
        let over = match (&action, &outcome) {
            (_, Outcome::NotYet(_) | Outcome::Away(_)) => None,
            (Action::Release { job, .. }, _) | (Action::Requeue { job }, Outcome::Refused(_)) => {
                Some(*job)
            }
            _ => None,
        };
        if let Some(job) = over {
            self.releases.retain(|release| release.job != job);
        }
        let job = match &action {
            Action::Requeue { job } | Action::Release { job, .. } | Action::Kill { job, .. } => {
                Some(*job)
            }
            Action::Extra(_) | Action::Drain { .. } | Action::Undrain { .. } => None,
        };
        match outcome {
            Outcome::Done(text) => {
                self.note(text, job, None);
                // What was changed is looked at, so that the rules see it.
                self.look = self.look.min(Instant::now() + Duration::from_secs(2));
            }
            Outcome::Nothing(text) | Outcome::NotYet(text) => tracing::debug!("{text}"),
            Outcome::Away(text) => tracing::debug!("{text}"),
            Outcome::Refused(text) => {
                self.note(format!("slurmctld refused: {text}"), job, None);
                self.refused(&action);
            }
        }
        self.save(None);
    }

    /// A job that may not be requeued is ended where it uses the GPU; one that is not there any more, is
    /// forgotten with the next look.
    fn refused(&mut self, action: &Action) {
        let now = Instant::now();
        self.look = self.look.min(now + Duration::from_secs(1));
        let Action::Requeue { job } = action else {
            return;
        };
        let Some(held) = self.jobs.jobs.get_mut(job) else {
            return;
        };
        held.requeue = Some(false);
        self.queue.push(Task::Act(
            Action::Kill {
                job: *job,
                step: None,
            },
            Why::Rule,
        ));
    }

    fn shown(&mut self, record: &NodeRecord) {
        let part = ExtraPart::read(&record.extra).unwrap_or_else(|e| {
            tracing::warn!("{e}");
            ExtraPart::default()
        });
        self.published = part.to_string();
        self.grow(record.gpu_count());
        if std::mem::take(&mut self.adopt) {
            for gpu in &part.out {
                let admin = Admin {
                    verb: Verb::Drain,
                    gpu: Some(*gpu),
                    reason: "Slurm's node record says that it is out, and gpuosd had no state of its own; \
                             put it online when it is well"
                        .into(),
                    uid: 0,
                    force: false,
                };
                self.step(Event::Admin(admin));
            }
            self.save(None);
        }
        let drained = record.states.iter().any(|state| state.starts_with("DRAIN"));
        let drain = drained.then(|| record.reason.clone());
        self.apply(Event::Shown { part, drain });
    }

    fn configured(&mut self, told: Result<Box<Config>, String>) {
        let answer = match told {
            Ok(config) => {
                self.rules = config.health.clone();
                self.trouble("config", None);
                tracing::info!("gpuos.toml is read");
                done("gpuos.toml is read")
            }
            Err(why) => {
                tracing::error!("{why}; what was read before stays in force");
                self.trouble(
                    "config",
                    Some(format!("{why}; what was read before stays in force")),
                );
                refused(Code::Failed, why)
            }
        };
        for reply in self.reloads.drain(..) {
            let _ = reply.try_send(answer.clone());
        }
    }
}

fn done(message: &str) -> Reply {
    Reply::Done {
        message: message.into(),
    }
}

fn verb_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Drain => "draining",
        Verb::Online => "online",
        Verb::Offline => "offline",
    }
}

/// `8 x NVIDIA H100` and the like, for the log.
fn names(found: &[Found]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in found {
        *counts.entry(&gpu.name).or_default() += 1;
    }
    let each = counts
        .iter()
        .map(|(name, count)| format!("{count} x {name}"));
    each.collect::<Vec<_>>().join(", ")
}
