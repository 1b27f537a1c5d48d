//! What slurmctld is to be asked and told, one at a time.

use std::collections::VecDeque;

use gpuos_core::job::JobId;
use gpuos_workload::action::Action;
use serde::{Deserialize, Serialize};

/// A requeued job is looked after so often, once a second while slurmctld answers. Slurm holds it back for two minutes.
const RELEASES: u32 = 15 * 60;
/// One whose node is DOWN is looked after so often: other nodes of the job may have let it go meanwhile, and it may run here again.
const OF_A_LOST_NODE: u32 = 5 * 60;
/// A job that would have to keep off this node waits so often for slurmctld to learn of its GPUs: then it need not, and
/// one that has no other node can run again.
const UNTOLD: u32 = 60;

/// With more tasks than these the thread does first what cannot wait.
const MANY: usize = 4;

/// One thing for the thread that runs Slurm's commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Task {
    /// Change something.
    Act(Action, Why),
    /// Read the node's record.
    Show,
    /// Read all jobs of the node; the mark of [`crate::jobs::Table`] when it was asked.
    Jobs(u64),
    /// Read one job.
    Job(JobId),
    /// Read gpuos.toml.
    Config,
}

/// What an action is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// A publication of this revision.
    Publish(u64),
    /// Anything else: the action says it all.
    Rule,
}

/// A requeued job that Slurm holds back, and that is to start at once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Release {
    /// The job.
    pub job: JobId,
    /// Keep it off this node, as long as slurmctld does not know that its GPU is out.
    pub avoid_node: bool,
    /// How often it was looked after.
    #[serde(default)]
    pub tried: u32,
}

impl Release {
    /// Of a job that is requeued.
    pub fn of(job: &JobId, avoid_node: bool) -> Release {
        Release {
            job: job.clone(),
            avoid_node,
            tried: 0,
        }
    }

    /// Of a job that Slurm has requeued for a node that is DOWN.
    pub fn of_a_lost_node(job: &JobId) -> Release {
        Release {
            tried: RELEASES - OF_A_LOST_NODE,
            ..Release::of(job, false)
        }
    }

    /// Whether it is looked after although slurmctld has not been told of the GPUs.
    pub fn is_due(&self) -> bool {
        !self.avoid_node || self.tried > UNTOLD
    }

    /// Whether it is too late to matter.
    pub fn is_stale(&self) -> bool {
        self.tried > RELEASES
    }
}

/// Tasks that wait for the thread, without doubles.
#[derive(Default, Debug)]
pub struct Queue {
    waiting: VecDeque<Task>,
    under_way: Option<Task>,
    /// What was begun last was for a step.
    stepped: bool,
}

impl Queue {
    /// Adds a task. One that waits already is not added again, and a newer publication takes the place of
    /// one that waits: a job that is requeued after that may not start again on a GPU of which nobody knows yet that it is out.
    pub fn push(&mut self, task: Task) {
        if self.waiting.contains(&task) || self.under_way.as_ref() == Some(&task) {
            return;
        }
        let publishes = |task: &Task| matches!(task, Task::Act(Action::Publish(_), _));
        let reads = |task: &Task| matches!(task, Task::Jobs(_));
        if publishes(&task)
            && let Some(older) = self.waiting.iter_mut().find(|waiting| publishes(waiting))
        {
            *older = task;
            return;
        }
        if reads(&task) {
            self.waiting.retain(|waiting| !reads(waiting));
        }
        self.waiting.push_back(task);
    }

    /// The same before all others: a step waits for it.
    pub fn push_first(&mut self, task: Task) {
        if self.under_way.as_ref() != Some(&task) {
            self.waiting.retain(|waiting| *waiting != task);
            self.waiting.push_front(task);
        }
    }

    /// The next task, where none is under way. Between two that steps wait for comes one of the others, if any waits: a user
    /// who starts steps all the time holds up no requeue.
    pub fn begin(&mut self) -> Option<Task> {
        if self.under_way.is_some() {
            return None;
        }
        let is_step = |task: &Task| matches!(task, Task::Job(_));
        let tells = |task: &Task| matches!(task, Task::Act(Action::Tell { .. }, _));
        // Where much is to be done, what is told comes after it: a job's record can say why when it has ended.
        let hurries = self.waiting.len() > MANY;
        let fits = |task: &Task| !(self.stepped && is_step(task) || hurries && tells(task));
        let other = self.waiting.iter().position(fits);
        self.under_way = self.waiting.remove(other.unwrap_or(0));
        self.stepped = self.under_way.as_ref().is_some_and(is_step);
        self.under_way.clone()
    }

    /// The task under way has come to its end.
    pub fn done(&mut self) {
        self.under_way = None;
    }

    /// How many wait or are under way.
    pub fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.under_way.is_some())
    }

    /// Whether nothing waits and nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use gpuos_core::health::ExtraPart;

    use super::*;

    #[test]
    fn one_at_a_time_without_doubles_and_the_newest_publication_only() {
        let mut queue = Queue::default();
        let publish = |revision| {
            Task::Act(
                Action::Publish(ExtraPart::default()),
                Why::Publish(revision),
            )
        };
        let kill = Task::Act(
            Action::Kill {
                job: 7.into(),
                step: None,
            },
            Why::Rule,
        );
        for task in [
            publish(1),
            kill.clone(),
            publish(2),
            kill.clone(),
            Task::Show,
        ] {
            queue.push(task);
        }
        assert_eq!(queue.begin(), Some(publish(2)));
        assert_eq!(queue.begin(), None);
        queue.push(publish(2));
        queue.push(kill.clone());
        queue.done();
        assert_eq!(queue.begin(), Some(kill));
        queue.done();
        assert_eq!(queue.begin(), Some(Task::Show));
        queue.done();
        assert!(queue.is_empty());
    }

    #[test]
    fn a_job_is_told_before_its_end_and_holds_up_nobody_elses() {
        let act = |action| Task::Act(action, Why::Rule);
        let tell = |job: u32| {
            act(Action::Tell {
                job: job.into(),
                why: "why".into(),
            })
        };
        let requeue = |job: u32| act(Action::Requeue { job: job.into() });
        let order = |jobs: u32| {
            let mut queue = Queue::default();
            for job in 0..jobs {
                queue.push(tell(job));
                queue.push(requeue(job));
            }
            let next = || {
                let task = queue.begin();
                queue.done();
                task
            };
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        assert_eq!(order(2), [tell(0), requeue(0), tell(1), requeue(1)]);
        let many = order(8);
        assert_eq!(many[..4], [0, 1, 2, 3].map(requeue));
        assert_eq!(many.len(), 16);
    }

    #[test]
    fn steps_come_first_and_hold_up_nothing_else() {
        let mut queue = Queue::default();
        let kill = Task::Act(
            Action::Kill {
                job: 7.into(),
                step: None,
            },
            Why::Rule,
        );
        queue.push(kill.clone());
        queue.push(Task::Show);
        let mut begun = Vec::new();
        for job in 1..=4 {
            queue.push_first(Task::Job(job.into()));
            begun.extend(queue.begin());
            queue.done();
        }
        let wanted = [Task::Job(1.into()), kill, Task::Job(3.into()), Task::Show];
        assert_eq!(begun, wanted);
    }
}
