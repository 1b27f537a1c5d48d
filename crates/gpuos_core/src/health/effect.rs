//! What the daemon is to do, in the order given.
use gpuos_model::node_gpu::NodeGpu;
use serde::{Deserialize, Serialize};

use super::extra::ExtraPart;
use crate::job::JobId;

/// One thing to do. What fails is told with the event that belongs to it; nothing else has to be remembered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Effect {
    /// Tell the log.
    Warn {
        /// The GPU; `None` = the node.
        gpu: Option<NodeGpu>,
        /// A sentence.
        text: String,
    },
    /// Kill one step (`scancel JOB.STEP`), no other. It comes again while the step stays.
    KillStep {
        /// The job.
        job: JobId,
        /// The step; `None` = the whole job, of which no step is known.
        step: Option<u32>,
        /// A sentence.
        reason: String,
    },
    /// Requeue a job (`scontrol requeue`, then `StartTime=now` a second after it is pending). It comes again while the
    /// job stays on a GPU that is out.
    Requeue {
        /// The job.
        job: JobId,
        /// A sentence.
        reason: String,
        /// slurmctld has not confirmed that the GPU is out: keep the job off this whole node
        /// (`ExcNodeList`), so that it does not come back to the same GPU.
        avoid_node: bool,
    },
    /// Write the marked part of the node's `Extra`; answer with [`super::Event::Published`].
    Publish {
        /// Number of this publication.
        revision: u64,
        /// What is to stand there.
        part: ExtraPart,
    },
    /// Drain the node in Slurm, with this reason, unless it is drained already.
    DrainNode {
        /// Why.
        reason: String,
    },
    /// Take our drain of the node back; only if Slurm still shows our reason.
    UndrainNode {
        /// The reason that we gave.
        reason: String,
    },
    /// Reset the GPU; answer with [`super::Event::ResetDone`].
    Reset {
        /// The GPU.
        gpu: NodeGpu,
    },
    /// Check whether the GPU can serve; answer with [`super::Event::CheckDone`].
    Check {
        /// The GPU.
        gpu: NodeGpu,
    },
    /// A line for the audit log.
    Audit(Audit),
}

/// A line of the audit log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Audit {
    /// When, as given to [`super::step`], in ms.
    pub at_ms: u64,
    /// The GPU; `None` = the node.
    pub gpu: Option<NodeGpu>,
    /// Rule that made it so.
    pub rule: Option<String>,
    /// Job that it is about.
    pub job: Option<JobId>,
    /// Administrator who wanted it.
    pub uid: Option<u32>,
    /// What happened, in a sentence.
    pub text: String,
}
