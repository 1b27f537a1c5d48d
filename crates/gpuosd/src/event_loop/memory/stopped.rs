//! Programs that hear nothing for now: slurmctld has suspended their job, or a signal has stopped them. The broker asks nothing of them
//! meanwhile, and ends none for not having answered.
//!
//! That a process is stopped the kernel says. Whether its job is suspended slurmctld says: it is asked when a process is stopped or goes on, and
//! when one takes long for what it was told, since control groups freeze processes without the kernel's word for it.

use std::time::{Duration, Instant};

use gpuos_memory::lease::{ClientId, Input, JobId as Number};
use gpuos_memory::protocol::ToProgram;
use gpuos_workload::job::{Job, JobState};

use super::super::effect::Effects;
use super::super::facts::Facts;
use super::Memory;
use crate::queue::Task;

/// Who has not parked, or come back, after so long may be suspended: slurmctld is asked.
const SLOW: Duration = Duration::from_secs(3);

impl Memory {
    /// The kernel says that a process is stopped, or goes on.
    pub(super) fn signalled(
        &mut self,
        client: ClientId,
        is: bool,
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        if let Some(job) = self.job_of(client) {
            fx.ask_first(Task::Job(job));
        }
        self.step(Input::Stopped(client, is), on, fx);
    }

    /// slurmctld told of a job: whether it is suspended.
    pub(super) fn suspended(&mut self, record: &Job, on: &Facts<'_>, fx: &mut Effects) {
        let lent = self.jobs.get_mut(&record.id);
        if let Some(number) = record.id.number()
            && let Some(lent) = lent.filter(|lent| lent.in_turns && lent.spec.is_none())
        {
            let is = record.state == JobState::Stopped;
            lent.suspended = is;
            self.step(Input::Suspended(Number(number.into()), is), on, fx);
        }
    }

    /// A program says something: slurmctld is asked again of a job that was suspended.
    pub(super) fn is_awake(&mut self, client: ClientId, fx: &mut Effects) {
        let job = self.holders.get(&client).map(|holder| &holder.program.job);
        let lent = job.and_then(|job| self.jobs.get_mut(job));
        if let (Some(job), Some(lent)) = (job, lent)
            && std::mem::take(&mut lent.suspended)
        {
            fx.ask_first(Task::Job(job.clone()));
        }
    }

    /// Says something that a program has to do by a time. False: it is of an earlier release and would not understand.
    pub(super) fn tell(&mut self, client: ClientId, what: &ToProgram, on: &Facts<'_>) -> bool {
        let heard = self.say(client, what);
        if heard && let Some(holder) = self.holders.get_mut(&client) {
            holder.told = Some(on.now.at);
        }
        heard
    }

    /// Asks slurmctld of the jobs of programs that take long, once for each thing that they were told.
    pub(super) fn ask_of_the_slow(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        let late = |told: &mut Instant| on.now.at.saturating_duration_since(*told) >= SLOW;
        for holder in self.holders.values_mut() {
            if holder.told.take_if(late).is_some() {
                fx.ask_first(Task::Job(holder.program.job.clone()));
            }
        }
    }

    /// The job of a process, also of one that has not connected since gpuosd was started.
    fn job_of(&self, client: ClientId) -> Option<gpuos_core::job::JobId> {
        if let Some(holder) = self.holders.get(&client) {
            return Some(holder.program.job.clone());
        }
        let view = self.broker.view();
        let known = view.clients.iter().find(|one| one.client == client)?;
        u32::try_from(known.job.0).ok().map(Into::into)
    }
}
