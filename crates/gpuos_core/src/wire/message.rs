//! Requests and replies.
use std::collections::BTreeMap;

use gpuos_model::node_gpu::NodeGpu;
use serde::{Deserialize, Serialize};

use super::{
    CheckpointFigures, CheckpointJob, CheckpointRecovery, CheckpointRequest, MemoryStatus, MigAsk,
    MigStatus, MomOrders, MomReport, Status, StepMemory,
};
use crate::health::Verb;
use crate::job::JobId;
use crate::limits::Asked;
use crate::step::StepId;

/// Version of the protocol: raised when a message changes its meaning or loses a field.
pub const PROTOCOL: u32 = 1;

/// Variables by which programs find the MPS daemon of their job, the share of threads that they may use, and what of
/// the memory of a GPU that their job shares.
pub const MPS_VARIABLES: [&str; 4] = [
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
];

/// The file beside gpuosd's socket that lists the numbers in GRES `gpu` of the MIG-switchable GPUs, as `6-7`; there is none where
/// none are MIG-switchable.
pub fn switchable_file(socket: &str) -> String {
    format!("{socket}.switchable")
}

/// The socket beside gpuosd's that only root can reach: users cannot fill its queue, and so keep no report of a step out.
pub fn root_socket(socket: &str) -> String {
    format!("{socket}.root")
}

/// The socket beside gpuosd's on which programs ask for memory in tiers, by the lines of `gpuos_memory::protocol`.
pub fn memory_socket(socket: &str) -> String {
    format!("{socket}.memory")
}

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The first line of a connection.
    Hello {
        /// Version of the protocol that the client speaks.
        protocol: u32,
        /// Who asks, for the log: `gpuos 0.1.0`.
        client: String,
    },
    /// How the node is: answered with [`Reply::Status`].
    Status,
    /// What happens from now on, as [`Reply::Happened`] until the client goes.
    Watch,
    /// Takes GPUs out of service or back.
    Admin {
        /// Which way.
        verb: Verb,
        /// Which; empty: the whole node.
        #[serde(default)]
        gpus: Vec<NodeGpu>,
        /// Why, in the administrator's words.
        #[serde(default)]
        reason: String,
        /// Drain and offline: jobs on the GPUs are ended; online: without a check.
        #[serde(default)]
        force: bool,
    },
    /// A step has started on this node.
    StepStart {
        /// Which.
        id: StepId,
        /// Its user.
        uid: u32,
        /// GRES indices of the GPUs that it holds here, as its environment has them: a user can write any number there,
        /// which is told as one that is not his.
        gpus: Vec<u8>,
        /// What its job wants of them. Where something has to be done for it, the answer is
        /// [`Reply::Prepared`], once that is done or has failed.
        #[serde(default, skip_serializing_if = "Asked::is_nothing")]
        asked: Asked,
        /// What it wants of the node's pool of GPU slices: answered with [`Reply::Prepared`], too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mig: Option<MigAsk>,
        /// Some of `gpus` are MIG-switchable, by [`switchable_file`]: the step waits for
        /// [`Reply::Prepared`] until they are whole.
        #[serde(default, alias = "moves", skip_serializing_if = "super::mig::is_false")]
        switchable: bool,
        /// The memory that its programs may use of each GPU, where its job asks for more than there is, or shares them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory: Option<StepMemory>,
        /// Why it is reported.
        #[serde(default, skip_serializing_if = "Reason::is_devices")]
        reason: Reason,
    },
    /// A step has ended on this node.
    StepEnd {
        /// Which.
        id: StepId,
    },
    /// How the GPUs stand that are divided into slices: answered with [`Reply::Mig`].
    Mig,
    /// What the node lends of its memory in tiers: answered with [`Reply::Memory`].
    Memory,
    /// Read gpuos.toml again.
    Reload,
    /// The newest lines of the audit log.
    Audit {
        /// How many, at most.
        lines: u32,
        /// Only those about this job. Its own user may ask for them, and is given those that were his when they were
        /// written.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<JobId>,
    },
    /// What a pbs_mom has, by the word of its hook: answered with [`Reply::Mom`].
    Mom {
        /// What.
        report: Box<MomReport>,
    },
    /// A program of a job of PBS is about to be started by a process, which then has to be in the control group of its job: answered with
    /// [`Reply::Done`] once it is.
    Confine {
        /// The job.
        job: JobId,
        /// The process, as gpuosd sees it.
        pid: u32,
        /// When it was started, in the kernel's ticks since boot: with its number this names one process for ever.
        started: u64,
        /// Whether it has slices of GPUs: then it may also open the MIG instances that gpuosd has made for it, and the GPUs that they are of. Which whole or
        /// shared ones it has gpuosd knows by itself.
        #[serde(default, skip_serializing_if = "super::mig::is_false")]
        slices: bool,
    },
    /// Something about checkpoints: gpuos_mover answers it, on a socket of its own.
    Checkpoint {
        /// What.
        what: CheckpointRequest,
    },
}

/// Why a step is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It has GPUs, or slices of some.
    #[default]
    Devices,
    /// Its job has an option for which the daemon has to know of it, with GPUs or without.
    Option,
}

impl Reason {
    fn is_devices(&self) -> bool {
        *self == Reason::Devices
    }
}

/// What the daemon answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Hello`].
    Hello {
        /// Version of the protocol that the daemon speaks.
        protocol: u32,
        /// The daemon's release.
        release: String,
        /// Its node.
        node: String,
    },
    /// To [`Request::Status`].
    Status {
        /// How the node is.
        status: Box<Status>,
    },
    /// It is done, or on its way: a sentence for people.
    Done {
        /// The sentence.
        message: String,
    },
    /// To [`Request::StepStart`] of a job that wants its GPUs set, MPS, or slices of GPUs.
    Prepared {
        /// What could not be done as asked, in sentences for the job's standard error.
        notes: Vec<String>,
        /// Variables for the step's tasks; [`MPS_VARIABLES`] and [`super::MIG_VARIABLES`] are the
        /// only ones that a step takes.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        environment: BTreeMap<String, String>,
        /// Why the step's tasks must not run, in a sentence: its slices could not be made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// To [`Request::Mig`].
    Mig {
        /// How the pool stands.
        mig: Box<MigStatus>,
    },
    /// To [`Request::Memory`].
    Memory {
        /// What is lent.
        memory: Box<MemoryStatus>,
    },
    /// To [`Request::Watch`].
    Happened {
        /// What.
        event: Happening,
    },
    /// To [`Request::Audit`]: lines of the log, oldest first.
    Audit {
        /// The lines, each a JSON object.
        lines: Vec<String>,
    },
    /// To [`Request::Mom`].
    Mom {
        /// What mom is to do.
        orders: Box<MomOrders>,
    },
    /// To questions about checkpoints.
    Checkpoints {
        /// The jobs, by their ids.
        jobs: Vec<CheckpointJob>,
    },
    /// To [`CheckpointRequest::Report`].
    CheckpointReport {
        /// The newest last, and not the oldest where they are too many for an answer.
        recoveries: Vec<CheckpointRecovery>,
    },
    /// To [`CheckpointRequest::Figures`].
    CheckpointFigures {
        /// They.
        figures: Box<CheckpointFigures>,
    },
    /// The request was not done.
    Refused {
        /// Why, for programs.
        code: Code,
        /// Why, for people.
        message: String,
    },
}

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// It is not a request: broken JSON, an unknown name, a value out of range.
    Malformed,
    /// A line is longer than [`super::MAX_REQUEST`].
    TooLong,
    /// No hello came first, or one of another version.
    Protocol,
    /// The caller has not the right.
    Forbidden,
    /// Too many connections.
    Busy,
    /// The client reads too slowly to be told what happens.
    TooSlow,
    /// No such GPU on this node.
    Unknown,
    /// It could not be done: the message says why.
    Failed,
}

/// Something that happened on the node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Happening {
    /// Milliseconds since 1970, UTC.
    pub at_ms: u64,
    /// What kind of thing, one word: `warn`, `state`, `requeue`, …
    pub what: String,
    /// The GPU that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<NodeGpu>,
    /// The job that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// A sentence.
    pub message: String,
}
