//! What subsystems want done. They do nothing themselves: the loop carries effects out, one after the other.

use std::time::{Duration, Instant};

use gpuos_core::health::{Admin, Audit, Event, ExtraPart};
use gpuos_core::isolation::Finding;
use gpuos_core::job::JobId;
use gpuos_core::limits::{Asked, Holder};
use gpuos_core::step::StepId;
use gpuos_core::wire::{MigAsk, Peer, Reply, Request, StepMemory};
use gpuos_model::gpu_index::NvmlIndex;
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::action::Action;

use super::client::Client;
use super::limits::Prepare;
use crate::blocking::Device;
use crate::isolation::Order;
use crate::known::Instances;
use crate::memory::{caller, pressure, watch};
use crate::queue::{Release, Task, Why};
use crate::{limits, mig, mps};

/// The clocks when a message is handled.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// By a clock that never jumps.
    pub at: Instant,
    /// Milliseconds since the daemon started, by the same clock.
    pub running_ms: u64,
    /// Milliseconds since 1970, by a clock that may jump.
    pub wall_ms: u64,
}

/// When slurmctld is to be asked for the node's record and jobs, at the latest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollBy {
    /// After so long.
    In(Duration),
    /// So long after it was asked last.
    AfterLast(Duration),
    /// After the first, and no sooner than the second after it was asked last.
    InAndAfterLast(Duration, Duration),
}

/// Whether a line of the log counts for what one user may cause: see [`super::quiet`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quota {
    /// It is always written.
    None,
    /// For this user, if there is one.
    User(Option<u32>),
    /// For the user of the job that the line is about.
    Job,
}

/// What is told once the state is safe on the disk, or cannot be written.
#[derive(Debug)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// The journal of power limits and clocks, of this revision.
    Limits(u64),
    /// The same of MPS.
    Mps(u64),
    /// The same of MIG instances of a GPU, by NVML's index.
    Mig(NvmlIndex, u64),
    /// A job could not get its MIG instances.
    MigCounted(JobId),
    /// The journal of memory in tiers, of this revision.
    Memory(u64),
    /// A client waits for that.
    Answer(Client, String),
}

/// A step whose GPUs are to be prepared.
#[derive(Debug)]
pub struct Starting {
    /// The step.
    pub id: StepId,
    /// GPUs of GRES `gpu` that it names: any numbers.
    pub gpus: Vec<u8>,
    /// What it asked for.
    pub asked: Asked,
    /// Its memory slices.
    pub mig: Option<MigAsk>,
    /// It waits until GPUs are whole.
    pub switchable: bool,
    /// Its memory in tiers.
    pub memory: Option<StepMemory>,
    /// Where the answer goes.
    pub client: Client,
}

/// One thing to do.
#[derive(Debug)]
pub enum Effect {
    // Threads.
    /// Ask or tell slurmctld, after all that waits.
    Ask(Task),
    /// The same before all else: a step waits for it.
    AskFirst(Task),
    /// Reset or check a GPU.
    Device(Device),
    /// Power limits and clocks.
    Limits(limits::Task),
    /// A daemon of MPS.
    Mps(mps::Task),
    /// MIG instances of a GPU, by NVML's index.
    Mig(NvmlIndex, mig::Task),
    /// Processes and control groups.
    Isolation(Order),
    /// Processes with memory in tiers.
    Programs(watch::Order),
    /// Have the driver called for a process with memory in tiers.
    CallDriver(caller::Order),
    /// Whose memory is looked at.
    LookAtMemory(pressure::Order),
    /// Read gres.conf again.
    Renumber,
    // Disk, log, clients.
    /// Write the state.
    Save(Then),
    /// A line of the audit log.
    Log(Audit, Quota),
    /// Somebody is on a GPU who should not be: a warning, and a line of the audit log.
    Found(Finding, Audit),
    /// A warning, which watchers hear, too.
    Warn(Option<NodeGpu>, String),
    /// A line of the audit log of the daemon's own.
    Note {
        /// The line.
        text: String,
        /// Whose job it is about.
        job: Option<JobId>,
        /// Whom it is about.
        uid: Option<u32>,
        /// Whether it counts for somebody.
        quota: Quota,
    },
    /// Answer a client.
    Reply(Client, Reply),
    /// What keeps the daemon from its work, or that nothing does any more.
    Trouble(&'static str, Option<String>),
    // Other subsystems.
    /// Tell the health rules.
    Rules(Event),
    /// Tell them an administrator's command. The state is saved when its answer is.
    Command(Admin),
    /// Make room for so many GPUs.
    Grow(usize),
    /// Make room for a GPU of the pool.
    KnowPooled(NodeGpu),
    /// These GPUs are in the pool now, and no others.
    KeepPooled(Vec<NodeGpu>),
    /// A GPU is divided no more.
    Undivided(NodeGpu),
    /// Ask slurmctld for the node's record and jobs.
    PollScheduler(PollBy),
    /// Tell slurmctld what is out.
    Publish(u64, ExtraPart),
    /// Let a job go that slurmctld holds back.
    Release(Release),
    /// Look after it no more.
    ForgetRelease(JobId),
    /// slurmctld does not requeue this job.
    MayNotRequeue(JobId),
    /// Tell the health rules and all others who has GPUs.
    PublishJobs,
    /// Tell those who set GPUs who has them whole.
    PublishLimits,
    /// The same with what is known.
    Holders(Vec<Holder>),
    /// Whose a job is.
    User(JobId, u32),
    /// Go on with a request that waited for slurmctld's word.
    Request(Peer, Request, Client),
    /// Prepare the GPUs of a step.
    Starting(Starting),
    /// The same once it has its slices, and its GPUs are whole.
    Prepare(Prepare),
    /// Make instances on a GPU for which steps wait.
    Carve(NvmlIndex),
    /// Whose instances can be used now, before a step is told of them.
    KnowInstances(Instances),
}

/// Effects in the order in which they are carried out.
#[derive(Debug, Default)]
pub struct Effects(Vec<Effect>);

impl Effects {
    /// One more.
    pub fn push(&mut self, effect: Effect) {
        self.0.push(effect);
    }

    /// slurmctld is asked or told something.
    pub fn ask(&mut self, task: Task) {
        self.push(Effect::Ask(task));
    }

    /// The same before all else.
    pub fn ask_first(&mut self, task: Task) {
        self.push(Effect::AskFirst(task));
    }

    /// A job's user is told why something of it is ended or requeued. Before that.
    pub fn tell(&mut self, job: &JobId, why: String) {
        let job = job.clone();
        self.ask(Task::Act(Action::Tell { job, why }, Why::Rule));
    }

    /// The state is written.
    pub fn save(&mut self) {
        self.push(Effect::Save(Then::Nothing));
    }

    /// slurmctld is asked for the node's record and jobs.
    pub fn poll_scheduler(&mut self, look: PollBy) {
        self.push(Effect::PollScheduler(look));
    }

    /// A trouble is there, or over.
    pub fn trouble(&mut self, of: &'static str, what: Option<String>) {
        self.push(Effect::Trouble(of, what));
    }

    /// A client is answered.
    pub fn reply(&mut self, client: Client, reply: Reply) {
        self.push(Effect::Reply(client, reply));
    }

    /// A line of the audit log that is always written.
    pub fn note(&mut self, text: String, job: Option<JobId>, uid: Option<u32>) {
        let quota = Quota::None;
        self.push(Effect::Note {
            text,
            job,
            uid,
            quota,
        });
    }
}

impl IntoIterator for Effects {
    type Item = Effect;
    type IntoIter = std::vec::IntoIter<Effect>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
