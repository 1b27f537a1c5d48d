//! Why a job that asks for GPUs was refused, where nothing else says it: counts that were made while it was decided, so
//! that a refusal costs no further look at the nodes.

use gpuos_placement::explain::{Asked, Refusal};
use gpuos_placement::plan::{GpuShape, Request};

use crate::abi::frame::Frame;
use crate::read::request;
use crate::read::snapshot::Snapshot;
use crate::tell::reasons;

/// What is known of the call that is being decided.
#[derive(Default)]
pub struct Refused {
    /// Address of the job's record.
    job: usize,
    /// Nodes that Slurm offered.
    offered: u32,
    /// What the job asks for on how few and how many nodes, once that has been read.
    asked: Option<(Asked, u32, u32)>,
    /// Nodes with enough free GPUs, and free GPUs on them.
    counted: Option<(u32, u32)>,
}

impl Refused {
    /// A call begins: notes what Slurm offers, for cons_tres leaves something else there.
    pub fn begin(&mut self, frame: &Frame<'_>) {
        *self = Refused {
            job: frame.call.job as usize,
            offered: frame.candidates.count() as u32,
            ..Refused::default()
        };
    }

    /// The job asks for so many GPUs on each of `needed` nodes, and so many nodes have them.
    pub fn counted(&mut self, gpus: u32, needed: u32, found: u32) {
        self.asked = Some((Asked::Each(gpus), needed, needed));
        self.counted = Some((found, 0));
    }

    /// The job's request; the snapshot of this call will have the counts.
    pub fn asks(&mut self, request: &Request) {
        let asked = match request.gpus {
            GpuShape::PerNode(gpus) => Asked::Each(gpus),
            GpuShape::Total(gpus) => Asked::All(gpus),
            GpuShape::PerTask { per_task, tasks } => Asked::All(per_task.saturating_mul(tasks)),
            GpuShape::PerSocket { .. } => Asked::Other,
        };
        self.asked = Some((asked, request.min_nodes, request.max_nodes));
    }
}

impl Refused {
    /// The call about a job that asks for GPUs was refused: remembers why, unless something else has said it.
    pub fn record(&self, frame: &Frame<'_>, snapshot: &Snapshot) {
        let job = frame.job;
        if job.id() == 0 || reasons::has_text(job.id()) {
            return;
        }
        if job.has_spank_env() && request::options_of(job).off {
            return;
        }
        if self.job != frame.call.job as usize {
            return;
        }
        let (asked, needed, most) = self.asked.unwrap_or((Asked::Other, 1, 1));
        let (found, free) = match (self.counted, asked) {
            (Some(counted), _) => counted,
            (None, Asked::Each(gpus)) => (snapshot.with_free(gpus), 0),
            (None, Asked::All(_)) => snapshot.with_any(),
            (None, Asked::Other) => (0, 0),
        };
        let refusal = Refusal {
            needed,
            most,
            asked,
            offered: self.offered,
            found,
            free,
        };
        reasons::refused(job.id(), refusal);
    }
}
