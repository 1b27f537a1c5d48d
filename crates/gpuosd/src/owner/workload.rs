//! What the workload manager answered, and what follows from it.

use std::time::Duration;

use gpuos_config::gpuos_toml::Config;
use gpuos_core::health::{Admin, Event, ExtraPart, Verb, number};
use gpuos_core::wire::Code;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::Job;
use gpuos_workload::node::NodeRecord;

use super::host::differs;
use super::{AWAY, Owner, done};
use crate::desk::refused;
use crate::isolation::Order;
use crate::queue::{Task, Why};
use crate::work::Answer;

/// Jobs with a record that cannot be read, as far as they are remembered.
const UNREAD: usize = 4096;

impl Owner {
    pub(super) fn answered(&mut self, task: Task, answer: Answer) {
        self.queue.done();
        match &answer {
            Answer::Act(Outcome::Away(why))
            | Answer::Show(Err(Outcome::Away(why)))
            | Answer::Jobs(Err(Outcome::Away(why)))
            | Answer::Job(Err(Outcome::Away(why))) => self.controller_is(Some(why.clone())),
            Answer::Config(Ok(None), _) => {
                self.controller_is(Some("slurmctld does not say where gpuos.toml is".into()));
            }
            // gpuos.toml may be read without slurmctld, too.
            Answer::Config(..) => {}
            _ => self.controller_is(None),
        }
        match (task, answer) {
            (Task::Act(action, why), Answer::Act(outcome)) => self.acted(action, why, outcome),
            (_, Answer::Show(Ok(record))) => self.shown(&record),
            (Task::Jobs(mark), Answer::Jobs(Ok(jobs_told))) => {
                self.unread(&jobs_told);
                self.jobs.set(&self.node, &jobs_told, mark);
                self.ports.peers.jobs(&jobs_told);
                let slices = |job: &Job| self.mig.on_moving(&self.node, job);
                let asked = self.jobs_asked;
                self.isolation.jobs(&self.node, &jobs_told, slices, asked);
                // Before the rules, which are told who has slices now.
                self.mig_jobs(&jobs_told);
                self.told_jobs = self.now();
                let jobs = self.told_jobs_with_processes();
                self.apply(Event::Jobs(jobs));
                self.tell_limits();
            }
            (Task::Job(job), Answer::Job(Ok(record))) => {
                self.unread_one(record.as_deref());
                self.job_told(job, record.as_deref());
                self.mig_job(job, record.as_deref());
            }
            // Not asked again: its steps wait.
            (Task::Job(job), Answer::Job(Err(_))) => self.job_told(job, None),
            (_, Answer::Config(told, untold)) => {
                self.mig_untold(untold);
                self.configured(told);
            }
            _ => {}
        }
    }

    fn controller_is(&mut self, away: Option<String>) {
        match away {
            Some(why) => {
                self.away = self.away.saturating_add(1);
                let wait = Duration::from_secs(1 << self.away.min(5)).min(AWAY);
                self.not_before = self.now() + wait;
                self.look = self.look.min(self.not_before);
                if !self.troubles.contains_key("slurmctld") {
                    tracing::warn!("{why}; it is asked again until it answers");
                }
                self.troubles.insert("slurmctld", why);
            }
            None => {
                if self.troubles.remove("slurmctld").is_some() {
                    tracing::info!("slurmctld answers again");
                    self.look = self.now();
                }
                self.away = 0;
            }
        }
    }

    fn acted(&mut self, action: Action, why: Why, outcome: Outcome) {
        self.metrics.acted(&action, &outcome);
        self.traces.acted((self.ports.wall)(), &action, &outcome);
        self.mig_acted(&action, &outcome);
        let ok = matches!(outcome, Outcome::Done(_) | Outcome::Nothing(_));
        if let Why::Publish(revision) = why {
            if let (Action::Publish(part), true) = (&action, ok) {
                self.published = part.to_string();
                self.changed = Some(self.now());
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
        let job = action.job();
        match outcome {
            Outcome::Done(text) => {
                self.note(text, job, None);
                // What was changed is looked at, so that the rules see it.
                self.look = self.look.min(self.now() + Duration::from_secs(2));
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
        let now = self.now();
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

    /// Says of each job whose record cannot be read why, once.
    fn unread(&mut self, jobs: &[Job]) {
        let unread = |id: &u32| {
            let mut all = jobs.iter();
            all.any(|job| job.id == *id && !job.unreadable.is_empty())
        };
        self.unread_jobs.retain(unread);
        jobs.iter().for_each(|job| self.unread_one(Some(job)));
    }

    fn unread_one(&mut self, job: Option<&Job>) {
        let Some(job) = job.filter(|job| !job.unreadable.is_empty()) else {
            return;
        };
        if self.unread_jobs.len() < UNREAD && self.unread_jobs.insert(job.id) {
            let text = format!(
                "Slurm's record of job {} cannot be read, and what it has is taken from no other place: {}. A text of \
                 its user looks like a part of the record; with JobSubmitPlugins=gpuos Slurm refuses such texts",
                job.id, job.unreadable
            );
            tracing::warn!(job = job.id, uid = job.uid, "{text}");
            self.note(text, Some(job.id), Some(job.uid));
        }
    }

    fn shown(&mut self, record: &NodeRecord) {
        differs(&self.hardware.shown(record));
        let part = record.published.clone();
        if let Some(why) = &record.damaged {
            tracing::warn!("{why}");
        }
        self.grow(record.gpu_count());
        let here = self.here(&part);
        self.published = here.to_string();
        // Of a pool of which the part has all, the library has to say first what that is.
        let unnamed = self.found.is_empty() && self.pooled.is_empty();
        if self.adopt && !(part.has_whole_pool_out() && unnamed) {
            self.adopt = false;
            for gpu in here.all_out() {
                self.know_pooled(gpu);
                let admin = Admin {
                    verb: Verb::Drain,
                    gpu: Some(gpu),
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
        self.apply(Event::Shown {
            part,
            damaged: record.damaged.is_some(),
            drain: record.drain.clone(),
        });
    }

    /// What a part says of the GPUs that this node has; one whose words were damaged names all there could be.
    fn here(&self, part: &ExtraPart) -> ExtraPart {
        let mut here = part.clone();
        let gpus = self.health.gpus.len();
        here.out.retain(|gpu| usize::from(*gpu) < gpus);
        if part.has_whole_pool_out() {
            let pool = self.health.pool.keys();
            here.pool_out = pool.filter_map(|gpu| number::pool_index(*gpu)).collect();
        }
        here
    }

    fn configured(&mut self, told: Result<Option<Box<Config>>, String>) {
        self.unread = matches!(told, Ok(None));
        let answer = match told {
            Ok(None) => {
                self.ports.numbering.configured(&self.node, None);
                let why = "slurmctld does not answer and has to say where gpuos.toml is; it is asked again until it \
                           does, and what was read before stays in force (--config names the file without it)";
                self.trouble("config", Some(why.into()));
                refused(Code::Failed, why.into())
            }
            Ok(Some(config)) => {
                let numbering = &self.ports.numbering;
                numbering.configured(&self.node, Some(&config.mig));
                self.rules = config.health.clone();
                self.metrics.set(&config.metrics);
                self.ports.peers.configure(config.heartbeat);
                self.traces.set(&config.metrics);
                self.trouble("config", None);
                tracing::info!("gpuos.toml is read");
                self.seers.access = config.access.clone();
                self.held.rules = config.forbidden.clone();
                self.isolation.set(&config.isolation);
                let devices = Order::Devices(config.isolation.devices);
                let _ = self.ports.isolation.send(devices);
                let _ = self.ports.file_systems.send(config.file_systems.clone());
                self.mig_configured(&config.mig);
                differs(&self.hardware.configured(config));
                done("gpuos.toml is read")
            }
            Err(why) => {
                self.ports.numbering.configured(&self.node, None);
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

    pub(super) fn release(&mut self) {
        for release in &mut self.releases {
            release.tried = release.tried.saturating_add(1);
        }
        self.releases.retain(|release| !release.is_stale());
        let told = self.health.told();
        for release in self.releases.iter().filter(|one| told || one.is_due()) {
            let action = Action::Release {
                job: release.job,
                avoid_node: release.avoid_node && !told,
            };
            self.queue.push(Task::Act(action, Why::Rule));
        }
    }
}
