//! What gpuos_mover is asked about checkpoints, and answers. It speaks the protocol of gpuosd on a socket of its own.
use serde::{Deserialize, Serialize};

use crate::job::JobId;
use crate::step::StepId;

/// Variable by which a program finds the folder of its job for checkpoints; docs/user/checkpoint-files.md has what lies there.
pub const CHECKPOINT_VARIABLE: &str = "GPUOS_CHECKPOINT_DIR";

/// The file in the folder of all jobs by whose time a step sees when gpuos_mover was there last.
pub const MOVER_ALIVE: &str = ".alive";

/// Where in the folder of a job its folder in memory is mounted.
pub const MEMORY_FOLDER: &str = "memory";

/// The file in `ranks` by which a step says that its tasks do not see that. It is no join.
pub const MEMORY_UNSEEN: &str = "no-memory";

/// What gpuos_mover is asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum CheckpointRequest {
    /// A step has started on this node whose job wants checkpoints. Answered with [`super::Reply::Prepared`], which has
    /// [`CHECKPOINT_VARIABLE`] once the folder is there.
    Step {
        /// Which.
        id: StepId,
        /// Its user, who is asked for at the workload manager, too.
        uid: u32,
        /// The group of its processes.
        gid: u32,
        /// The value of the option, as it was given.
        asked: String,
        /// The step is the job's program on these of its nodes alone, as `gpuos run` starts it, and it is started for the so many-th time
        /// in this run of the job. Absent: it is one of the steps of a job whose program has all nodes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start: Option<u32>,
    },
    /// Which jobs have checkpoints on this node: of all jobs, or of one. A user is told of his own. Answered with
    /// [`super::Reply::Checkpoints`].
    List {
        /// Only this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<JobId>,
    },
    /// Restarts from checkpoints and drills that this node has measured: a user is told of his own jobs'. Answered with
    /// [`super::Reply::CheckpointReport`].
    Report {
        /// Only those that were over at this time or later, in seconds since 1970.
        #[serde(default)]
        since: u64,
        /// Only those of this job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<JobId>,
    },
    /// Figures of all jobs on this node, for monitoring; nothing is read for it but sizes. Answered with
    /// [`super::Reply::CheckpointFigures`].
    Figures,
    /// Have a job make a checkpoint as soon as its program can. Answered with [`super::Reply::Done`] when it was asked for.
    Now {
        /// The job.
        job: JobId,
    },
    /// Read all that is kept of a job on this node and hold it against its digests. Answered with
    /// [`super::Reply::Checkpoints`], whose `faults` say what does not hold.
    Verify {
        /// The job.
        job: JobId,
    },
    /// Have the next run of a job begin from this checkpoint and no other. Answered with [`super::Reply::Done`] when all of its nodes
    /// have noted it; the job is to be requeued then.
    Choose {
        /// The job.
        job: JobId,
        /// The number of the checkpoint.
        number: u32,
    },
    /// Have a job run again, where its user cannot ask the workload manager himself. Answered with [`super::Reply::Done`].
    Requeue {
        /// The job.
        job: JobId,
    },
    /// Remove the checkpoints of a job that does not run any more from this node. What the job may come back to is not removed without `anew`, and
    /// nothing is where the workload manager does not tell.
    Prune {
        /// The job.
        job: JobId,
        /// Also if it waits to begin again, or runs on other nodes: it begins from its start then.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        anew: bool,
    },
}

impl CheckpointRequest {
    /// The job that it is about, where it is about one.
    pub fn job(&self) -> Option<&JobId> {
        match self {
            CheckpointRequest::Step { id, .. } => Some(&id.job),
            CheckpointRequest::List { job } | CheckpointRequest::Report { job, .. } => job.as_ref(),
            CheckpointRequest::Figures => None,
            CheckpointRequest::Now { job }
            | CheckpointRequest::Choose { job, .. }
            | CheckpointRequest::Verify { job }
            | CheckpointRequest::Requeue { job }
            | CheckpointRequest::Prune { job, .. } => Some(job),
        }
    }
}

/// How far a job is with its checkpoints on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointPhase {
    /// The job does not run here; what it left is kept for a time.
    #[default]
    Left,
    /// The movers of the job's nodes look for each other.
    Gathering,
    /// Parts that were lost are made again.
    Rebuilding,
    /// Checkpoints can be made.
    Running,
    /// No checkpoints are made for this run; `why` says so.
    Failed,
}

/// A job with checkpoints, as one node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointJob {
    /// The job.
    pub job: JobId,
    /// Its user.
    pub uid: u32,
    /// How far it is.
    pub phase: CheckpointPhase,
    /// Why it is not farther; empty: nothing is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Slurm's count of its restarts.
    #[serde(default)]
    pub run: u32,
    /// The job's nodes, in the workload manager's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// How often the program was started by `gpuos run` in this run of the job; 0: not on nodes of its own, but on all of the job's.
    #[serde(default)]
    pub start: u32,
    /// The job's nodes on which its program did not run when it was started: spares, and what drains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<String>,
    /// Nodes that the program had in the start before, as far as this node knows, and has not in this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
    /// Whether this node leads: it decides when a checkpoint is made.
    #[serde(default)]
    pub leads: bool,
    /// What the nodes keep for each other: `single`, `partner`, `xor:4`, `rs:6+2`.
    #[serde(default)]
    pub scheme: String,
    /// So many nodes of each set can be lost.
    #[serde(default)]
    pub losses: u8,
    /// Seconds between two checkpoints, as it is now; on the node that leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_s: Option<u64>,
    /// Why it is this long: a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub interval_why: String,
    /// Ranks of the program that have joined on this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// How many ranks the program has; absent until one has joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// The number of the checkpoint from which this run went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<u32>,
    /// Newer checkpoints that could not be restored, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<String>,
    /// Where parts of it came from in this run that were not on this node's disk: sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub came: Vec<String>,
    /// Seconds since a checkpoint of this run was committed, or since the run came to this gpuos_mover: what a lost node would cost. On the
    /// node that leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsaved_s: Option<u64>,
    /// Milliseconds that the program took to save for the newest checkpoint of this run; on the node that leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<u64>,
    /// Milliseconds from there to its commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_ms: Option<u64>,
    /// Checkpoints in a row that programs have saved or were asked for and that came to nothing, since the newest of this run; on the node that leads.
    #[serde(default, skip_serializing_if = "is_none")]
    pub failed_in_row: u32,
    /// The last of them, and why: a clause.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed_why: String,
    /// The newest checkpoint that all nodes have drained to the parallel file system in this run; on the node that leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<u32>,
    /// How the parallel file system stands, in a sentence; empty: nothing is to be drained.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub level3: String,
    /// The checkpoint that is being made, and how far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub making: Option<CheckpointMaking>,
    /// What is kept here, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<CheckpointKept>,
    /// The last checkpoints that came to nothing, each as a sentence, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// What does not hold of what is kept, after [`CheckpointRequest::Verify`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// Figures of a gpuos_mover, for monitoring. Counts are those since it started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointFigures {
    /// Checkpoints that were committed, of jobs that this node leads: over all nodes each counts once.
    pub made: u64,
    /// Checkpoints that came to nothing, of jobs that this node leads.
    pub failed: u64,
    /// Runs of jobs that went on from a checkpoint, of jobs that this node leads.
    pub restored: u64,
    /// Bytes that checkpoints take on this node's disk; absent where they cannot be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<u64>,
    /// Bytes that can still be written there, and the size of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<(u64, u64)>,
    /// Jobs of which committed checkpoints are kept here, with the bytes that these take: those that the node is to name, where they are many;
    /// absent where they cannot be counted, and from releases that do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Vec<(JobId, u64)>>,
    /// Committed checkpoints of others are kept here, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept_more: bool,
    /// Restarts and drills; absent from releases that do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recoveries: Option<CheckpointRecoveries>,
    /// What the mover runs with; absent from releases that do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<MoverSettings>,
    /// The jobs that run here with checkpoints, without the names of their nodes and what is kept of them.
    #[serde(default)]
    pub jobs: Vec<CheckpointJob>,
}

/// What a gpuos_mover runs with, so that it can be seen whether that is what the site's files say.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MoverSettings {
    /// The folder of its store.
    pub store: String,
    /// The file of the key that all nodes have.
    pub key: String,
    /// Stands for `[checkpoint]` of gpuos.toml as it read it.
    pub digest: u64,
    /// What does not work: sentences.
    #[serde(default)]
    pub troubles: Vec<String>,
}

/// A restart from a checkpoint, or a drill, as the node that leads the job has measured it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointRecovery {
    /// When it was over, in seconds since 1970.
    pub time: u64,
    /// The job; in a drill the one whose checkpoint was restored.
    pub job: JobId,
    /// Whose job it is.
    pub uid: u32,
    /// In a drill, the job that has restored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drill: Option<JobId>,
    /// In a drill, the parts of each set that counted as gone.
    #[serde(default)]
    pub lose: u8,
    /// Slurm's count of the job's restarts.
    #[serde(default)]
    pub run: u32,
    /// How often `gpuos run` had started the program in this run; 0: it does not.
    #[serde(default)]
    pub start: u32,
    /// The checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// Nodes of the job.
    #[serde(default)]
    pub nodes: u32,
    /// Milliseconds from the loss of a node until the job was requeued or the program started again; absent where no node was lost, or none
    /// is left that has seen it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detection_ms: Option<u64>,
    /// Milliseconds from there until the job had its nodes; absent where it was not requeued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue_ms: Option<u64>,
    /// Milliseconds from there until the checkpoint was whole on all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild_ms: Option<u64>,
    /// Milliseconds from there until the ranks on this node had joined and had their files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_ms: Option<u64>,
    /// Seconds of work that are done again: from the checkpoint to the end of the run before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_s: Option<u64>,
    /// Why it came to nothing: a sentence; empty: it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed: String,
}

impl CheckpointRecovery {
    /// Its parts in their order, in milliseconds, as far as they are known.
    pub fn parts(&self) -> [Option<u64>; 4] {
        [
            self.detection_ms,
            self.requeue_ms,
            self.rebuild_ms,
            self.load_ms,
        ]
    }

    /// All of them together.
    pub fn total_ms(&self) -> u64 {
        self.parts().into_iter().flatten().sum()
    }
}

/// What a gpuos_mover has counted of restarts and drills since it started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointRecoveries {
    /// Restarts from a checkpoint.
    pub count: u64,
    /// Milliseconds that detection, requeue, rebuild and load took in them, each added up.
    pub parts_ms: [u64; 4],
    /// Seconds of work that were done again.
    pub lost_s: u64,
    /// Drills in which the checkpoint was restored, and in which it was not.
    pub drills: (u64, u64),
    /// When the last one was over that was restored, in seconds since 1970, also before it started; absent: none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_well: Option<u64>,
    /// The last one that was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failed: Option<u64>,
}

/// A checkpoint that is being made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointMaking {
    /// Its number.
    pub number: u32,
    /// Why it is made: `interval`, `asked`, `end`.
    pub reason: String,
    /// What is waited for: `program`, `store`.
    pub stage: String,
    /// For how long it has been made, in milliseconds.
    pub for_ms: u64,
    /// Ranks of this node whose files are not complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<u32>,
}

/// A checkpoint that a node has a part of.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointKept {
    /// Its number.
    pub number: u32,
    /// Nodes that it was made on; absent where the gpuos_mover does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Ranks of the program; absent where no rank's files lie on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// The attempt at it, 16 hexadecimal digits.
    pub attempt: String,
    /// It exists on all nodes of the job, by the record of this node.
    pub committed: bool,
    /// Seconds since 1970, UTC.
    pub time: u64,
    /// Files of the program on this node.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Bytes that it takes on this node's disk, with what is kept for other nodes.
    pub stored: u64,
    /// The form in which files are kept, where any are compressed or encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<CheckpointForm>,
    /// Milliseconds from the request to the commit; absent where this run did not make it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// Who could not load it. It is passed over from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<CheckpointRefused>,
}

/// Another form than that of the files in which what they have is kept on a node. What is all zero does not count.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointForm {
    /// Bytes of the files.
    pub plain: u64,
    /// Bytes that are kept for them; what is kept once for several files counts for each.
    pub kept: u64,
    /// How some of it is compressed: `zstd`; absent: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// How some of it is encrypted: `AES-256-CTR`; absent: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<String>,
    /// Bytes of `kept` that are encrypted: fewer than all where a checkpoint refers to what was kept before encryption was turned on.
    #[serde(default)]
    pub encrypted: u64,
}

impl CheckpointKept {
    /// Whether a program can be given it: it exists on all nodes, and no rank has refused it.
    pub fn can_be_given(&self) -> bool {
        self.committed && self.refused.is_none()
    }
}

/// A rank of the program that could not load a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckpointRefused {
    /// The rank.
    pub rank: u32,
    /// The name of its node.
    pub node: String,
    /// What the program says about it; empty: nothing. The user's text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub said: String,
}
