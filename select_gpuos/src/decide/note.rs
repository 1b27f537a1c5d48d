//! After a job was given its nodes: name the GPUs where Slurm only counted them, and, once the job
//! really starts, note the decision in its record.

use std::ffi::c_void;

use gpuos_config::gpuos_toml::{LogLevel, NoteField};
use gpuos_config::options::JobOptions;
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::explain::{Held, Note, beside, without as note_free};
use gpuos_placement::plan::{Choice, NodeChoice, Request};
use gpuos_placement::record;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;
use slurm_ffi::log;

use crate::abi::call::Counts;
use crate::abi::frame::Frame;
use crate::abi::source::Source;
use crate::decide::cluster_state::ClusterState;
use crate::decide::held::Holders;
use crate::messages;
use crate::read::site::Site;
use crate::read::snapshot::Snapshot;
use crate::read::trust::LayoutTrust;

/// What is to be noted of a job, should Slurm start it: a RUN_NOW that cons_tres accepted can still end
/// at a limit or a licence.
pub struct Pending {
    record: usize,
    decision: Decision,
}

/// How the nodes of a job came about.
pub enum Decision {
    /// From the choice at hand, made for this request.
    Planned(Request),
    /// There was only one way to place it; what that way is worth is seen when it is noted.
    OnlyWay(Request),
    /// As that, and neither nodes nor request have been read: so many nodes were asked for.
    Unread(Counts),
    /// cons_tres chose among the nodes that hold checkpoints of the job, which has no GPUs.
    Held(Held),
    /// Slices of GPUs, for instances of these profiles.
    Slices(String),
    /// cons_tres chose by itself.
    Stock,
}

impl Pending {
    /// Keeps a decision about the job of a call until it starts; a forecast starts nothing.
    pub fn keep(pending: &mut Option<Pending>, frame: &Frame<'_>, decision: Decision) {
        if frame.is_start() {
            *pending = Some(Pending {
                record: frame.call.job as usize,
                decision,
            });
        }
    }

    /// Whether it is about the job of this record.
    pub fn is_of(&self, record: *mut c_void) -> bool {
        self.record == record as usize
    }

    /// How the job's nodes came about.
    pub fn decision(self) -> Decision {
        self.decision
    }
}

/// Names the GPUs of the choice that a successful RUN_NOW followed, where cons_tres has only counted them.
pub fn complete(frame: &Frame<'_>, snapshot: &Snapshot, chosen: &Choice) {
    let (source, job, nodes) = (&frame.source, frame.job, frame.candidates);
    let Some(gpus) = source.one_type(job) else {
        return;
    };
    for one in &chosen.nodes {
        let index = one.node as usize;
        let Some(place) = snapshot.places.get(index) else {
            continue;
        };
        if !place.flat || one.gpus == GpuSet::EMPTY || !nodes.test(index) {
            continue;
        }
        if !gpus.supply(source.api, index, one.gpus.0, place.devices) {
            log::debug(&format!(
                "job {}: cons_tres gave another number of GPUs than planned",
                job.id()
            ));
        }
    }
}

/// A job that starts, of which is written down how its nodes came about.
pub struct Noting<'e, 'a> {
    /// This slurmctld.
    pub site: &'e Site,
    /// How far the layout table is trusted.
    pub trust: &'e mut LayoutTrust,
    /// What is known of the cluster.
    pub cluster: &'e mut ClusterState,
    /// The choice at hand.
    pub chosen: &'e mut Choice,
    /// Which attempt that was, counted from 0.
    pub attempt: &'e mut u32,
    /// Slurm's records.
    pub source: &'e Source<'a>,
    /// The job.
    pub job: Job<'a>,
}

impl<'a> Noting<'_, 'a> {
    /// Writes the note of a job that asks for these GPUs.
    pub fn start(&mut self, decision: Decision, gpus: JobGres<'a>, holders: &Holders) {
        let job = self.job;
        let decision = match decision {
            Decision::Unread(counts) => self.read_again(counts, gpus),
            decision => decision,
        };
        let request = match decision {
            Decision::Planned(request) => request,
            Decision::OnlyWay(request) => {
                let Some(planner) = self.cluster.planner.as_mut() else {
                    return self.drop_note();
                };
                let answer = planner.plan(&self.cluster.snapshot.states, &request, 0);
                self.cluster.records.begin(job.id(), record::Purpose::Start);
                self.cluster.records.states(&self.cluster.snapshot.states);
                self.cluster
                    .records
                    .asked(&request, (0, record::By::Order), &answer);
                let Ok(choice) = answer else {
                    return self.drop_note();
                };
                self.chosen.set(choice);
                self.cluster.records.ended(record::Outcome::Taken);
                *self.attempt = 0;
                request
            }
            Decision::Unread(_) | Decision::Stock | Decision::Slices(_) | Decision::Held(_) => {
                return self.drop_note();
            }
        };
        let ClusterState {
            planner,
            standing,
            snapshot,
            ..
        } = &mut *self.cluster;
        let worth = standing.value_gain(planner.as_mut(), &snapshot.states, self.chosen, &request);
        let Some(planner) = planner.as_ref() else {
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
            ..*self.chosen
        };
        let said = match job.has_spank_env() {
            true => JobOptions::from_spank_env(job.spank_env()).unwrap_or_default(),
            false => JobOptions::default(),
        };
        let note = Note {
            worth,
            held: holders.among(job.id(), given.nodes.iter().map(|one| one.node)),
            class: said.class,
            alone: said.exclusive,
            ..Note::new(&given, &request, planner.cluster(), *self.attempt)
        };
        write(self.site, job, &note);
    }

    /// Writes the note of a job with slices: its instances, where they are the same on all nodes.
    pub fn start_with_slices(&self, instances: String) {
        let job = self.job;
        let Some(nodes) = job.allocated_nodes().filter(|_| !instances.is_empty()) else {
            return;
        };
        let name = |index: usize| {
            let node = self.source.node(index);
            node.map(|node| node.name().to_string())
        };
        let note = Note::of_slices(instances, nodes.iter().filter_map(name));
        write(self.site, job, &note);
    }

    /// Writes the note of a job without GPUs whose nodes hold its checkpoints, or takes away that of an earlier start.
    pub fn start_without_gpus(&self, decision: Decision) {
        let (Decision::Held(held), Some(nodes)) = (decision, self.job.allocated_nodes()) else {
            return self.drop_note();
        };
        let name = |index: usize| {
            let node = self.source.node(index);
            node.map(|node| node.name().to_string())
        };
        let note = Note::of_nodes(held, nodes.iter().filter_map(name));
        write(self.site, self.job, &note);
    }

    /// Reads what was left unread when the job could only have all nodes that were offered: nothing of it has
    /// changed, for what the job was given counts as allocated only after this call.
    fn read_again(&mut self, counts: Counts, gpus: JobGres<'a>) -> Decision {
        let (site, source, job) = (self.site, self.source, self.job);
        let cluster = &mut *self.cluster;
        let Some(nodes) = job.allocated_nodes() else {
            return Decision::Stock;
        };
        let kind = gpus.type_name();
        cluster.take_snapshot(false, source, nodes, kind);
        if cluster.snapshot.unlisted || !cluster.model(site, self.trust, source) {
            return Decision::Stock;
        }
        cluster
            .wanted(site, source, counts, (job, gpus), &JobOptions::default())
            .map_or(Decision::Stock, |wanted| Decision::OnlyWay(wanted.request))
    }

    /// Takes away the note of an earlier start of a job that cons_tres placed by itself this time.
    fn drop_note(&self) {
        let job = self.job;
        let comment = job.system_comment();
        if let Some(comment) = comment.filter(|comment| Note::parse(comment).is_some()) {
            let rest = note_free(comment);
            job.set_system_comment(self.site.api, &rest);
        }
    }
}

/// Writes a note into a job's record and into the log.
fn write(site: &Site, job: Job<'_>, note: &Note) {
    let config = &site.settings.config.slurm;
    let line = note.encode();
    if config.note == NoteField::SystemComment {
        let comment = beside(job.system_comment().unwrap_or_default(), &line);
        job.set_system_comment(site.api, &comment);
    }
    if config.log == LogLevel::Decisions {
        log::info(&messages::decided(job.id(), line));
    }
}
