//! Reports of steps for which something is to be done wait until slurmctld has told of their job.
//!
//! What it says decides two things. Which of the GPUs that the step names are the job's: [`super::given`]. And what the job may not
//! use (`[[forbid]]` in gpuos.toml): not every job comes through job_submit/gpuos, a waiting one can be moved to another partition,
//! and a step can ask for more than its job did. What is left out is told on its standard error.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use gpuos_config::access::{Forbidden, Standing, allowed, needs_standing};
use gpuos_config::gpuos_toml::Config;
use gpuos_core::step::StepId;
use gpuos_core::wire::{Peer, Reply, Request};
use gpuos_workload::job::Job;

use super::Owner;
use crate::queue::Task;

/// slurmctld is waited for so long: a step waits a little longer than that for its answer.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Reports that wait; those beyond are let go as if slurmctld had not answered.
const MOST: usize = 256;

/// A report that waits for slurmctld's word.
struct Report {
    job: u32,
    peer: Peer,
    request: Request,
    reply: SyncSender<Reply>,
    since: Instant,
    /// slurmctld was asked after it came: an answer to an older question may be of the job's run before.
    asked: bool,
}

impl Report {
    fn is_of(&self, step: StepId) -> bool {
        matches!(&self.request, Request::StepStart { id, .. } if *id == step)
    }
}

/// Reports that wait, and what steps are told besides.
#[derive(Default)]
pub struct Held {
    /// As of gpuos.toml.
    pub rules: Forbidden,
    waiting: Vec<Report>,
}

impl Owner {
    /// What is known of gpuos.toml before it is read as ever: what is forbidden is so for the first step, too.
    pub fn begin_with(&mut self, config: &Config) {
        self.seers.access = config.access.clone();
        self.held.rules = config.forbidden.clone();
    }

    /// Holds a report back whose job has to be looked up; gives it back where that is not so.
    pub(super) fn held_back(
        &mut self,
        peer: Peer,
        request: Request,
        reply: SyncSender<Reply>,
    ) -> Option<(Request, SyncSender<Reply>)> {
        if let Request::StepEnd { id } = &request {
            // It has not been noted yet, and needs not be any more: its caller waits for nothing.
            let own = |report: &mut Report| report.is_of(*id);
            let _ = self.held.waiting.extract_if(.., own).count();
        }
        let Request::StepStart { id, asked, .. } = &request else {
            return Some((request, reply));
        };
        // What is done to a GPU needs slurmctld's word, whatever the step names.
        if !asked.waits() && !needs_standing(&self.held.rules, asked) {
            return Some((request, reply));
        }
        let report = Report {
            job: id.job,
            peer,
            since: self.now(),
            asked: false,
            request,
            reply,
        };
        if self.held.waiting.len() >= MOST {
            self.let_go(report, None);
            return None;
        }
        self.queue.push_first(Task::Job(report.job));
        self.held.waiting.push(report);
        None
    }

    /// slurmctld is being asked about a job: the answer is for the reports that wait now.
    pub(super) fn held_asked(&mut self, job: u32) {
        let mine = self.held.waiting.iter_mut();
        mine.filter(|report| report.job == job)
            .for_each(|report| report.asked = true);
    }

    /// slurmctld told of a job, or that there is none, or did not answer.
    pub(super) fn job_told(&mut self, job: u32, record: Option<&Job>) {
        let mine = |report: &mut Report| report.job == job && report.asked;
        let reports: Vec<Report> = self.held.waiting.extract_if(.., mine).collect();
        for report in reports {
            self.let_go(report, record);
        }
        if self.held.waiting.iter().any(|report| report.job == job) {
            self.queue.push_first(Task::Job(job));
        }
        self.told_late(job, record);
    }

    /// When the first of those that wait has waited long enough.
    pub fn held_until(&self) -> Option<Instant> {
        let since = self.held.waiting.iter().map(|report| report.since);
        since.min().map(|since| since + PATIENCE)
    }

    /// Those who have waited long enough go on without what slurmctld would have had to say.
    pub fn let_late_go(&mut self) {
        if self.held.waiting.is_empty() {
            return;
        }
        let now = self.now();
        let late = |report: &mut Report| now.saturating_duration_since(report.since) >= PATIENCE;
        let reports: Vec<Report> = self.held.waiting.extract_if(.., late).collect();
        for report in reports {
            self.let_go(report, None);
        }
    }

    fn let_go(&mut self, report: Report, record: Option<&Job>) {
        let Report {
            job,
            peer,
            mut request,
            reply,
            ..
        } = report;
        let Request::StepStart {
            asked, uid, gpus, ..
        } = &mut request
        else {
            return;
        };
        // A record that cannot be read, or has no partition, is none that can be gone by.
        let record = record.filter(|job| job.unreadable.is_empty());
        let partitions: Vec<&str> = record
            .iter()
            .flat_map(|job| &job.partitions)
            .map(String::as_str)
            .collect();
        let standing = record
            .filter(|_| !partitions.is_empty())
            .map(|job| Standing {
                partitions: &partitions,
                account: &job.account,
                qos: &job.qos,
            });
        let mut notes = allowed(&self.held.rules, asked, standing.as_ref());
        notes.extend(self.given(gpus, asked, record));
        let uid = *uid;
        self.quiet.knows(job, uid);
        for note in &notes {
            if self.is_heard(Some(uid)) {
                self.note(format!("job {job}: {note}"), Some(job), Some(uid));
            }
        }
        if notes.is_empty() {
            return self.asked_now(peer, request, reply);
        }
        // The step is answered as ever, with these sentences before the others.
        let (inner, answer) = std::sync::mpsc::sync_channel(1);
        self.notes.push((notes, answer, reply));
        self.asked_now(peer, request, inner);
        self.hand_on();
    }

    /// Hands answers on that were waited for, with what the step is told besides.
    pub(super) fn hand_on(&mut self) {
        use std::sync::mpsc::TryRecvError;

        self.notes.retain(|(notes, answer, reply)| {
            let told = match answer.try_recv() {
                Err(TryRecvError::Empty) => return true,
                // Nobody answers any more: what was left out is told all the same.
                Err(TryRecvError::Disconnected) => None,
                Ok(told) => Some(told),
            };
            let told = match told {
                Some(Reply::Prepared {
                    notes: own,
                    environment,
                    failed,
                }) => Reply::Prepared {
                    notes: notes.iter().cloned().chain(own).collect(),
                    environment,
                    failed,
                },
                Some(other @ Reply::Refused { .. }) => other,
                _ => Reply::Prepared {
                    notes: notes.clone(),
                    environment: Default::default(),
                    failed: None,
                },
            };
            let _ = reply.try_send(told);
            false
        });
    }
}
