//! What the broker wants done: what programs are told, and who is ended or requeued.
//!
//! Some hear nothing for now: slurmctld has suspended their job, or a signal has stopped them. The broker asks nothing of them meanwhile, and
//! ends none for not having answered. That a process is stopped the kernel says. Whether its job is suspended slurmctld says: it is asked when
//! a process is stopped or goes on, and when one takes long for what it was told, since control groups freeze processes without the kernel's
//! word for it.

use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_memory::lease::{
    ClientId, ClientView, Demote, Effect as Want, GpuId, Granted, Input, Notice as Said, Place,
    Refuge, Refused,
};
use gpuos_memory::protocol::{Short, ToProgram};
use gpuos_workload::action::Action;
use gpuos_workload::job::{Job, JobState};

use super::super::effect::{Effect, Effects, Quota};
use super::super::facts::Facts;
use super::jobs::{named_by, number};
use super::{Memory, job_of, uuid};
use crate::driver_checkpoint::Way;
use crate::memory::caller::{Failed, Order, Outcome};
use crate::memory::programs::{Program, process};
use crate::memory::watch;
use crate::queue::{Task, Why};

/// Who has not parked, come back or demoted after so long may be suspended: slurmctld is asked.
const SLOW: Duration = Duration::from_secs(3);
/// For so long a process waits for others of its job to be dead, rather than to be refused what they have: a script starts a program again in
/// the moment in which the earlier one has ended. Programs wait 10 s for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// A refusal that was put off is due.
pub(super) fn is_late(since: Instant, on: &Facts<'_>) -> bool {
    on.now.at.saturating_duration_since(since) >= PATIENCE
}

impl Memory {
    pub(super) fn want(&mut self, want: Want, on: &Facts<'_>, fx: &mut Effects) {
        let left = |deadline: u64| deadline.saturating_sub(on.now.running_ms);
        match want {
            Want::Journal(_) | Want::Move(_) | Want::NoMove(_) => {}
            Want::Answer {
                client,
                gpu,
                answer,
            } => self.answer(client, gpu, answer, on, fx),
            Want::Park {
                client,
                to,
                nvme,
                deadline_ms,
            } => {
                let deadline_ms = left(deadline_ms);
                let park = match nvme {
                    0 => ToProgram::Park { deadline_ms },
                    bytes => ToProgram::Stow {
                        deadline_ms,
                        bytes,
                        all: to == Refuge::Nvme,
                        mover: self.nvme.mover.clone(),
                    },
                };
                // Whose connection is lost is told when it is there again.
                if !self.tell(client, &park, on) && nvme > 0 && self.is_there(client) {
                    self.step(Input::NotParked(client), on, fx);
                }
            }
            Want::Turn { client, .. } => {
                self.tell(client, &ToProgram::Turn, on);
            }
            Want::Checkpoint {
                client,
                deadline_ms,
            } => self.call_driver((client, Way::Out), left(deadline_ms), on, fx),
            Want::Restore {
                client,
                deadline_ms,
            } => self.call_driver((client, Way::Back), left(deadline_ms), on, fx),
            Want::Lease {
                client,
                gpu,
                granted,
            } => self.lease(client, gpu, granted, on),
            Want::Demote {
                client,
                what: Demote::Clean,
                deadline_ms,
            } => {
                let deadline_ms = left(deadline_ms);
                // A program of an earlier release keeps no copies.
                if !self.tell(client, &ToProgram::Trim { deadline_ms }, on) {
                    self.step(Input::Demoted { client, bytes: 0 }, on, fx);
                }
            }
            Want::Demote {
                client,
                deadline_ms,
                ..
            } => {
                let demote = ToProgram::Demote {
                    deadline_ms: left(deadline_ms),
                    bytes: self.leaving(client),
                    mover: self.nvme.mover.clone(),
                };
                if !self.tell(client, &demote, on) {
                    self.step(Input::Demoted { client, bytes: 0 }, on, fx);
                }
            }
            Want::Notify { client, notice } => {
                let short = match notice {
                    Said::Pressure | Said::NoRequeue => Some(Short::Node),
                    Said::JobPressure => Some(Short::Job),
                    Said::Calm => Some(Short::Calm),
                    Said::Serialised { .. } | Said::Sliced => None,
                };
                let heard =
                    short.is_some_and(|short| self.say(client, &ToProgram::Pressure(short)));
                // Who has a word for it tells its user by itself.
                if !heard || notice == Said::NoRequeue {
                    let text = notice.to_string();
                    self.say(client, &ToProgram::Note { text });
                }
            }
            Want::End { client, why } => self.end(client, &why.to_string(), fx),
            Want::Requeue { job, why } => {
                let Some(job) = named_by(job, self.jobs.keys()) else {
                    return;
                };
                fx.tell(&job, why.to_string());
                fx.note(format!("job {job}: {why}"), Some(job.clone()), None);
                fx.ask(Task::Act(Action::Requeue { job }, Why::Rule));
            }
        }
    }

    fn answer(
        &mut self,
        client: ClientId,
        gpu: GpuId,
        answer: Result<Granted, Refused>,
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        let Some(holder) = self.holders.get_mut(&client) else {
            return;
        };
        let asked = holder.asked.get_mut(&gpu);
        let slack = asked.as_ref().is_some_and(|asked| asked.slack);
        match answer {
            Ok(granted) => {
                asked.into_iter().for_each(|asked| asked.put_off = None);
                // Who is stopped does not hear that host memory is short, either.
                fx.push(Effect::Programs(watch::Order::Follow(client)));
                self.lease(client, gpu, granted, on);
            }
            // Without the room for moves it may do: then extents stay where they are.
            Err(why) if slack && !matches!(why, Refused::NoJob | Refused::NotItsGpu { .. }) => {
                let ask = asked.map(|asked| {
                    asked.slack = false;
                    asked.ask(client, &holder.program, gpu)
                });
                ask.into_iter().for_each(|ask| self.step(ask, on, fx));
            }
            Err(why) if self.puts_off(client, gpu, why, on) => {}
            Err(why) if self.denies(client, why) => self.deny(client, &why.to_string(), fx),
            Err(why) => match uuid(gpu, on).filter(|_| !why.is_about_all()) {
                // Its other GPUs are not concerned.
                Some(gpu) => {
                    let why = why.to_string();
                    let one = ToProgram::Without {
                        gpu,
                        why: why.clone(),
                    };
                    // A program of an earlier release has all of its GPUs in tiers, or none.
                    if !self.say(client, &one) {
                        self.refuse(client, &why);
                    }
                }
                None => self.refuse(client, &why.to_string()),
            },
        }
    }

    /// Whether a program that is refused may not use the GPU by itself: it is of a job in turns, whose neighbours count on the memory that it would
    /// take. One that has something already keeps that.
    fn denies(&self, client: ClientId, why: Refused) -> bool {
        let about_it = matches!(
            why,
            Refused::NoJob | Refused::Ending | Refused::NotItsGpu { .. }
        );
        let has = self.seen(client).is_some_and(|it| !it.leases.is_empty());
        let job = self.holders.get(&client).map(|it| &it.program.job);
        let mut steps = self.steps.iter();
        let in_turns = steps.any(|(id, memory)| Some(&id.job) == job && memory.timeslice);
        in_turns && !has && !about_it
    }

    /// The program uses no GPU. One of an earlier release, which does not know that word, is ended.
    fn deny(&mut self, client: ClientId, why: &str, fx: &mut Effects) {
        let why = why.to_owned();
        if !self.say(client, &ToProgram::Denied { why: why.clone() }) {
            let why = format!(
                "the process was ended: {why}; it does not start beside the jobs that have the GPU in turns"
            );
            return self.end(client, &why, fx);
        }
        let Some(holder) = self.holders.get(&client) else {
            return;
        };
        let what = format!(" was not given the GPU in turns: {why}");
        tell(&holder.program, &what, fx);
    }

    /// Whether a refusal waits: others of the job have what was asked for, and may be dead.
    fn puts_off(&mut self, client: ClientId, gpu: GpuId, why: Refused, on: &Facts<'_>) -> bool {
        let Some(holder) = self.holders.get_mut(&client) else {
            return false;
        };
        let job = job_of(&holder.program);
        let others = || {
            let mut all = self.broker.view().clients.into_iter();
            all.any(|one| one.client != client && one.job == job)
        };
        let others = why.may_be_of_the_dead() && others();
        let Some(asked) = holder.asked.get_mut(&gpu) else {
            return false;
        };
        let since = *asked.put_off.get_or_insert(on.now.at);
        let waits = others && !is_late(since, on);
        if !waits {
            asked.put_off = None;
        }
        waits
    }

    /// Asks the broker anew for what was put off since such a time.
    pub(super) fn ask_again(
        &mut self,
        which: impl Fn(Instant) -> bool,
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        let mut asks = Vec::new();
        for (client, holder) in &mut self.holders {
            for (gpu, asked) in &mut holder.asked {
                if asked.put_off.is_some_and(&which) {
                    asked.slack = asked.tiers;
                    asks.push(asked.ask(*client, &holder.program, *gpu));
                }
            }
        }
        for ask in asks {
            self.step(ask, on, fx);
        }
    }

    /// Tells a process what it has of a GPU.
    fn lease(&self, client: ClientId, gpu: GpuId, granted: Granted, on: &Facts<'_>) {
        let Some(uuid) = uuid(gpu, on) else {
            return;
        };
        let (refuge, wait) = self.standing(client, gpu);
        let lease = ToProgram::Lease {
            gpu: uuid,
            hbm: granted.hbm,
            host: granted.host,
            refuge,
            wait,
        };
        self.say(client, &lease);
    }

    /// Host memory that is kept for what a process has in a GPU's, and whether it has to wait for its turn. Who was told that it has it need
    /// not: a process with several GPUs asks for each.
    fn standing(&self, client: ClientId, gpu: GpuId) -> (u64, bool) {
        let Some(own) = self.seen(client) else {
            return (0, false);
        };
        let mut leases = own.leases.iter().filter(|(of, _)| *of == gpu);
        // A byte of it says to all releases of the library that the GPU is shared in turns, also where all that is parked goes to NVMe.
        let refuge = leases.next().map_or(0, |(_, lease)| {
            let least = u64::from(lease.refuge_nvme > 0);
            lease.refuge_host.max(least)
        });
        let waits = matches!(own.place, Place::Parked(_) | Place::Parking(_));
        (refuge, waits)
    }

    /// Bytes that a process has to bring from host memory to NVMe.
    fn leaving(&self, client: ClientId) -> u64 {
        self.seen(client).map_or(0, |one| one.leaving)
    }

    /// A process as the broker sees it.
    pub(super) fn seen(&self, client: ClientId) -> Option<ClientView> {
        let mut all = self.broker.view().clients.into_iter();
        all.find(|one| one.client == client)
    }

    fn end(&mut self, client: ClientId, why: &str, fx: &mut Effects) {
        fx.push(Effect::Programs(watch::Order::Kill(client)));
        let Some(holder) = self.holders.get_mut(&client).filter(|it| !it.ending) else {
            return;
        };
        holder.ending = true;
        let program = holder.program.clone();
        let (pid, job) = (program.pid, &program.job);
        tracing::warn!(%job, uid = program.uid, "process {pid} of job {job}: {why}");
        self.say(client, &ToProgram::Note { text: why.into() });
        tell(&program, &format!(": {why}"), fx);
    }

    /// Has the driver called for a process. Where that is under way it is not begun twice: it was told the same then.
    fn call_driver(
        &mut self,
        (client, way): (ClientId, Way),
        limit_ms: u64,
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        let holder = self.holders.get(&client).map(|it| it.program.uid);
        let known = || {
            let lent = self.jobs.get(&self.job_of(client)?)?;
            (lent.uid != u32::MAX).then_some(lent.uid)
        };
        // Of one whose user nobody knows its deadline decides.
        let Some(uid) = holder.or_else(known) else {
            return;
        };
        if self.in_call.insert(client) {
            if let Some(holder) = self.holders.get_mut(&client) {
                holder.told.get_or_insert(on.now.at);
            }
            fx.push(Effect::CallDriver(Order {
                client,
                uid,
                way,
                limit: Duration::from_millis(limit_ms),
            }));
        }
    }

    /// The driver was called for a process.
    pub(super) fn called(
        &mut self,
        client: ClientId,
        way: Way,
        done: Outcome,
        on: &Facts<'_>,
        fx: &mut Effects,
    ) {
        self.in_call.remove(&client);
        match &done {
            Ok(_) => self.drove(client, way, fx),
            Err(failed) => self.drove_in_vain(client, way, &failed.why, fx),
        }
        match (way, done) {
            (Way::Out, Ok(took_ms)) => self.step(Input::Checkpointed { client, took_ms }, on, fx),
            (
                Way::Out,
                Err(Failed {
                    refused, runs_on, ..
                }),
            ) => {
                let input = Input::NotCheckpointed {
                    client,
                    refused,
                    runs_on,
                };
                self.step(input, on, fx);
                // Where it is tried again the program leaves the driver alone as before.
                let left = self.seen(client).is_some_and(|it| !it.by_driver);
                if runs_on && left {
                    self.say(client, &ToProgram::Turn);
                }
            }
            (Way::Back, Ok(took_ms)) => {
                // From now on it may look at what it does.
                self.say(client, &ToProgram::Turn);
                self.step(Input::BroughtBack { client, took_ms }, on, fx);
            }
            // It is tried again while there is time.
            (Way::Back, Err(_)) => {}
        }
    }

    /// The driver has done it: that is counted, and the first time it is in the audit log.
    fn drove(&mut self, client: ClientId, way: Way, fx: &mut Effects) {
        self.in_vain.remove(&client);
        let leases = self.seen(client).map_or(Vec::new(), |one| one.leases);
        let bytes: u64 = leases.iter().map(|(_, lease)| lease.hbm).sum();
        let Some(holder) = self.holders.get_mut(&client) else {
            return;
        };
        holder.told = None;
        match way {
            Way::Out => {
                holder.parks += 1;
                holder.parked[0] = holder.parked[0].saturating_add(bytes);
                if !std::mem::replace(&mut holder.by_driver, true) {
                    let text = "its memory cannot be moved, and the driver parks it from now on";
                    self.audit_driver(client, text, fx);
                }
            }
            Way::Back => holder.parked[1] = holder.parked[1].saturating_add(bytes),
        }
    }

    /// The driver has not: why is in the audit log, once where it is the same again.
    fn drove_in_vain(&mut self, client: ClientId, way: Way, why: &str, fx: &mut Effects) {
        let text = match way {
            Way::Out => format!("the driver did not take it out of its GPU: {why}"),
            Way::Back => format!("the driver did not bring it back to its GPU: {why}"),
        };
        if self.in_vain.get(&client) == Some(&text) {
            return;
        }
        self.audit_driver(client, &text, fx);
        if self.seen(client).is_some() {
            self.in_vain.insert(client, text);
        }
    }

    fn audit_driver(&self, client: ClientId, text: &str, fx: &mut Effects) {
        let pid = process(client).0;
        let job = self.job_of(client);
        fx.push(Effect::Note {
            text: match &job {
                Some(job) => format!("process {pid} of job {job}: {text}"),
                None => format!("process {pid}: {text}"),
            },
            job,
            uid: None,
            quota: Quota::Job,
        });
    }

    pub(super) fn refuse(&self, client: ClientId, why: &str) {
        self.say(client, &ToProgram::Refused { why: why.into() });
    }

    /// Whether a program has a connection.
    fn is_there(&self, client: ClientId) -> bool {
        let holder = self.holders.get(&client);
        holder.is_some_and(|holder| holder.line.is_some())
    }

    /// Says something to a program. Answers whether there is one that knows what it means.
    pub(super) fn say(&self, client: ClientId, what: &ToProgram) -> bool {
        let line = self.holders.get(&client).and_then(|it| it.line.as_ref());
        let line = line.filter(|line| line.knows(what));
        line.inspect(|line| line.say(what)).is_some()
    }

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
        if let Some(lent) = lent.filter(|lent| lent.spec.is_none()) {
            let is = record.state == JobState::Stopped;
            lent.suspended = is;
            self.step(Input::Suspended(number(&record.id), is), on, fx);
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
    fn job_of(&self, client: ClientId) -> Option<JobId> {
        if let Some(holder) = self.holders.get(&client) {
            return Some(holder.program.job.clone());
        }
        let known = self.seen(client)?;
        named_by(known.job, self.jobs.keys())
    }
}

/// The user of a process is told what happens to it, and the audit log has it; `what` follows its number.
fn tell(program: &Program, what: &str, fx: &mut Effects) {
    let Program { pid, uid, job, .. } = program;
    fx.tell(job, format!("process {pid}{what}"));
    fx.push(Effect::Note {
        text: format!("process {pid} of job {job}{what}"),
        job: Some(job.clone()),
        uid: Some(*uid),
        quota: Quota::User(Some(*uid)),
    });
}
