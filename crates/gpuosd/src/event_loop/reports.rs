//! Steps as spank_gpuos reports them, and which jobs have which GPUs.
//!
//! Reports of steps for which something is to be done wait until slurmctld has told of their job. What it says decides two things.
//! Which of the GPUs that the step names are the job's: [`super::grants`]. And what the job may not use (`[[forbid]]` in gpuos.toml):
//! not every job comes through job_submit/gpuos, a waiting one can be moved to another partition, and a step can ask for more than
//! its job did. What is left out is told on its standard error.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpuos_config::access::{Forbidden, Standing, allowed, needs_job_context};
use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_core::wire::{Peer, Reason, Request};
use gpuos_workload::job::Job;

use super::client::Client;
use super::effect::{Effect, Effects, Now, PollBy, Quota, Starting, Then};
use super::grants;
use crate::jobs::{JobOnNode, Table, gpus_of};
use crate::queue::Task;

/// slurmctld is waited for so long, where nothing else is said: a step waits a little longer than that for its answer.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Reports that wait; those beyond are let go as if slurmctld had not answered.
const MOST: usize = 256;
/// Jobs whose first step was just reported are looked up after so long, and others with them.
const MEET: Duration = Duration::from_secs(30);
/// Slurm is asked so long after the last step of a job whose GPUs were set: the job ends just then.
const SOON: Duration = Duration::from_secs(2);
/// Nobody has Slurm asked sooner than so long after it was asked last.
pub const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Jobs with a record that cannot be read, as far as they are remembered.
const UNREAD: usize = 4096;

/// A report that waits for slurmctld's word.
struct Report {
    job: JobId,
    peer: Peer,
    request: Request,
    client: Client,
    since: Instant,
    /// slurmctld was asked after it came: an answer to an older question may be of the job's run before.
    asked: bool,
}

impl Report {
    fn is_of(&self, step: &StepId) -> bool {
        matches!(&self.request, Request::StepStart { id, .. } if id == step)
    }

    /// The user whose step it is.
    fn uid(&self) -> u32 {
        match &self.request {
            Request::StepStart { uid, .. } => *uid,
            _ => self.peer.uid,
        }
    }
}

/// Steps and jobs of this node.
pub struct Reports {
    node: String,
    table: Table,
    /// What is forbidden, as of gpuos.toml.
    rules: Forbidden,
    waiting: Vec<Report>,
    patience: Duration,
    /// Reports name no GPUs: a batch step has all of its job's.
    by_record: bool,
    /// Jobs of which was said that their records cannot be read.
    unread: BTreeSet<JobId>,
}

impl Reports {
    /// Begins with the jobs that were there.
    pub fn restore(node: &str, table: Table) -> Reports {
        Reports {
            node: node.into(),
            table,
            rules: Forbidden::default(),
            waiting: Vec::new(),
            patience: PATIENCE,
            by_record: false,
            unread: BTreeSet::new(),
        }
    }

    /// Reports of steps name no GPUs, where the workload manager has it so.
    pub fn naming_gpus(self, named: bool) -> Reports {
        Reports {
            by_record: !named,
            ..self
        }
    }

    /// slurmctld is waited for so long.
    pub fn wait_for(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Which jobs have which GPUs.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Takes `[[forbid]]` of gpuos.toml.
    pub fn set(&mut self, rules: Forbidden) {
        self.rules = rules;
    }

    /// A client asks something. A report whose job has to be looked up is held back; all else goes on at once.
    pub fn asked(&mut self, peer: Peer, request: Request, client: Client, now: Now) -> Effects {
        let mut fx = Effects::default();
        if let Request::StepEnd { id } = &request {
            // It has not been noted yet, and needs not be any more: its caller waits for nothing.
            let own = |report: &mut Report| report.is_of(id);
            let _ = self.waiting.extract_if(.., own).count();
        }
        let job = match &request {
            // What is done to a GPU needs slurmctld's word, whatever the step names.
            Request::StepStart {
                id, asked, memory, ..
            } if asked.waits() || memory.is_some() || needs_job_context(&self.rules, asked) => {
                id.job.clone()
            }
            _ => {
                fx.push(Effect::Request(peer, request, client));
                return fx;
            }
        };
        let report = Report {
            job: job.clone(),
            peer,
            since: now.at,
            asked: false,
            request,
            client,
        };
        self.waiting.push(report);
        if self.waiting.len() > MOST {
            let last = self.last_of_most();
            let beyond = self.waiting.remove(last);
            self.let_go(beyond, None, &mut fx);
        }
        // It may be the one.
        if self.waiting.iter().any(|report| report.job == job) {
            fx.ask_first(Task::Job(job));
        }
        fx
    }

    /// The last report of the user with the most that wait: who starts many steps at once keeps nobody else's from being waited for.
    fn last_of_most(&self) -> usize {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for report in &self.waiting {
            *counts.entry(report.uid()).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or(0);
        let of_most = |report: &Report| counts.get(&report.uid()) == Some(&most);
        let last = self.waiting.iter().rposition(of_most);
        last.unwrap_or(self.waiting.len().saturating_sub(1))
    }

    /// slurmctld is being asked about a job: the answer is for the reports that wait now.
    pub fn job_asked(&mut self, job: &JobId) {
        let mine = self.waiting.iter_mut();
        mine.filter(|report| report.job == *job)
            .for_each(|report| report.asked = true);
    }

    /// slurmctld told of a job, or that there is none, or did not answer.
    pub fn job_received(&mut self, job: &JobId, record: Option<&Job>) -> Effects {
        let mut fx = Effects::default();
        let mine = |report: &mut Report| report.job == *job && report.asked;
        let reports: Vec<Report> = self.waiting.extract_if(.., mine).collect();
        for report in reports {
            self.let_go(report, record, &mut fx);
        }
        if self.waiting.iter().any(|report| report.job == *job) {
            fx.ask_first(Task::Job(job.clone()));
        }
        fx
    }

    /// The same for a job whose steps did not wait so long.
    pub fn job_received_late(&mut self, job: &JobId, record: Option<&Job>) -> Effects {
        let mut fx = Effects::default();
        let record = record.filter(|job| job.unreadable.is_empty());
        if let Some(record) = record.filter(|_| self.table.claims(job)) {
            self.table.grant(&self.node, record);
            fx.push(Effect::PublishJobs);
        }
        fx
    }

    /// slurmctld told all jobs of the node; `mark`: when it was asked.
    pub fn jobs_received(&mut self, jobs: &[Job], mark: u64) -> Effects {
        let mut fx = Effects::default();
        let unread = |id: &JobId| {
            let mut all = jobs.iter();
            all.any(|job| job.id == *id && !job.unreadable.is_empty())
        };
        self.unread.retain(unread);
        for job in jobs {
            self.unreadable(Some(job), &mut fx);
        }
        self.table.set(&self.node, jobs, mark);
        fx
    }

    /// Says of a job whose record cannot be read why, once.
    pub fn unreadable(&mut self, job: Option<&Job>, fx: &mut Effects) {
        let Some(job) = job.filter(|job| !job.unreadable.is_empty()) else {
            return;
        };
        if self.unread.len() < UNREAD && self.unread.insert(job.id.clone()) {
            let text = format!(
                "Slurm's record of job {} cannot be read, and what it has is taken from no other place: {}. A text of \
                 its user looks like a part of the record; with JobSubmitPlugins=gpuos Slurm refuses such texts",
                job.id, job.unreadable
            );
            tracing::warn!(job = %job.id, uid = job.uid, "{text}");
            fx.note(text, Some(job.id.clone()), Some(job.uid));
        }
    }

    /// slurmctld does not requeue a job.
    pub fn may_not_requeue(&mut self, job: &JobId) {
        if let Some(held) = self.table.jobs.get_mut(job) {
            held.requeue = Some(false);
        }
    }

    /// When the first of those that wait has waited long enough.
    pub fn held_until(&self) -> Option<Instant> {
        let since = self.waiting.iter().map(|report| report.since);
        since.min().map(|since| since + self.patience)
    }

    /// Those who have waited long enough go on without what slurmctld would have had to say.
    pub fn late(&mut self, now: Now) -> Effects {
        let mut fx = Effects::default();
        let late =
            |report: &mut Report| now.at.saturating_duration_since(report.since) >= self.patience;
        let reports: Vec<Report> = self.waiting.extract_if(.., late).collect();
        for report in reports {
            self.let_go(report, None, &mut fx);
        }
        fx
    }

    fn let_go(&mut self, report: Report, record: Option<&Job>, fx: &mut Effects) {
        let Report {
            job,
            peer,
            mut request,
            client,
            ..
        } = report;
        let Request::StepStart {
            id,
            asked,
            uid,
            gpus,
            memory,
            ..
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
        let mut notes = allowed(&self.rules, asked, standing.as_ref());
        if let Some(record) = record.filter(|_| self.by_record && id.is_special()) {
            let own = gpus_of(record, &self.node);
            *gpus = own.into_iter().map(u8::from).collect();
        }
        notes.extend(grants::granted(&self.node, gpus, asked, record));
        if let Some(record) = record {
            self.table.grant(&self.node, record);
        }
        if memory.is_some() && record.is_none() {
            // Its programs wait some seconds for what it may have.
            fx.poll_scheduler(PollBy::AfterLast(LOOK_AGAIN));
        }
        let uid = *uid;
        fx.push(Effect::User(job.clone(), uid));
        for note in &notes {
            fx.push(Effect::Note {
                text: format!("job {job}: {note}"),
                job: Some(job.clone()),
                uid: Some(uid),
                quota: Quota::User(Some(uid)),
            });
        }
        // The step is answered as ever, with these sentences before the others.
        let client = client.with_notes(notes);
        fx.push(Effect::Request(peer, request, client));
    }

    /// A step has started.
    pub fn started(&mut self, starting: Starting, uid: u32, reason: Reason) -> Effects {
        let mut fx = Effects::default();
        let (id, asked) = (starting.id.clone(), starting.asked);
        fx.push(Effect::User(id.job.clone(), uid));
        let new = self.table.started(&id, uid, &starting.gpus, asked);
        self.table.reported(&id.job, reason);
        let held = self.table.jobs.get(&id.job);
        if new && held.is_some_and(|job| job.requeue.is_none()) {
            fx.poll_scheduler(PollBy::In(MEET));
        }
        // Slurm is asked about GPUs that a step names, where nobody waits for the answer.
        if self.table.claims(&id.job) {
            let soon = grants::spread(&self.node, &id.job);
            fx.poll_scheduler(PollBy::InAndAfterLast(soon, LOOK_AGAIN));
        }
        fx.push(Effect::Grow(self.table.min_node_gpus(&id.job)));
        fx.push(Effect::PublishJobs);
        if !asked.is_nothing() || starting.memory.is_some() {
            fx.push(Effect::Save(Then::Nothing));
        }
        fx.push(Effect::Starting(starting));
        fx
    }

    /// A step has ended.
    pub fn ended(&mut self, id: &StepId) -> Effects {
        let mut fx = Effects::default();
        let sets = |held: &JobOnNode| held.asked.waits();
        let is_set = self.table.jobs.get(&id.job).is_some_and(sets);
        if self.table.ended(id) {
            fx.poll_scheduler(match is_set {
                true => PollBy::InAndAfterLast(SOON, LOOK_AGAIN),
                false => PollBy::In(MEET),
            });
        }
        fx.push(Effect::PublishJobs);
        fx
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use gpuos_core::limits::{Asked, MpsRequest};
    use gpuos_core::wire::Reply;
    use gpuos_model::gpuset::GpuSet;
    use gpuos_workload::job::{Allocation, JobState};

    use super::*;

    const PEER: Peer = Peer { uid: 0, pid: 1 };

    /// The first step of job 7 with GPU 2, and MPS where that is asked for.
    fn step(mps: bool) -> (Request, Client, Receiver<Reply>) {
        let (to, from) = sync_channel(1);
        let wish = MpsRequest {
            percent: 100,
            gid: 1001,
            joint: false,
        };
        let request = Request::StepStart {
            id: StepId {
                job: 7.into(),
                step: 0,
            },
            uid: 1001,
            gpus: vec![2],
            asked: Asked {
                mps: mps.then_some(wish),
                ..Asked::default()
            },
            mig: None,
            switchable: false,
            memory: None,
            reason: Reason::Devices,
        };
        (request, Client::new(to), from)
    }

    fn after(start: Instant, ms: u64) -> Now {
        Now {
            at: start + Duration::from_millis(ms),
            running_ms: ms,
            wall_ms: ms,
        }
    }

    fn list(fx: Effects) -> Vec<Effect> {
        fx.into_iter().collect()
    }

    #[test]
    fn a_step_for_which_something_is_done_waits_for_an_answer_that_is_newer() {
        let mut reports = Reports::restore("n1", Table::default());
        let start = Instant::now();
        let (request, client, _from) = step(false);
        let fx = list(reports.asked(PEER, request, client, after(start, 0)));
        assert!(matches!(fx[..], [Effect::Request(..)]), "{fx:?}");

        let (request, client, _from) = step(true);
        let fx = list(reports.asked(PEER, request, client, after(start, 0)));
        assert!(
            matches!(&fx[..], [Effect::AskFirst(Task::Job(job))] if *job == 7.into()),
            "{fx:?}"
        );
        // An answer to a question of before.
        let fx = list(reports.job_received(&7.into(), None));
        assert!(
            matches!(&fx[..], [Effect::AskFirst(Task::Job(job))] if *job == 7.into()),
            "{fx:?}"
        );
        reports.job_asked(&7.into());
        let fx = list(reports.job_received(&8.into(), None));
        assert!(fx.is_empty(), "{fx:?}");
        let fx = list(reports.job_received(&7.into(), None));
        let [
            Effect::User(_, 1001),
            Effect::Note {
                uid: Some(1001),
                quota: Quota::User(Some(1001)),
                ..
            },
            Effect::Request(_, Request::StepStart { asked, .. }, _),
        ] = &fx[..]
        else {
            panic!("{fx:?}");
        };
        assert_eq!(asked.mps, None, "it would come too late");
        assert_eq!(reports.held_until(), None);
    }

    #[test]
    fn slurmctld_is_waited_for_one_and_a_half_seconds() {
        let mut reports = Reports::restore("n1", Table::default());
        let start = Instant::now();
        let (request, client, from) = step(true);
        reports.asked(PEER, request, client, after(start, 0));
        assert_eq!(reports.held_until(), Some(start + PATIENCE));
        assert!(list(reports.late(after(start, 1499))).is_empty());
        let fx = list(reports.late(after(start, 1500)));
        assert!(matches!(fx[..], [_, _, Effect::Request(..)]), "{fx:?}");
        // Whatever becomes of it, the step is told.
        drop(fx);
        let why = "slurmctld does not say which GPUs this job has: MPS is not started";
        match from.try_recv() {
            Ok(Reply::Prepared { notes, .. }) => assert_eq!(notes, [why]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_starts_many_steps_takes_nobody_elses_place() {
        let mut reports = Reports::restore("n1", Table::default());
        let now = after(Instant::now(), 0);
        let mut of = |user: u32, number: u32| {
            let (request, client, from) = step(true);
            let Request::StepStart { asked, gpus, .. } = request else {
                panic!("no step");
            };
            let request = Request::StepStart {
                id: StepId {
                    job: user.into(),
                    step: number,
                },
                uid: user,
                gpus,
                asked,
                mig: None,
                switchable: false,
                memory: None,
                reason: Reason::Devices,
            };
            reports.asked(PEER, request, client, now);
            from
        };
        let mut flood: Vec<_> = (0..2 * MOST as u32)
            .map(|number| of(1000, number))
            .collect();
        let others: Vec<_> = (0..20).map(|number| of(1001 + number, 0)).collect();
        // Those of the others wait, and of the many the last ones are let go.
        assert!(others.iter().all(|from| from.try_recv().is_err()));
        let gone = flood
            .iter_mut()
            .filter(|from| from.try_recv().is_ok())
            .count();
        assert!(gone >= MOST, "{gone}");
        assert_eq!(reports.waiting.len(), MOST);
        let own = reports.waiting.iter().filter(|report| report.uid() == 1000);
        assert_eq!(own.count(), MOST - 20);
    }

    #[test]
    fn a_step_that_ends_while_it_waits_is_forgotten() {
        let mut reports = Reports::restore("n1", Table::default());
        let now = after(Instant::now(), 0);
        let (request, client, _from) = step(true);
        reports.asked(PEER, request, client, now);
        let (to, _end) = sync_channel(1);
        let id = StepId {
            job: 7.into(),
            step: 0,
        };
        let fx = list(reports.asked(PEER, Request::StepEnd { id }, Client::new(to), now));
        assert!(matches!(
            fx[..],
            [Effect::Request(_, Request::StepEnd { .. }, _)]
        ));
        assert_eq!(reports.held_until(), None);
    }

    #[test]
    fn a_batch_step_that_names_no_gpus_has_those_of_its_job_where_none_are_named() {
        for (named, step_number, wanted) in [
            (false, StepId::BATCH, vec![1, 3]),
            (false, 0, Vec::new()),
            (true, StepId::BATCH, Vec::new()),
        ] {
            let mut reports = Reports::restore("n1", Table::default()).naming_gpus(named);
            let (mut request, client, _from) = step(true);
            let Request::StepStart { id, gpus, .. } = &mut request else {
                panic!("{request:?}");
            };
            id.step = step_number;
            gpus.clear();
            reports.asked(PEER, request, client, after(Instant::now(), 0));
            reports.job_asked(&7.into());
            let record = Job {
                id: 7.into(),
                uid: 1001,
                state: JobState::Running,
                nodes: vec!["n1".into()],
                allocations: vec![Allocation {
                    nodes: vec!["n1".into()],
                    gpus: GpuSet(0b10),
                    shared: GpuSet(0b1000),
                    ..Allocation::default()
                }],
                ..Job::default()
            };
            let fx = list(reports.job_received(&7.into(), Some(&record)));
            let goes_on = |effect: &Effect| match effect {
                Effect::Request(_, Request::StepStart { gpus, asked, .. }, _) => {
                    Some((gpus.clone(), asked.shared))
                }
                _ => None,
            };
            let shared = !wanted.is_empty();
            let found = fx.iter().find_map(goes_on);
            assert_eq!(found, Some((wanted, shared)), "{named} {step_number}");
        }
    }
}
