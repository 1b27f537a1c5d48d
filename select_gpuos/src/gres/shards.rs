//! Jobs that ask for a part of a GPU (GRES `shard`), beside others.
//!
//! cons_tres gives such a job shards of one GPU of each node, of none that somebody has as a whole, and
//! nobody a whole GPU of which a shard is in use. Which GPU of each node it is offered is decided in
//! [`gpuos_placement::shards`].

use std::ffi::c_int;

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::shards::{Candidate, Candidates, Entry, Needs, NodeState, Part};
use slurm_ffi::api::Api;
use slurm_ffi::check::{Gres, Misfit};
use slurm_ffi::gres::{JobGres, NodeGres};
use slurm_ffi::handles::Job;
use slurm_ffi::release::Release;

use crate::abi::frame::Frame;
use crate::abi::masks::Masks;
use crate::abi::source::Source;
use crate::gres::steer::Steering;
use crate::read::request;
use crate::read::service::Service;
use crate::read::site::Site;
use crate::read::trust::{self, LayoutTrust};

/// From this release on Slurm keeps the mark of a shared GPU until the last of its jobs has ended, and gives a job shards
/// of no GPU but those that it found free for them.
const KEEPS_MARKS_FROM: Release = Release::new(23, 11, 5);

/// What is kept of shards from call to call.
pub struct Shards {
    gres: Gres,
    /// Whether a node has any; `None`: nobody has looked yet.
    any: Option<bool>,
    /// Whether requests for them fit the layout table, once one was held against it.
    fits: bool,
    candidates: Candidates,
    chosen: Vec<(usize, u64)>,
    /// Room for what a call marks: one mark for each node.
    mask_buffer: Masks,
    /// Whether the call at hand looked for shared GPUs.
    pub detected: bool,
}

impl Shards {
    /// Nothing is known yet.
    pub fn new(api: &Api) -> Shards {
        Shards {
            gres: Gres::shards(api),
            any: None,
            fits: false,
            candidates: Candidates::default(),
            chosen: Vec::new(),
            mask_buffer: Masks::default(),
            detected: false,
        }
    }

    /// Forgets the nodes: their table is made anew.
    pub fn clear(&mut self) {
        self.any = None;
    }

    /// Slurm's number of the GRES, unless no node has any.
    pub fn id(&self) -> Option<u32> {
        (self.any == Some(true)).then_some(self.gres.id)
    }
}

impl Shards {
    /// Has it known whether any node has shards.
    #[inline]
    pub fn detect_shards(&mut self, source: &Source<'_>, release: Release) {
        if self.any.is_none() {
            self.detect(source, release);
        }
    }

    /// Whether any node has shards.
    pub fn has_any(&self) -> bool {
        self.any == Some(true)
    }

    #[cold]
    #[inline(never)]
    fn detect(&mut self, source: &Source<'_>, release: Release) {
        let has = |index: usize| {
            let shards = source.gres_of(index, self.gres.id);
            shards.is_some_and(|shards| shards.available() > 0)
        };
        let any = (0..source.nodes()).any(has);
        self.any = Some(any);
        if any && release < KEEPS_MARKS_FROM {
            self.mask_buffer.reserve(source.nodes());
        }
    }

    /// Has cons_tres see all GPUs of which shards are in use: before 23.11.5 it gives one as a whole once
    /// the first of the jobs that share it has ended. Also where gpuos does not steer.
    pub fn show(&mut self, frame: &Frame<'_>, release: Release) {
        if self.has_any() && release < KEEPS_MARKS_FROM {
            self.show_on_candidates(frame);
        }
    }

    /// Takes back what [`Shards::show`] marked, at the end of its call.
    pub fn hide(&mut self, frame: &Frame<'_>) {
        if std::mem::take(&mut self.detected) {
            let shared = &frame.call.shared;
            shared.revert_all();
            shared.swap_buffers(&self.mask_buffer);
        }
    }

    #[inline(never)]
    fn show_on_candidates(&mut self, frame: &Frame<'_>) {
        if frame.job.gres_list().is_null() {
            return;
        }
        let (call, source) = (frame.call, &frame.source);
        self.detected = true;
        call.shared.swap_buffers(&self.mask_buffer);
        // A forecast gives nothing, and who ends in it has his GPU there no more.
        let starts = frame.is_start() && source.asked(frame.job, self.gres.id).next().is_some();
        for index in frame.indices() {
            let found = source
                .node(index)
                .and_then(|node| Some((node, source.gres(node, self.gres.id)?)));
            let Some((node, shards)) = found else {
                continue;
            };
            if starts && let Some(gpus) = source.gpus(node) {
                call.shards.note(source.layout, index, shards, gpus);
            }
            call.shared.show_in_use(source.layout, shards);
        }
    }

    /// What a job asks for of shards, where it names one type of them or none.
    pub fn asked<'a>(&self, frame: &Frame<'a>) -> Option<JobGres<'a>> {
        frame.source.asked_once(frame.job, self.gres.id)
    }

    /// Decides a call about a job with shards, whose request fits the layout table; `None` hands it on as it came.
    #[inline(never)]
    pub fn place(
        &mut self,
        frame: &Frame<'_>,
        site: &Site,
        service: &Service,
        steering: &mut Steering,
        asked: JobGres<'_>,
    ) -> Option<c_int> {
        let job = frame.job;
        let count = asked.per_node();
        let other_forms = asked.per_job() | asked.per_task() | asked.per_socket();
        if count == 0 || other_forms != 0 {
            return None;
        }
        let said = job.has_spank_env().then(|| request::options_of(job));
        if said.as_ref().is_some_and(|said| said.off) {
            return None;
        }
        // What is parked lies in host memory: nodes that are short of it come last.
        let parks = said.is_some_and(|said| said.needs_host_memory());
        let short = |index: usize| parks && service.is_short(index);
        self.find(frame, service, asked, (count, &short));
        let needs = Needs {
            nodes: request::counts(frame.call.counts, job).wanted as usize,
            named: job.required_nodes().map_or(0, |named| named.count()),
        };
        let most = usize::from(site.settings.config.slurm.attempts);
        let attempts = self.candidates.attempts(needs, most)?;
        steering.begin(frame, None);
        for nth in 0..attempts.count {
            self.chosen.clear();
            let offered = self.candidates.offered(attempts, nth);
            self.chosen
                .extend(offered.map(|(node, gpu)| (node, gpu.alone().0)));
            let code = steering.attempt_slices(frame, site.gpu.id, &self.chosen);
            if code == 0 && !steering.takes_back_later(frame, site.release) {
                return Some(0);
            }
        }
        None
    }

    /// Whether requests for shards fit the layout table. Where one does not, the next is looked at.
    pub fn trusts(
        &mut self,
        site: &Site,
        trust: &LayoutTrust,
        job: Job<'_>,
    ) -> Result<bool, Misfit> {
        if !self.fits && trust.may_recheck_job(job) {
            trust::check_gres(site, job, self.gres)?;
            self.fits = true;
        }
        Ok(self.fits)
    }

    /// Finds the candidates with a GPU that has so many shards left, the best first.
    fn find(
        &mut self,
        frame: &Frame<'_>,
        service: &Service,
        asked: JobGres<'_>,
        (count, short): (u64, &dyn Fn(usize) -> bool),
    ) {
        let source = &frame.source;
        let named = frame.job.required_nodes();
        self.candidates.clear();
        for index in frame.indices() {
            let found = source.node(index).and_then(|node| {
                let shards = source.gres(node, self.gres.id)?;
                Some((node, shards, source.gpus(node)?))
            });
            let Some((node, shards, gpus)) = found else {
                continue;
            };
            let (_, degraded) = service.of(index);
            let part = best(shards, gpus, asked.type_name(), count, degraded);
            let Some(part) = part else { continue };
            self.candidates.push(Candidate {
                node: index,
                named: named.is_some_and(|named| named.test(index)),
                weight: frame.weight(node),
                short: short(index),
                part,
            });
        }
        self.candidates.rank();
    }
}

/// The best GPU of a node for so many shards. GPUs that are out of service count as given for the length of the call.
fn best(
    shards: NodeGres<'_>,
    gpus: NodeGres<'_>,
    kind: Option<&str>,
    count: u64,
    degraded: GpuSet,
) -> Option<Part> {
    let (given, shared) = (gpus.bits()?, shards.bits()?);
    let state = NodeState {
        devices: given.len(),
        shard_devices: shared.len(),
        allocated: given.chunk(0),
        shared: shared.chunk(0),
        degraded,
    };
    let entry = |at: usize| {
        let gpus = shards.topology_bits(at)?.chunk(0);
        let (all, used) = shards.topology_counts(at)?;
        Some(Entry {
            gpus,
            all,
            used,
            is_type: kind.is_none_or(|kind| shards.topology_type(at) == Some(kind)),
        })
    };
    state.best((0..shards.topologies()).filter_map(entry), count)
}
