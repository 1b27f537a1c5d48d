//! What the workload manager answered, and what follows from it.

use gpuos_config::gpuos_toml::Config;
use gpuos_core::health::Event;
use gpuos_core::job::JobId;
use gpuos_core::wire::Code;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::Job as Record;

use super::EventLoop;
use super::client::done;
use super::effect::Effects;
use crate::blocking::Answer;
use crate::isolation::Order;
use crate::queue::{Task, Why};
use crate::socket_handler::refused;

impl EventLoop {
    /// What slurmctld answered, and what follows from it.
    pub(super) fn answered(&mut self, task: Task, answer: Answer) {
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
}
