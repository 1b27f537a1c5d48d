//! The conversation with slurmctld: one question or order at a time, when it is asked again, and what it was told.

use std::time::{Duration, Instant};

use gpuos_core::health::{Admin, Event, ExtraPart, NodeHealth, Verb};
use gpuos_core::job::JobId;
use gpuos_core::wire::Reply;
use gpuos_model::gpuset::MAX_GPUS;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::node::NodeRecord;

use super::client::Client;
use super::effect::{Effect, Effects, Now, PollBy};
use crate::blocking::Answer;
use crate::jobs::Table;
use crate::queue::{Queue, Release, Task, Why};

/// With a GPU out of service, Slurm is asked so often what is still on the node.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// After a GPU went out or came back it is asked more often, for so long: a reset waits for what it says.
const CHANGED: Duration = Duration::from_secs(60);
/// How often then.
const LOOK_OFTEN: Duration = Duration::from_secs(6);
/// A requeued job is looked after so often.
const RELEASE_EVERY: Duration = Duration::from_secs(1);
/// Wait after a slurmctld that was away, at most.
const AWAY: Duration = Duration::from_secs(30);
/// What was changed is looked at after so long, so that the rules see it.
const DONE: Duration = Duration::from_secs(2);
/// The same of what was refused.
const REFUSED: Duration = Duration::from_secs(1);

/// When slurmctld is asked for the node's record and jobs.
#[derive(Debug)]
struct PollTimes {
    next: Instant,
    last: Instant,
    /// When it took another state of the GPUs last.
    changed: Option<Instant>,
    /// When the jobs were asked for that the last answer is about.
    jobs: Instant,
}

/// A slurmctld that does not answer is asked ever more seldom.
#[derive(Debug)]
struct Backoff {
    failures: u32,
    until: Instant,
    /// That it is away was said.
    logged: bool,
}

/// gpuos.toml, whose place slurmctld tells.
#[derive(Debug, Default)]
struct ConfigFile {
    /// It is to be read once slurmctld says where it is.
    unread: bool,
    /// Clients that wait until it is.
    clients: Vec<Client>,
}

/// What slurmctld is asked and told.
pub struct Scheduler {
    queue: Queue,
    releases: Vec<Release>,
    released: Instant,
    polls: PollTimes,
    backoff: Backoff,
    config: ConfigFile,
    /// What it knows of the GPUs.
    published: String,
    /// Its daemon, as sentences name it.
    asked: &'static str,
    /// GPUs that Slurm's record shows as out are still to be taken over: nothing may be written there before.
    adopt: bool,
}

impl Scheduler {
    /// Begins with the jobs that Slurm still held back. `adopt`: nothing was saved.
    pub fn new(releases: Vec<Release>, adopt: bool, now: Instant) -> Scheduler {
        Scheduler {
            queue: Queue::default(),
            releases,
            released: now,
            polls: PollTimes {
                next: now,
                last: now,
                changed: None,
                jobs: now,
            },
            backoff: Backoff {
                failures: 0,
                until: now,
                logged: false,
            },
            config: ConfigFile::default(),
            published: String::new(),
            asked: "slurmctld",
            adopt,
        }
    }

    /// The same, with this daemon of another workload manager in slurmctld's place.
    #[must_use]
    pub fn asking(mut self, daemon: &'static str) -> Scheduler {
        self.asked = daemon;
        self
    }

    /// It has spoken by itself, and so knows more, or is back.
    pub fn heard(&mut self, now: Instant) {
        self.backoff.until = now;
        self.polls.next = now;
    }

    /// Jobs that Slurm still holds back.
    pub fn releases(&self) -> &[Release] {
        &self.releases
    }

    /// What slurmctld knows of the GPUs.
    pub fn published(&self) -> &str {
        &self.published
    }

    /// How much waits for it.
    pub fn waiting(&self) -> u32 {
        (self.queue.len() + self.releases.len()) as u32
    }

    /// When the jobs were asked for that the last answer is about.
    pub fn jobs_asked(&self) -> Instant {
        self.polls.jobs
    }

    /// Whether it may be asked now: it is not waited for.
    pub fn may_ask(&self, now: Instant) -> bool {
        now >= self.backoff.until
    }

    /// After all that waits.
    pub fn ask(&mut self, task: Task) {
        self.queue.push(task);
    }

    /// Before all that waits.
    pub fn ask_first(&mut self, task: Task) {
        self.queue.push_first(task);
    }

    /// The node's record and jobs are asked for no later than that.
    pub fn poll_by(&mut self, look: PollBy, now: Instant) {
        let at = match look {
            PollBy::In(after) => now + after,
            PollBy::AfterLast(after) => self.polls.last + after,
            PollBy::InAndAfterLast(after, last) => (now + after).max(self.polls.last + last),
        };
        self.polls.next = self.polls.next.min(at);
    }

    /// slurmctld is told what is out, unless what it shows has not been read yet: told later that it failed, the rules try
    /// again.
    pub fn publish(&mut self, revision: u64, part: ExtraPart) {
        if !self.adopt {
            let task = Task::Act(Action::Publish(part), Why::Publish(revision));
            self.queue.push(task);
        }
    }

    /// A job is let go that slurmctld holds back.
    pub fn release(&mut self, release: Release) {
        self.releases.push(release);
    }

    /// It is looked after no more.
    pub fn forget_release(&mut self, job: &JobId) {
        self.releases.retain(|release| release.job != *job);
    }

    /// gpuos.toml is read again, and this client told.
    pub fn reload(&mut self, client: Client) {
        self.config.clients.push(client);
        self.queue.push(Task::Config);
    }

    /// What the thread is to do next; nothing while it is busy.
    pub fn next(&mut self, now: Instant) -> Option<Task> {
        let task = self.queue.begin()?;
        if matches!(task, Task::Jobs(_)) {
            self.polls.jobs = now;
        }
        Some(task)
    }

    /// The thread takes nothing any more.
    pub fn ended(&mut self) {
        tracing::error!("the thread for Slurm's commands has ended");
        self.queue.done();
    }

    /// Time went by.
    pub fn tick(&mut self, health: &NodeHealth, jobs: &Table, now: Instant) {
        let may_ask = self.may_ask(now);
        if self.config.unread && may_ask {
            // What slurmctld says of jobs is looked at with it.
            self.queue.push_first(Task::Config);
        }
        if now >= self.polls.next && may_ask {
            self.queue.push(Task::Show);
            self.queue.push(Task::Jobs(jobs.mark()));
            (self.polls.next, self.polls.last) = (now + LOOK_EVERY, now);
        }
        if health.part().has_any_out() || health.drain.is_some() || self.adopt {
            let changed = self.polls.changed;
            let changed = changed.is_some_and(|at| now.duration_since(at) < CHANGED);
            let every = if changed { LOOK_OFTEN } else { LOOK_EVERY };
            self.poll_by(PollBy::In(every), now);
        }
        if now.duration_since(self.released) >= RELEASE_EVERY && may_ask {
            self.released = now;
            self.let_go(health.is_confirmed());
        }
    }

    /// Has jobs let go that Slurm holds back. `told`: slurmctld knows which GPUs are out.
    fn let_go(&mut self, told: bool) {
        for release in &mut self.releases {
            release.tried = release.tried.saturating_add(1);
        }
        self.releases.retain(|release| !release.is_stale());
        for release in self.releases.iter().filter(|one| told || one.is_due()) {
            let action = Action::Release {
                job: release.job.clone(),
                avoid_node: release.avoid_node && !told,
            };
            self.queue.push(Task::Act(action, Why::Rule));
        }
    }

    /// The thread has done a task.
    pub fn answered(&mut self, answer: &Answer, now: Now) -> Effects {
        self.queue.done();
        match answer {
            Answer::Act(Outcome::NoAnswer(why))
            | Answer::Show(Err(Outcome::NoAnswer(why)))
            | Answer::Jobs(Err(Outcome::NoAnswer(why)))
            | Answer::Job(Err(Outcome::NoAnswer(why))) => self.no_answer(why.clone(), now.at),
            Answer::Config(Ok(None), _) => self.no_answer(
                format!("{} does not say where gpuos.toml is", self.asked),
                now.at,
            ),
            // gpuos.toml may be read without slurmctld, too.
            Answer::Config(..) => Effects::default(),
            _ => self.back(now.at),
        }
    }

    fn no_answer(&mut self, why: String, now: Instant) -> Effects {
        let mut fx = Effects::default();
        self.backoff.failures = self.backoff.failures.saturating_add(1);
        let wait = Duration::from_secs(1 << self.backoff.failures.min(5)).min(AWAY);
        self.backoff.until = now + wait;
        self.poll_by(PollBy::In(wait), now);
        if !std::mem::replace(&mut self.backoff.logged, true) {
            tracing::warn!("{why}; it is asked again until it answers");
        }
        fx.trouble(self.asked, Some(why));
        fx
    }

    fn back(&mut self, now: Instant) -> Effects {
        let mut fx = Effects::default();
        if std::mem::take(&mut self.backoff.logged) {
            tracing::info!("{} answers again", self.asked);
            self.polls.next = now;
            fx.trouble(self.asked, None);
        }
        self.backoff.failures = 0;
        fx
    }

    /// slurmctld has changed something, or not.
    pub fn acted(
        &mut self,
        (action, why): (&Action, Why),
        outcome: Outcome,
        jobs: &Table,
        now: Instant,
    ) -> Effects {
        let mut fx = Effects::default();
        let ok = matches!(outcome, Outcome::Done(_) | Outcome::Nothing(_));
        if let Why::Publish(revision) = why {
            if let (Action::Publish(part), true) = (action, ok) {
                self.published = part.to_string();
                self.polls.changed = Some(now);
            }
            fx.push(Effect::Rules(Event::Published { revision, ok }));
        }
        let over = match (action, &outcome) {
            (_, Outcome::NotYet(_) | Outcome::NoAnswer(_)) => None,
            (Action::Release { job, .. }, _) | (Action::Requeue { job }, Outcome::Refused(_)) => {
                Some(job.clone())
            }
            _ => None,
        };
        if let Some(job) = over {
            fx.push(Effect::ForgetRelease(job));
        }
        let job = action.job();
        match outcome {
            Outcome::Done(text) => {
                fx.note(text, job.cloned(), None);
                fx.poll_scheduler(PollBy::In(DONE));
            }
            Outcome::Nothing(text) | Outcome::NotYet(text) => tracing::debug!("{text}"),
            Outcome::NoAnswer(text) => tracing::debug!("{text}"),
            Outcome::Refused(text) => {
                fx.note(
                    format!("{} refused: {text}", self.asked),
                    job.cloned(),
                    None,
                );
                refused(action, jobs, &mut fx);
            }
        }
        fx.save();
        fx
    }

    /// slurmctld has shown the node. `unnamed`: the library has not said yet who the GPUs are.
    pub fn shown(&mut self, record: &NodeRecord, health: &NodeHealth, unnamed: bool) -> Effects {
        let mut fx = Effects::default();
        let part = record.published.clone();
        if let Some(why) = &record.damaged {
            tracing::warn!("{why}");
        }
        let count = record.gpu_count();
        fx.push(Effect::Grow(count));
        let here = here(&part, health, count);
        self.published = here.to_string();
        // Of a pool of which the part has all, the library has to say first what that is.
        if self.adopt && !(part.has_whole_pool_out() && unnamed) {
            self.adopt = false;
            for gpu in here.all_out() {
                fx.push(Effect::KnowPooled(gpu));
                fx.push(Effect::Command(Admin {
                    verb: Verb::Drain,
                    gpu: Some(gpu),
                    reason: "Slurm's node record says that it is out, and gpuosd had no state of its own; \
                             put it online when it is well"
                        .into(),
                    uid: 0,
                    force: false,
                }));
            }
            fx.save();
        }
        fx.push(Effect::Rules(Event::Shown {
            part,
            damaged: record.damaged.is_some(),
            drain: record.drain.clone(),
        }));
        fx
    }

    /// gpuos.toml was read, or not: what clients are told. `unread`: slurmctld, which does not answer, has to say where it is.
    pub fn configured(&mut self, unread: bool, answer: &Reply) -> Effects {
        let mut fx = Effects::default();
        self.config.unread = unread;
        for client in self.config.clients.drain(..) {
            fx.reply(client, answer.clone());
        }
        fx
    }
}

/// A job that may not be requeued is ended where it uses the GPU; one that is not there any more, is forgotten with the next
/// look.
fn refused(action: &Action, jobs: &Table, fx: &mut Effects) {
    fx.poll_scheduler(PollBy::In(REFUSED));
    if let Action::Requeue { job } = action
        && jobs.jobs.contains_key(job)
    {
        let (job, step) = (job.clone(), None);
        let why = "the job is ended, as it may not be requeued (--no-requeue, or JobRequeue=0) and has to leave a GPU or memory of this node; \
                   gpuosd's audit log on the node has why: gpuos health --audit=50 --job=JOB";
        fx.tell(&job, why.into());
        fx.push(Effect::MayNotRequeue(job.clone()));
        fx.ask(Task::Act(Action::Kill { job, step }, Why::Rule));
    }
}

/// What a part says of the GPUs that this node has; one whose words were damaged names all there could be. `count`: so many has
/// Slurm.
fn here(part: &ExtraPart, health: &NodeHealth, count: usize) -> ExtraPart {
    let mut here = part.clone();
    let gpus = health.gpus.len().max(count.min(MAX_GPUS));
    here.out.retain(|gpu| gpu.index() < gpus);
    if part.has_whole_pool_out() {
        let pool = health.pool.keys();
        here.pool_out = pool.filter_map(|gpu| gpu.pool()).collect();
    }
    here
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
