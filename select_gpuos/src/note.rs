//! After a job was given its nodes: name the GPUs where Slurm only counted them, and note the
//! decision in the job record.

use gpuos_core::config::{LogLevel, NoteField};
use gpuos_core::explain::{Note, without as note_free};
use gpuos_core::gpuset::GpuSet;
use gpuos_core::plan::{Choice, Request};
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::{Job, gres_data};
use slurm_ffi::log;

use crate::call::{Call, Mode};
use crate::engine::Engine;

impl Engine {
    /// Takes away the note of an earlier start of a job that cons_tres now places by itself.
    pub(crate) fn drop_note(&mut self, call: &Call) {
        // SAFETY: the job record of this call, locked by slurmctld for its length.
        let Some(job) = (unsafe { Job::new(call.job, self.layout) }) else {
            return;
        };
        if call.mode() != Mode::RunNow || !self.trusts_selection(call.job) {
            return;
        }
        if let Some(comment) = job
            .system_comment()
            .filter(|comment| Note::parse(comment).is_some())
        {
            let rest = note_free(comment);
            job.set_system_comment(self.api, &rest);
        }
    }

    /// Completes a successful RUN_NOW that followed the choice in `self.chosen`.
    pub(crate) fn settle_selection(&mut self, call: &Call, nodes: Bitmap<'_>, request: &Request) {
        if !self.trusts_selection(call.job) {
            return;
        }
        let layout = self.layout;
        // SAFETY: the job record of this call, locked by slurmctld for its length; its GRES request was
        // checked again after cons_tres wrote its selection.
        let (job, gpus) = unsafe {
            let Some(job) = Job::new(call.job, layout) else {
                return;
            };
            let requested = gres_data(self.api, layout, job.gres_list(), self.gpu_id);
            let [one] = requested.items() else { return };
            let Some(gpus) = JobGres::new(*one, &layout.gres_job) else {
                return;
            };
            (job, gpus)
        };
        for one in &self.chosen.nodes {
            let index = one.node as usize;
            let Some(place) = self.snapshot.places.get(index) else {
                continue;
            };
            if !place.flat || one.gpus == GpuSet::EMPTY || !nodes.test(index) {
                continue;
            }
            let devices = place.devices;
            if !gpus.supply(self.api, index, one.gpus.0, devices) {
                log::debug(&format!(
                    "job {}: cons_tres gave another number of GPUs than planned",
                    job.id()
                ));
            }
        }
        let config = &self.settings.config.slurm;
        if config.note == NoteField::Off && config.log == LogLevel::Quiet {
            return;
        }
        let Some(planner) = self.planner.as_ref() else {
            return;
        };
        let given = Choice {
            nodes: nodes
                .iter()
                .map(|node| gpuos_core::plan::NodeChoice {
                    node: node as u32,
                    gpus: gpus
                        .selected(node)
                        .map_or(GpuSet::EMPTY, |bits| GpuSet(bits.chunk(0))),
                })
                .collect(),
            ..self.chosen.clone()
        };
        let note = Note::new(&given, request, planner.cluster(), self.attempt);
        if config.log == LogLevel::Decisions {
            log::info(&format!("job {}: {}", job.id(), note.encode()));
        }
        if config.note == NoteField::SystemComment {
            let comment = note.write_into(job.system_comment().unwrap_or_default());
            job.set_system_comment(self.api, &comment);
        }
    }
}
