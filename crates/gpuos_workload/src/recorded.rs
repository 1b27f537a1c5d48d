//! A workload manager in memory: it answers from a table and notes what it is told.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use gpuos_core::job::JobId;
use gpuos_core::made::Run;
use gpuos_core::step::StepId;

use crate::action::{Action, Outcome};
use crate::job::{Job, JobState};
use crate::node::NodeRecord;
use crate::numbering::GpuNumbering;
use crate::{Addresses, Holders, Silent, Topology, WorkloadManager};

/// What the twin answers from.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The node's record; what is published and why the node is drained follows from what the twin is told.
    pub node: NodeRecord,
    /// Jobs by number. One that is requeued waits, one that is killed is gone.
    pub jobs: BTreeMap<JobId, Job>,
    /// Nodes of steps.
    pub steps: BTreeMap<StepId, Vec<String>>,
    /// It does not answer, with these words.
    pub no_answer: Option<String>,
    /// See [`WorkloadManager::holders`].
    pub holders: BTreeMap<JobId, Holders>,
    /// See [`WorkloadManager::own_user`].
    pub own_user: Option<u32>,
    /// See [`WorkloadManager::cluster`].
    pub cluster: Option<String>,
    /// See [`WorkloadManager::config_folder`].
    pub config_folder: Option<PathBuf>,
    /// See [`WorkloadManager::numbering`].
    pub numbering: GpuNumbering,
    /// Where nodes are; others are where their names say, at port 0.
    pub addresses: BTreeMap<String, (String, u16)>,
    /// See [`WorkloadManager::topology`]; an error where it is one.
    pub topology: Option<Result<Topology, String>>,
    /// The node is set down because its peers found it silent.
    pub set_down: bool,
    /// What records of jobs say of checkpoints that come to nothing.
    pub unsaved: BTreeMap<JobId, String>,
    /// What it was told, in order.
    pub calls: Vec<Call>,
}

/// Something that the twin was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// An action, and how it went.
    Act(Action, Outcome),
    /// A node is silent.
    SetDown(Silent),
    /// The node is back.
    Resume,
}

/// The twin. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Recorded(Arc<Mutex<Table>>);

impl Recorded {
    /// One that answers from this table.
    pub fn new(table: Table) -> Recorded {
        Recorded(Arc::new(Mutex::new(table)))
    }

    /// Reads or changes the table.
    pub fn with<T>(&self, look: impl FnOnce(&mut Table) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The actions that were done, in order.
    pub fn done(&self) -> Vec<Action> {
        let done = |told: &Call| match told {
            Call::Act(action, Outcome::Done(_)) => Some(action.clone()),
            _ => None,
        };
        self.with(|table| table.calls.iter().filter_map(done).collect())
    }

    fn answer<T>(&self, of: impl FnOnce(&Table) -> T) -> Result<T, Outcome> {
        self.with(|table| match &table.no_answer {
            Some(why) => Err(Outcome::NoAnswer(why.clone())),
            None => Ok(of(table)),
        })
    }
}

impl Table {
    fn act(&mut self, action: &Action) -> Outcome {
        let done = |what: &str| Outcome::Done(what.into());
        let nothing = |what: &str| Outcome::Nothing(what.into());
        match action {
            Action::Publish(part) => {
                self.node.published = part.clone();
                self.node.damaged = None;
                done("the state of the GPUs is published")
            }
            Action::Requeue { job } | Action::Hold { job, .. } => match self.jobs.get_mut(job) {
                Some(job) if job.is_running() && !job.may_requeue => {
                    Outcome::Refused(format!("job {} may not be requeued", job.id))
                }
                Some(job) if job.is_running() => {
                    job.state = JobState::Waiting;
                    job.restarts += 1;
                    job.nodes.clear();
                    job.allocations.clear();
                    done("the job is requeued")
                }
                _ => nothing("the job does not run here any more"),
            },
            Action::Release { job, .. } | Action::LetGo { job } => match self.jobs.get(job) {
                Some(job) if job.is_running() => Outcome::NotYet("the job still runs".into()),
                Some(_) => done("the job may start"),
                None => nothing("the job is gone"),
            },
            Action::Kill { job, step: None } => match self.jobs.remove(job) {
                Some(_) => done("the job is ended"),
                None => nothing("the job is gone"),
            },
            Action::Kill { job, step: Some(_) } => match self.jobs.contains_key(job) {
                true => done("the step is ended"),
                false => nothing("the job is gone"),
            },
            Action::Tell { .. } => nothing("nobody reads what a recorded job is told"),
            Action::Drain { .. } if self.node.drain.is_some() => {
                nothing("the node is drained already")
            }
            Action::Drain { reason } => {
                self.node.drain = Some(reason.clone());
                done("the node is drained")
            }
            Action::Undrain { reason } if self.node.drain.as_ref() == Some(reason) => {
                self.node.drain = None;
                done("the node is back in service")
            }
            Action::Undrain { .. } => nothing("the node is not drained by gpuos"),
        }
    }
}

impl WorkloadManager for Recorded {
    fn act(&self, action: &Action) -> Outcome {
        self.with(|table| {
            let outcome = match &table.no_answer {
                Some(why) => Outcome::NoAnswer(why.clone()),
                None => table.act(action),
            };
            table.calls.push(Call::Act(action.clone(), outcome.clone()));
            outcome
        })
    }

    fn node(&self) -> Result<NodeRecord, Outcome> {
        self.answer(|table| table.node.clone())
    }

    fn jobs(&self) -> Result<Vec<Job>, Outcome> {
        self.answer(|table| {
            let here = |job: &&Job| job.nodes.contains(&table.node.name);
            table.jobs.values().filter(here).cloned().collect()
        })
    }

    fn job(&self, job: &JobId) -> Result<Option<Job>, Outcome> {
        self.answer(|table| table.jobs.get(job).cloned())
    }

    fn holders(&self, job: &JobId) -> Result<Holders, Outcome> {
        self.answer(|table| table.holders.get(job).cloned().unwrap_or_default())
    }

    fn note_checkpoints(&self, job: &JobId, run: &Run) -> Outcome {
        self.with(|table| {
            if let Some(why) = &table.no_answer {
                return Outcome::NoAnswer(why.clone());
            }
            let holders = table.holders.entry(job.clone()).or_default();
            holders.record.get_or_insert_default().note(run.clone());
            Outcome::Done("it is noted".into())
        })
    }

    fn note_unsaved(&self, job: &JobId, _run: u32, why: Option<&str>) -> Outcome {
        self.with(|table| {
            if let Some(why) = &table.no_answer {
                return Outcome::NoAnswer(why.clone());
            }
            match why {
                Some(why) => table.unsaved.insert(job.clone(), why.into()),
                None => table.unsaved.remove(job),
            };
            Outcome::Done("it is noted".into())
        })
    }

    fn forget_checkpoints(&self, job: &JobId, uid: Option<u32>) -> Outcome {
        self.with(|table| {
            if let Some(why) = &table.no_answer {
                return Outcome::NoAnswer(why.clone());
            }
            if table
                .jobs
                .get(job)
                .is_some_and(|known| uid.is_some_and(|uid| known.uid != uid))
            {
                return Outcome::Refused(format!("job {job} is another user's"));
            }
            if let Some(record) = table
                .holders
                .get_mut(job)
                .and_then(|all| all.record.as_mut())
            {
                record.forget();
            }
            Outcome::Done("it is forgotten".into())
        })
    }

    fn step_nodes(&self, step: &StepId) -> Result<Option<Vec<String>>, Outcome> {
        self.answer(|table| table.steps.get(step).cloned())
    }

    fn own_user(&self) -> Option<u32> {
        self.answer(|table| table.own_user).ok()?
    }

    fn cluster(&self) -> Result<Option<String>, Outcome> {
        self.answer(|table| table.cluster.clone())
    }

    fn config_folder(&self) -> Option<PathBuf> {
        self.answer(|table| table.config_folder.clone()).ok()?
    }

    fn local_folder(&self) -> Option<PathBuf> {
        self.with(|table| table.config_folder.clone())
    }

    fn numbering(&self) -> Result<GpuNumbering, String> {
        Ok(self.with(|table| table.numbering.clone()))
    }

    fn addresses(&self) -> Result<Arc<dyn Addresses>, String> {
        Ok(Arc::new(self.with(|table| Places(table.addresses.clone()))))
    }

    fn topology(&self, nodes: &[String]) -> Result<Topology, String> {
        let known = self.with(|table| table.topology.clone());
        known.unwrap_or_else(|| {
            Ok(Topology {
                nodes: nodes.to_vec(),
                ..Topology::default()
            })
        })
    }

    fn set_down(&self, silent: &Silent) -> Outcome {
        self.with(|table| {
            if let Some(why) = &table.no_answer {
                return Outcome::NoAnswer(why.clone());
            }
            table.calls.push(Call::SetDown(silent.clone()));
            Outcome::Done(format!("{} is set down", silent.node))
        })
    }

    fn is_set_down(&self) -> Result<bool, Outcome> {
        self.answer(|table| table.set_down)
    }

    fn resume(&self) -> Outcome {
        self.with(|table| {
            if let Some(why) = &table.no_answer {
                return Outcome::NoAnswer(why.clone());
            }
            table.calls.push(Call::Resume);
            match std::mem::take(&mut table.set_down) {
                true => Outcome::Done("the node is resumed".into()),
                false => Outcome::Nothing("it was not set down as silent".into()),
            }
        })
    }
}

struct Places(BTreeMap<String, (String, u16)>);

impl Addresses for Places {
    fn of(&self, node: &str) -> (String, u16) {
        let known = self.0.get(node).cloned();
        known.unwrap_or_else(|| (node.into(), 0))
    }

    fn munge_socket(&self) -> Option<PathBuf> {
        None
    }
}
