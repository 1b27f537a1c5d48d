//! The seam between gpuosd and a workload manager: what the daemon of a node asks it and tells it, as the trait [`WorkloadManager`], and
//! the plain types that cross it. No workload manager is in here; Slurm's commands and files stand behind the trait in
//! `gpuos_host::slurm`.
//!
//! - [`action`]: what it is told to do, and how that went,
//! - [`job`]: a job and what it has; [`node`]: the node's record,
//! - [`numbering`]: which GPU is which number,
//! - [`recorded`]: a twin in memory that answers from a table and notes what it is told.

#![forbid(unsafe_code)]

pub mod action;
pub mod job;
pub mod node;
pub mod numbering;
pub mod recorded;

use core::net::SocketAddr;
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use gpuos_core::job::JobId;
use gpuos_core::made::{MadeRecord, Run};
use gpuos_core::peers::ManagerAnswer;
use gpuos_core::step::StepId;
use gpuos_core::wire::{MomOrders, MomReport};
use gpuos_model::cluster::Fabric;
use gpuos_model::gpuset::GpuSet;

use crate::action::{Action, Outcome};
use crate::job::Job;
use crate::node::NodeRecord;
use crate::numbering::GpuNumbering;

/// A workload manager as the daemon of one node sees it. Calls may take as long as the workload manager's own limits allow: they are
/// made by threads that wait for nothing else.
pub trait WorkloadManager: Send + Sync {
    /// Has it do something about this node or a job. Every action can be repeated: what is as wanted already is left.
    fn act(&self, action: &Action) -> Outcome;

    /// This node's record.
    ///
    /// # Errors
    /// It does not answer, or does not know the node.
    fn node(&self) -> Result<NodeRecord, Outcome>;

    /// The jobs on this node, with what each has.
    ///
    /// # Errors
    /// It does not answer.
    fn jobs(&self) -> Result<Vec<Job>, Outcome>;

    /// A job, with whose devices it has; `None`: it is not known any more.
    ///
    /// # Errors
    /// It does not answer.
    fn job(&self, job: &JobId) -> Result<Option<Job>, Outcome>;

    /// The same of a job of which another node speaks: what this node knows by itself may be of a run of the job that is over.
    ///
    /// # Errors
    /// It does not answer.
    fn job_anywhere(&self, job: &JobId) -> Result<Option<Job>, Outcome> {
        self.job(job)
    }

    /// Where checkpoints of a job can be, by its record and by what all nodes publish.
    ///
    /// # Errors
    /// It does not answer.
    fn holders(&self, job: &JobId) -> Result<Holders, Outcome>;

    /// Has the record of a job that runs on this node say how far a run of it has come with checkpoints. It can be repeated. Where it keeps no
    /// such record there is nothing to do.
    fn note_checkpoints(&self, job: &JobId, _run: &Run) -> Outcome {
        Outcome::Nothing(format!("nothing is noted of job {job}"))
    }

    /// Has the record of a job that runs on this node, in this run, say why its checkpoints come to nothing, for its user; `None`: they do not any more. It can be
    /// repeated.
    fn note_unsaved(&self, job: &JobId, _run: u32, _why: Option<&str>) -> Outcome {
        Outcome::Nothing(format!("nothing is noted of job {job}"))
    }

    /// Has the record of a job that waits say that no run of it has made a checkpoint: they are removed at its owner's word. With `uid` the record of
    /// another user's job of that number stays. It can be repeated.
    fn forget_checkpoints(&self, job: &JobId, _uid: Option<u32>) -> Outcome {
        Outcome::Nothing(format!("nothing is noted of job {job}"))
    }

    /// The nodes of a step that a user has started, in an order that all nodes are told alike; `None`: it is not known any more, or users start
    /// none.
    ///
    /// # Errors
    /// It does not answer, or in a way that is not understood.
    fn step_nodes(&self, _step: &StepId) -> Result<Option<Vec<String>>, Outcome> {
        Ok(None)
    }

    /// Number of the user that its controller runs as; `None`: it does not say.
    fn own_user(&self) -> Option<u32> {
        None
    }

    /// The name of its cluster, where one has been given to it; `None`: it has none.
    ///
    /// # Errors
    /// It does not answer.
    fn cluster(&self) -> Result<Option<String>, Outcome> {
        Ok(None)
    }

    /// The folder of its configuration, where gpuos.toml lies if no other is named; `None`: it does not answer.
    fn config_folder(&self) -> Option<PathBuf> {
        self.local_folder()
    }

    /// The same by the files of this node, without asking anybody; `None`: there are none.
    fn local_folder(&self) -> Option<PathBuf>;

    /// How it numbers this node's GPUs, by its configuration.
    ///
    /// # Errors
    /// The configuration cannot be read; the sentence names the file.
    fn numbering(&self) -> Result<GpuNumbering, String>;

    /// Where the nodes are, by its configuration; by their names where it has no other word for that.
    ///
    /// # Errors
    /// The configuration cannot be read; the sentence names the file.
    fn addresses(&self) -> Result<Arc<dyn Addresses>, String> {
        Ok(Arc::new(Names))
    }

    /// The fabric, by its configuration, with `nodes` among the nodes that are told of. Where none is described there are no levels.
    ///
    /// # Errors
    /// A description is there and cannot be read; the sentence names it.
    fn topology(&self, nodes: &[String]) -> Result<Topology, String> {
        Ok(Topology {
            nodes: nodes.to_vec(),
            ..Topology::default()
        })
    }

    /// Whether its daemon on another node answers within `limit`. One that finds silent nodes by itself, and has none set down by gpuos, need not
    /// answer this, nor what follows.
    fn ask_daemon(&self, _address: SocketAddr, _limit: Duration) -> ManagerAnswer {
        ManagerAnswer::Gone
    }

    /// Asks for `silent` to be set down, which requeues its jobs, unless that makes no sense: this node is down itself, the job does not
    /// run there any more, or somebody has taken the node out already.
    fn set_down(&self, silent: &Silent) -> Outcome {
        Outcome::Refused(format!(
            "gpuos does not set {} down: its workload manager finds silent nodes by itself",
            silent.node
        ))
    }

    /// Whether this node is set down because its peers found it silent.
    ///
    /// # Errors
    /// It does not answer.
    fn is_set_down(&self) -> Result<bool, Outcome> {
        Ok(false)
    }

    /// Resumes this node if its peers had it set down, and for no other reason.
    fn resume(&self) -> Outcome {
        Outcome::Nothing("gpuos sets no node of this workload manager down".into())
    }

    /// Whether users have jobs of their own requeued by it; else the daemon of a node asks for them.
    fn users_requeue(&self) -> bool {
        true
    }

    /// Whether it counts the runs of a job, so that the number of the next one is known.
    fn counts_runs(&self) -> bool {
        true
    }

    /// Its daemon, as sentences name it: the one that is asked and told.
    fn daemon(&self) -> &'static str {
        "slurmctld"
    }

    /// Whether another one gives the GPUs of this node to jobs, and the daemon only says what it finds: it resets nothing and ends nobody.
    fn advises(&self) -> bool {
        false
    }

    /// Whether it is known who gives the GPUs of this node to jobs. Where its daemon tells that by itself, nothing is done to a GPU before it has.
    fn knows_whose(&self) -> bool {
        true
    }

    /// Whether reports of steps name the GPUs that they have; else a batch step has all of its job's by its record.
    fn steps_name_gpus(&self) -> bool {
        true
    }

    /// The GPUs of this node that programs of a job may open, where the daemon of the node keeps them to these.
    ///
    /// # Errors
    /// They are not known: a clause.
    fn devices(&self, _job: &JobId) -> Result<GpuSet, String> {
        Err(format!(
            "{} keeps programs to their devices itself",
            self.daemon()
        ))
    }

    /// Takes note of the room that the node's pool of divided GPUs has, where its daemon on this node is told.
    fn set_pool_room(&self, _room: PoolRoom) {}

    /// What its daemon on this node tells by itself, and what that is to do. `None`: it tells nothing by itself, but is asked.
    fn told(&self, _report: &MomReport) -> Option<Told> {
        None
    }
}

/// What comes of [`WorkloadManager::told`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// What the daemon of the workload manager is to do.
    pub orders: MomOrders,
    /// GPUs have other numbers than before.
    pub renumbered: bool,
}

/// What a node's pool of divided GPUs has room for, without those out of service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolRoom {
    /// Memory slices of the largest profile that can be placed now on one GPU.
    pub fits: u64,
    /// Compute slices of all GPUs, free or not.
    pub compute: u64,
    /// Their memory slices.
    pub memory: u64,
}

/// Where the nodes of a cluster are.
pub trait Addresses: Send + Sync {
    /// Host name or address of a node, and the port of the workload manager's daemon there.
    fn of(&self, node: &str) -> (String, u16);

    /// The socket of munged that the cluster uses; `None`: munge's own.
    fn munge_socket(&self) -> Option<PathBuf>;
}

/// Nodes that have one name everywhere, and the munged that is munge's own.
struct Names;

impl Addresses for Names {
    fn of(&self, node: &str) -> (String, u16) {
        (node.into(), 0)
    }

    fn munge_socket(&self) -> Option<PathBuf> {
        None
    }
}

/// A node that may hold checkpoints of a job.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Holder {
    /// Its name.
    pub node: String,
    /// It is down, so that an answer is not to be expected.
    pub is_down: bool,
    /// What is said of it.
    pub hint: Hint,
}

/// What is said of a node that may hold checkpoints of a job, the strongest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Hint {
    /// That it holds some: without its answer nobody knows that there are none.
    Holds,
    /// It names some jobs of which it holds checkpoints and leaves others out: as good as [`Hint::Holds`].
    More,
    /// Nothing. That a node does not say that it holds something means nothing.
    Nothing,
}

/// Where checkpoints of a job can be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holders {
    /// What its record says; `None`: nothing. Then every node may hold something.
    pub record: Option<MadeRecord>,
    /// Nodes to be asked, each once.
    pub nodes: Vec<Holder>,
}

impl Holders {
    /// These nodes hold something, and no others do.
    pub fn of(nodes: impl IntoIterator<Item = String>) -> Holders {
        let holder = |node| Holder {
            node,
            is_down: false,
            hint: Hint::Holds,
        };
        Holders {
            record: None,
            nodes: nodes.into_iter().map(holder).collect(),
        }
    }
}

/// Nodes, and the fabric between them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Topology {
    /// Names, each once.
    pub nodes: Vec<String>,
    /// Its levels, for the nodes in that order.
    pub fabric: Fabric,
}

/// A node that its peers find silent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Silent {
    /// A job that runs there and on this node.
    pub job: JobId,
    /// Its name.
    pub node: String,
    /// For how long nobody heard it, in milliseconds.
    pub silent_ms: u64,
    /// The nodes that agree.
    pub agreed: Vec<String>,
}
