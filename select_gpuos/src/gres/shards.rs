//! Jobs that ask for a part of a GPU (GRES `shard`), beside others.
//!
//! cons_tres gives such a job shards of one GPU of each node, of none that somebody has as a whole, and
//! nobody a whole GPU of which a shard is in use. But it takes the GPU with most shards left, so that a few
//! small jobs leave no GPU whole. So it is offered one GPU of each node only: one that is shared already,
//! with the least left that is enough, and an idle one where there is none.

use std::ffi::c_int;

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
    candidates: Vec<Candidate>,
    chosen: Vec<(usize, u64)>,
    /// Room for what a call marks: one mark for each node.
    room: Masks,
    /// Whether the call at hand looked for shared GPUs.
    pub looked: bool,
}

/// A node with a GPU that has enough shards left.
#[derive(Clone, Copy)]
struct Candidate {
    node: usize,
    /// Whether the job does not name the node: those that it names come first.
    unnamed: bool,
    weight: u64,
    part: Part,
}

/// A GPU with shards, in the order of preference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    /// It is worn, and to be given last.
    degraded: bool,
    /// Nobody shares it yet.
    idle: bool,
    /// Of one that is shared, the shards that are left before this job; of an idle one, how many GPUs of the node
    /// are idle, so that whole nodes stay whole.
    left: u64,
    gpu: usize,
}

impl Shards {
    /// Nothing is known yet.
    pub fn new(api: &Api) -> Shards {
        Shards {
            gres: Gres::shards(api),
            any: None,
            fits: false,
            candidates: Vec::new(),
            chosen: Vec::new(),
            room: Masks::default(),
            looked: false,
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
    pub fn look(&mut self, source: &Source<'_>, release: Release) {
        if self.any.is_none() {
            self.look_for_shards(source, release);
        }
    }

    /// Whether any node has shards.
    pub fn has_any(&self) -> bool {
        self.any == Some(true)
    }

    #[cold]
    #[inline(never)]
    fn look_for_shards(&mut self, source: &Source<'_>, release: Release) {
        let has = |index: usize| {
            let shards = source.gres_of(index, self.gres.id);
            shards.is_some_and(|shards| shards.available() > 0)
        };
        let any = (0..source.nodes()).any(has);
        self.any = Some(any);
        if any && release < KEEPS_MARKS_FROM {
            self.room.reserve(source.nodes());
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
        if std::mem::take(&mut self.looked) {
            let shared = &frame.call.shared;
            shared.give_back();
            shared.exchange_room(&self.room);
        }
    }

    #[inline(never)]
    fn show_on_candidates(&mut self, frame: &Frame<'_>) {
        if frame.job.gres_list().is_null() {
            return;
        }
        let (call, source) = (frame.call, &frame.source);
        self.looked = true;
        call.shared.exchange_room(&self.room);
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
        if count == 0 || other_forms != 0 || (job.has_spank_env() && request::said(job).off) {
            return None;
        }
        self.find(frame, service, asked, count);
        let counts = request::counts(frame.call.counts, job);
        let (all, wanted) = (self.candidates.len(), counts.wanted as usize);
        let named = self.candidates.iter().filter(|one| !one.unnamed).count();
        let lacks_named = job
            .required_nodes()
            .is_some_and(|required| required.count() != named);
        if all < wanted || named > wanted || lacks_named {
            return None;
        }
        steering.begin(frame, None);
        let others = wanted - named;
        let last = all - wanted;
        let most = match others {
            0 => 0,
            _ => last.min(usize::from(site.settings.config.slurm.attempts)),
        };
        for tried in 0..=most {
            let from = named + tried;
            let picked = self.candidates[..named]
                .iter()
                .chain(&self.candidates[from..from + others]);
            self.chosen.clear();
            self.chosen
                .extend(picked.map(|one| (one.node, 1 << one.part.gpu)));
            if steering.attempt_slices(frame, site.gpu.id, &self.chosen) == 0 {
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
        if !self.fits && trust.may_look_at(job) {
            trust::look_at_gres(site, job, self.gres)?;
            self.fits = true;
        }
        Ok(self.fits)
    }

    /// Finds the candidates with a GPU that has so many shards left, the best first.
    fn find(&mut self, frame: &Frame<'_>, service: &Service, asked: JobGres<'_>, count: u64) {
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
            let part = best(shards, gpus, asked.type_name(), count, degraded.0);
            let Some(part) = part else { continue };
            self.candidates.push(Candidate {
                node: index,
                unnamed: !named.is_some_and(|named| named.test(index)),
                weight: node.weight(),
                part,
            });
        }
        self.candidates.sort_unstable_by_key(|one| {
            let Candidate { node, part, .. } = *one;
            (one.unnamed, one.weight, part, node)
        });
    }
}

/// The best GPU of a node for so many shards. GPUs that are out of service count as given for the length of the call.
fn best(
    shards: NodeGres<'_>,
    gpus: NodeGres<'_>,
    kind: Option<&str>,
    count: u64,
    degraded: u64,
) -> Option<Part> {
    let given = gpus.bits()?;
    let shared = shards.bits()?;
    // Masks reach the first word of a bitmap.
    if given.len() > u64::BITS as usize || shared.len() != given.len() {
        return None;
    }
    let (given, shared) = (given.chunk(0), shared.chunk(0));
    let idle = u64::from(gpus.bits()?.len() as u32) - u64::from((given | shared).count_ones());
    let entry = |at: usize| {
        let gpu = shards.topology_bits(at)?.chunk(0);
        let (had, used) = shards.topology_counts(at)?;
        let left = had.saturating_sub(used);
        let fits = kind.is_none_or(|kind| shards.topology_type(at) == Some(kind));
        let usable = gpu.count_ones() == 1 && gpu & given == 0 && left >= count && fits;
        usable.then(|| Part {
            degraded: gpu & degraded != 0,
            idle: used == 0,
            left: if used == 0 { idle } else { left },
            gpu: gpu.trailing_zeros() as usize,
        })
    };
    (0..shards.topologies()).filter_map(entry).min()
}
