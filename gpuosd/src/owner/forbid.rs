//! What jobs may not use (`[[forbid]]` in gpuos.toml), on the node: not every job comes through job_submit/gpuos, a waiting one can be
//! moved to another partition, and a step can ask for more than its job did.
//!
//! Where some job may not use what a step asks for, slurmctld is asked where this job is before anything else is done with the report.
//! What the job may not use is left out, and its standard error says so.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use gpuos_core::access::{Forbidden, Standing, allowed, needs_standing};
use gpuos_core::config::Config;
use gpuos_core::wire::{Peer, Reply, Request, StepId};
use gpuos_host::slurm::Job;

use super::Owner;
use crate::queue::Task;

/// slurmctld is waited for so long: a step waits a little longer than that for its answer.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Reports that wait; those beyond have what some job may not use left out.
const MOST: usize = 256;

/// A report that waits for slurmctld's word.
struct Report {
    job: u32,
    peer: Peer,
    request: Request,
    reply: SyncSender<Reply>,
    since: Instant,
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
    /// Jobs about which slurmctld has been asked, and has not answered yet.
    asked: BTreeSet<u32>,
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
        if !needs_standing(&self.held.rules, asked) {
            return Some((request, reply));
        }
        let report = Report {
            job: id.job,
            peer,
            since: self.now(),
            request,
            reply,
        };
        if self.held.waiting.len() >= MOST {
            self.let_go(report, None);
            return None;
        }
        self.held.asked.insert(report.job);
        self.queue.push_first(Task::Job(report.job));
        self.held.waiting.push(report);
        None
    }

    /// slurmctld told of a job, or that there is none, or did not answer.
    pub(super) fn job_told(&mut self, job: u32, record: Option<&Job>) {
        if !self.held.asked.remove(&job) {
            return;
        }
        let mine = |report: &mut Report| report.job == job;
        let reports: Vec<Report> = self.held.waiting.extract_if(.., mine).collect();
        for report in reports {
            self.let_go(report, record);
        }
    }

    /// Those who have waited long enough go on without what some job may not use.
    pub(super) fn tick_held(&mut self) {
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
        let Request::StepStart { asked, uid, .. } = &mut request else {
            return;
        };
        let partitions: Vec<&str> = record
            .iter()
            .flat_map(|job| &job.partitions)
            .map(String::as_str)
            .collect();
        // A record that cannot be read, or has no partition, is none that can be gone by.
        let record = record.filter(|job| job.unreadable.is_empty());
        let standing = record
            .filter(|_| !partitions.is_empty())
            .map(|job| Standing {
                partitions: &partitions,
                account: &job.account,
                qos: &job.qos,
            });
        let notes = allowed(&self.held.rules, asked, standing.as_ref());
        let uid = *uid;
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
