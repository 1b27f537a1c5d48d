//! After a job was given its nodes: name the GPUs where Slurm only counted them, and, once the job
//! really starts, note the decision in its record.

use std::ffi::c_void;

use gpuos_core::config::{LogLevel, NoteField};
use gpuos_core::explain::{Note, beside, without as note_free};
use gpuos_core::gpuset::GpuSet;
use gpuos_core::options::JobOptions;
use gpuos_core::plan::{Choice, NodeChoice, Request};
use gpuos_core::record;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;
use slurm_ffi::log;

use crate::call::{Call, Counts, Mode};
use crate::engine::Engine;

/// What is to be noted of a job, should Slurm start it: a RUN_NOW that cons_tres accepted can still end
/// at a limit or a licence.
pub struct Pending {
    record: usize,
    decision: Decision,
}

/// How the nodes of a job came about.
pub enum Decision {
    /// From the choice in `Engine::chosen`, made for this request.
    Planned(Request),
    /// There was only one way to place it; what that way is worth is seen when it is noted.
    OnlyWay(Request),
    /// As that, and neither nodes nor request have been read: so many nodes were asked for.
    Unread(Counts),
    /// Slices of GPUs, for instances of these profiles.
    Slices(String),
    /// cons_tres chose by itself.
    Stock,
}

impl Engine {
    /// Keeps a decision until the job starts.
    pub(crate) fn decided(&mut self, call: &Call, decision: Decision) {
        if call.mode() == Mode::RunNow {
            self.pending = Some(Pending {
                record: call.job as usize,
                decision,
            });
        }
    }

    /// A job that cons_tres has just given its nodes, and what it asks of GPUs.
    ///
    /// # Safety
    /// `record` is a live job record under slurmctld's job write lock.
    unsafe fn selected(&mut self, record: *mut c_void) -> Option<(Job<'static>, JobGres<'static>)> {
        // Checked again after cons_tres wrote its selection.
        if !self.trusts_selection(record) {
            return None;
        }
        // SAFETY: by the caller; the layout was accepted by the self-check.
        let job = unsafe { Job::new(record, self.layout)? };
        Some((job, self.one_type(job)?))
    }

    /// Completes a successful RUN_NOW that followed the choice in `self.chosen`.
    pub(crate) fn complete_selection(&mut self, call: &Call, nodes: Bitmap<'_>) {
        // SAFETY: the job record of this call, locked by slurmctld for its length.
        let Some((job, gpus)) = (unsafe { self.selected(call.job) }) else {
            return;
        };
        for one in &self.chosen.nodes {
            let index = one.node as usize;
            let Some(place) = self.snapshot.places.get(index) else {
                continue;
            };
            if !place.flat || one.gpus == GpuSet::EMPTY || !nodes.test(index) {
                continue;
            }
            if !gpus.supply(self.api, index, one.gpus.0, place.devices) {
                log::debug(&format!(
                    "job {}: cons_tres gave another number of GPUs than planned",
                    job.id()
                ));
            }
        }
    }

    /// A job starts: writes down how its nodes came about.
    pub(crate) fn note_start(&mut self, record: *mut c_void) {
        let Some(pending) = self
            .pending
            .take_if(|pending| pending.record == record as usize)
        else {
            return;
        };
        if let Decision::Slices(names) = pending.decision {
            return self.note_slices_start(record, names);
        }
        // SAFETY: the record that slurmctld is starting, under its job write lock.
        let Some((job, gpus)) = (unsafe { self.selected(record) }) else {
            return;
        };
        let decision = match pending.decision {
            Decision::Unread(counts) => self.read_again(counts, job, gpus),
            decision => decision,
        };
        let request = match decision {
            Decision::Planned(request) => request,
            Decision::OnlyWay(request) => {
                let Some(planner) = self.planner.as_mut() else {
                    return self.drop_note(job);
                };
                let answer = planner.plan(&self.snapshot.states, &request, 0);
                self.records.begin(job.id(), record::Purpose::Start);
                self.records.states(&self.snapshot.states);
                self.records
                    .asked(&request, (0, record::By::Order), &answer);
                let Ok(choice) = answer else {
                    return self.drop_note(job);
                };
                self.chosen.set(choice);
                self.records.ended(record::Outcome::Taken);
                self.attempt = 0;
                request
            }
            Decision::Unread(_) | Decision::Stock | Decision::Slices(_) => {
                return self.drop_note(job);
            }
        };
        let worth = self.worth(&request);
        let Some(planner) = self.planner.as_ref() else {
            return;
        };
        // Slurm's word on what the job got, beside the figures of the choice.
        let given = |one: &NodeChoice| {
            let node = one.node as usize;
            let chosen = gpus.selected(node).map(|bits| GpuSet(bits.chunk(0)));
            (gpus.selected_count(node) > 0).then(|| NodeChoice {
                node: one.node,
                gpus: chosen.unwrap_or_default(),
            })
        };
        let given = Choice {
            nodes: self.chosen.nodes.iter().filter_map(given).collect(),
            ..self.chosen
        };
        let said = match job.has_spank_env() {
            true => JobOptions::from_spank_env(job.spank_env()).unwrap_or_default(),
            false => JobOptions::default(),
        };
        let note = Note {
            worth,
            class: said.class,
            alone: said.exclusive,
            ..Note::new(&given, &request, planner.cluster(), self.attempt)
        };
        self.write_note(job, &note);
    }

    /// Writes a note into a job's record and into the log.
    pub(crate) fn write_note(&self, job: Job<'_>, note: &Note) {
        let config = &self.settings.config.slurm;
        let line = note.encode();
        if config.note == NoteField::SystemComment {
            let comment = beside(job.system_comment().unwrap_or_default(), &line);
            job.set_system_comment(self.api, &comment);
        }
        if config.log == LogLevel::Decisions {
            log::info(&format!("job {}: {line}", job.id()));
        }
    }

    /// Reads what was left unread when the job could only have all nodes that were offered: nothing of it has
    /// changed, for what the job was given counts as allocated only after this call.
    fn read_again(&mut self, counts: Counts, job: Job<'_>, gpus: JobGres<'_>) -> Decision {
        let Some(nodes) = job.given_nodes() else {
            return Decision::Stock;
        };
        let source = self.source();
        // SAFETY: called while slurmctld starts a job, under its node write lock.
        unsafe {
            self.snapshot.take(
                &source,
                nodes,
                gpus.type_name(),
                &self.ledger,
                &self.service,
            )
        };
        if self.snapshot.unlisted || !self.model() {
            return Decision::Stock;
        }
        self.wanted(counts, job, gpus, &JobOptions::default())
            .map_or(Decision::Stock, |wanted| Decision::OnlyWay(wanted.request))
    }

    /// Takes away the note of an earlier start of a job that cons_tres placed by itself this time.
    fn drop_note(&self, job: Job<'_>) {
        let comment = job.system_comment();
        if let Some(comment) = comment.filter(|comment| Note::parse(comment).is_some()) {
            let rest = note_free(comment);
            job.set_system_comment(self.api, &rest);
        }
    }
}
