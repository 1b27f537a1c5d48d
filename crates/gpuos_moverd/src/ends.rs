//! When the workload manager will end the jobs that this node leads, and the requeue of those that have saved before.
//!
//! A thread of its own, for the registrar has steps waiting. It asks about one job at a time, which costs the workload manager little,
//! and only on the node that leads the job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_workload::WorkloadManager;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::JobState;

use crate::event::{Event, SavedRun};
use crate::jobs::{Jobs, locked};

/// How often each job is asked about: a preemption may leave it little time.
const LOOK: Duration = Duration::from_secs(2);
/// So many times as long as the answers took nothing is asked: a workload manager that has much to do is left alone.
const SHARE: u32 = 20;
/// How long a requeue, and what has to follow it, are tried. A workload manager lets the job start by itself after that.
const TRIED: Duration = Duration::from_secs(180);

/// A job that has saved is requeued once its node says in the workload manager's records that it holds something of it, or so long after:
/// where it starts again is decided by that.
const PUBLISHED: Duration = Duration::from_secs(5);

/// What is still to be done about a job.
struct Todo {
    action: Action,
    /// The run of the job that has saved: a later one is not ended for it.
    run: u32,
    since: Instant,
}

/// The state of the thread.
pub struct Ends {
    jobs: Arc<Jobs>,
    manager: Arc<dyn WorkloadManager>,
    todo: BTreeMap<JobId, Todo>,
}

impl Ends {
    /// Starts the thread. `from` names the jobs that have saved and are to be requeued.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn start(
        jobs: Arc<Jobs>,
        manager: Arc<dyn WorkloadManager>,
        from: Receiver<SavedRun>,
    ) -> std::io::Result<()> {
        let ends = Ends {
            jobs,
            manager,
            todo: BTreeMap::new(),
        };
        let thread = thread::Builder::new().name("ends".into());
        thread.spawn(move || ends.run(&from))?;
        Ok(())
    }

    fn run(mut self, from: &Receiver<SavedRun>) {
        let mut due = Instant::now() + LOOK;
        loop {
            match from.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(saved) => self.requeue(saved),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= due {
                let begun = Instant::now();
                self.go_on();
                self.look();
                due = Instant::now() + LOOK.max(begun.elapsed() * SHARE);
            }
        }
    }

    /// Begins to requeue a job.
    fn requeue(&mut self, SavedRun { job, run }: SavedRun) {
        let action = Action::Requeue { job: job.clone() };
        let since = Instant::now();
        self.todo.insert(job.clone(), Todo { action, run, since });
        self.step(&job);
    }

    /// Does what could not be done before.
    fn go_on(&mut self) {
        let jobs: Vec<JobId> = self.todo.keys().cloned().collect();
        for job in jobs {
            self.step(&job);
        }
    }

    fn step(&mut self, job: &JobId) {
        let Some(Todo { action, run, since }) = self.todo.remove(job) else {
            return;
        };
        let requeues = matches!(action, Action::Requeue { .. });
        if requeues && since.elapsed() < PUBLISHED && !self.is_published(job) {
            self.todo.insert(job.clone(), Todo { action, run, since });
            return;
        }
        let outcome = match requeues {
            true => self.requeue_run(job, run),
            false => self.manager.act(&action),
        };
        let next = match (outcome, &action) {
            (Outcome::Done(what), Action::Requeue { .. }) => {
                tracing::info!(%job, "{what} before its end, and goes on from its checkpoint");
                let (job, avoid_node) = (job.clone(), false);
                let action = Action::Release { job, avoid_node };
                let since = Instant::now();
                Some(Todo { action, run, since })
            }
            (Outcome::Done(what) | Outcome::Nothing(what), _) => {
                tracing::info!(%job, "{what}");
                None
            }
            (Outcome::NotYet(_) | Outcome::NoAnswer(_), _) if since.elapsed() < TRIED => {
                Some(Todo { action, run, since })
            }
            (Outcome::NotYet(why) | Outcome::NoAnswer(why) | Outcome::Refused(why), action) => {
                let what = match action {
                    Action::Requeue { .. } => "not requeued before its end, though it has saved",
                    _ => "requeued, and starts when the workload manager lets it",
                };
                tracing::warn!(%job, "job {job} is {what}: {why}");
                None
            }
        };
        if let Some(next) = next {
            self.todo.insert(job.clone(), next);
        }
    }

    /// Has a job requeued that is still in the run that has saved.
    fn requeue_run(&self, job: &JobId, run: u32) -> Outcome {
        match self.manager.job(job) {
            Ok(Some(record)) if self.manager.counts_runs() && record.restarts != run => {
                Outcome::Nothing(format!("job {job} has been requeued already"))
            }
            Err(outcome) => outcome,
            Ok(_) => self.manager.act(&Action::Requeue { job: job.clone() }),
        }
    }

    /// Whether the node says that it holds checkpoints of a job, or names not all of which it does. One that has no number is never named.
    fn is_published(&self, job: &JobId) -> bool {
        let Some(number) = job.number() else {
            return true;
        };
        let record = self.manager.node();
        record.is_ok_and(|record| {
            let published = &record.published;
            published.held_more || published.held.contains_key(&number)
        })
    }

    /// Tells the threads of the jobs that this node leads when these will be ended.
    fn look(&self) {
        for (job, served) in self.jobs.all() {
            if !locked(&served.status).leads || self.todo.contains_key(&job) {
                continue;
            }
            match self.manager.job(&job) {
                Ok(Some(record))
                    if record.restarts == served.run && record.state == JobState::Running =>
                {
                    // A thread that has much to do hears of it the next time.
                    let _ = served.to.try_send(Event::Ends {
                        in_s: record.ends_in_s,
                        preempted: record.preempted,
                        may_requeue: record.may_requeue,
                    });
                }
                Ok(_) => {}
                // The others would get no answer either.
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::sync::{Arc, Mutex};

    use gpuos_checkpoint::ids::NodeIndex;
    use gpuos_core::wire::CheckpointJob;
    use gpuos_link::session::Place;
    use gpuos_workload::job::Job;
    use gpuos_workload::node::NodeRecord;
    use gpuos_workload::recorded::{Recorded, Table};

    use super::*;
    use crate::jobs::Served;
    use crate::launch::Launch;

    fn running(id: u32) -> Job {
        Job {
            id: id.into(),
            state: JobState::Running,
            nodes: vec!["n1".into()],
            may_requeue: true,
            ends_in_s: Some(40),
            ..Job::default()
        }
    }

    fn saved(id: u32) -> SavedRun {
        SavedRun {
            job: id.into(),
            run: 0,
        }
    }

    fn manager(jobs: &[Job]) -> Recorded {
        let mut node = NodeRecord::default();
        node.published.held.insert(7, 1);
        Recorded::new(Table {
            node,
            jobs: jobs
                .iter()
                .map(|job| (job.id.clone(), job.clone()))
                .collect(),
            ..Table::default()
        })
    }

    /// The thread's state, with a job that is served on this node, and what the job's thread is told.
    fn ends(manager: &Recorded, id: u32, leads: bool) -> (Ends, Receiver<Event>) {
        let jobs = Arc::new(Jobs::new(sync_channel(1).0));
        let (to, told) = sync_channel(4);
        let job = JobId::from(id);
        let status = CheckpointJob {
            leads,
            ..CheckpointJob::default()
        };
        let served = Served {
            uid: 1000,
            run: 0,
            launch: Launch::default(),
            place: Place {
                job: job.clone(),
                list: 0,
                own: NodeIndex(0),
                nodes: 1,
            },
            to,
            status: Arc::new(Mutex::new(status)),
            folder: Arc::default(),
            over: Arc::default(),
        };
        jobs.enter(job, served);
        let ends = Ends {
            jobs,
            manager: Arc::new(manager.clone()),
            todo: BTreeMap::new(),
        };
        (ends, told)
    }

    #[test]
    fn the_node_that_leads_hears_of_the_end_of_a_job_in_this_run() {
        let told = |job: Job, leads| {
            let (ends, told) = ends(&manager(&[job]), 7, leads);
            ends.look();
            match told.try_recv() {
                Ok(Event::Ends {
                    in_s,
                    preempted,
                    may_requeue,
                }) => Some((in_s, preempted, may_requeue)),
                _ => None,
            }
        };
        assert_eq!(told(running(7), true), Some((Some(40), false, true)));
        assert_eq!(told(running(7), false), None);
        let restarts = 1;
        let later = Job {
            restarts,
            ..running(7)
        };
        assert_eq!(told(later, true), None);
        let ending = Job {
            state: JobState::Ending,
            ..running(7)
        };
        assert_eq!(told(ending, true), None);
        assert_eq!(told(running(8), true), None);
    }

    #[test]
    fn a_job_that_has_saved_is_requeued_and_may_start_at_once() {
        let manager = manager(&[running(7)]);
        let (mut ends, told) = ends(&manager, 7, true);
        manager.with(|table| table.no_answer = Some("away".into()));
        ends.requeue(saved(7));
        ends.look();
        assert_eq!(manager.done(), []);
        manager.with(|table| table.no_answer = None);
        ends.go_on();
        ends.go_on();
        let job = JobId::from(7);
        let requeue = Action::Requeue { job: job.clone() };
        let avoid_node = false;
        let release = Action::Release { job, avoid_node };
        assert_eq!(manager.done(), [requeue, release]);
        ends.go_on();
        assert_eq!(manager.done().len(), 2, "each is done once");
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn a_requeue_waits_a_moment_until_it_is_published_where_the_checkpoint_is() {
        for in_time in [true, false] {
            let manager = manager(&[running(7)]);
            manager.with(|table| table.node = NodeRecord::default());
            let (mut ends, _told) = ends(&manager, 7, true);
            ends.requeue(saved(7));
            ends.go_on();
            assert_eq!(manager.done(), []);
            match in_time {
                true => {
                    manager.with(|table| table.node.published.held.insert(7, 1));
                }
                false => {
                    let todo = ends.todo.get_mut(&JobId::from(7)).unwrap();
                    todo.since = Instant::now().checked_sub(PUBLISHED).unwrap();
                }
            }
            ends.go_on();
            assert_eq!(manager.done().len(), 1, "{in_time}");
        }
    }

    #[test]
    fn a_later_run_is_not_requeued_for_what_an_earlier_one_has_saved() {
        let manager = manager(&[running(7)]);
        let (mut ends, _told) = ends(&manager, 7, true);
        manager.with(|table| table.no_answer = Some("away".into()));
        ends.requeue(saved(7));
        manager.with(|table| {
            table.no_answer = None;
            table.jobs.get_mut(&JobId::from(7)).unwrap().restarts = 1;
        });
        ends.go_on();
        assert_eq!(manager.done(), []);
        assert!(ends.todo.is_empty());
    }

    #[test]
    fn a_job_that_may_not_be_requeued_or_has_ended_is_left() {
        let kept = Job {
            may_requeue: false,
            ..running(7)
        };
        for jobs in [&[kept][..], &[]] {
            let manager = manager(jobs);
            let (mut ends, _told) = ends(&manager, 7, true);
            ends.requeue(saved(7));
            ends.go_on();
            assert_eq!(manager.done(), []);
            assert!(ends.todo.is_empty());
        }
    }
}
