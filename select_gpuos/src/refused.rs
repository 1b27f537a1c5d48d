//! Why a job that asks for GPUs was refused, where nothing else says it: counts that were made while it was decided, so
//! that a refusal costs no further look at the nodes.

use gpuos_core::explain::{Asked, Refusal};
use gpuos_core::plan::{GpuShape, Request};
use slurm_ffi::bits::Bitmap;
use slurm_ffi::handles::Job;

use crate::call::{Call, Mode};
use crate::decide::said;
use crate::engine::Engine;
use crate::reasons;

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
    pub fn begin(&mut self, call: &Call) {
        // SAFETY: the bitmap of this call, locked by slurmctld for its length.
        let nodes = unsafe { Bitmap::new(call.nodes) };
        *self = Refused {
            job: call.job as usize,
            offered: nodes.map_or(0, Bitmap::count) as u32,
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
            GpuShape::PerSocket(_) => Asked::Other,
        };
        self.asked = Some((asked, request.min_nodes, request.max_nodes));
    }
}

impl Engine {
    /// A call about a job was refused: remembers why, unless something else has said it.
    pub(crate) fn say_refused(&mut self, call: &Call) {
        if call.mode() != Mode::RunNow || !self.settings.config.slurm.steer || !self.reads_records()
        {
            return;
        }
        // SAFETY: the job record of this call, locked by slurmctld for its length, of the release whose layout the
        // self-check accepted.
        let Some(job) = (unsafe { Job::new(call.job, self.layout) }) else {
            return;
        };
        let asks = self.gpus_asked(job).next().is_some()
            || self.has_shards() && self.shards_asked(job).is_some();
        if job.id() == 0 || !asks || reasons::has_text(job.id()) {
            return;
        }
        if job.has_spank_env() && said(job).off {
            return;
        }
        if self.refused.job != call.job as usize {
            return;
        }
        let known = self.refused.asked;
        let (asked, needed, most) = known.unwrap_or((Asked::Other, 1, 1));
        let (found, free) = match (self.refused.counted, asked) {
            (Some(counted), _) => counted,
            (None, Asked::Each(gpus)) => (self.snapshot.with_free(gpus), 0),
            (None, Asked::All(_)) => self.snapshot.with_any(),
            (None, Asked::Other) => (0, 0),
        };
        let refusal = Refusal {
            needed,
            most,
            asked,
            offered: self.refused.offered,
            found,
            free,
        };
        reasons::refused(job.id(), refusal);
    }
}
