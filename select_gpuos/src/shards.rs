//! Jobs that ask for a part of a GPU (GRES `shard`), beside others.
//!
//! cons_tres gives such a job shards of one GPU of each node, of none that somebody has as a whole, and
//! nobody a whole GPU of which a shard is in use. But it takes the GPU with most shards left, so that a few
//! small jobs leave no GPU whole. So it is offered one GPU of each node only: one that is shared already,
//! with the least left that is enough, and an idle one where there is none.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use slurm_ffi::api::Api;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::check::{self, Gres};
use slurm_ffi::gres::{JobGres, NodeGres};
use slurm_ffi::handles::{Job, Node};
use slurm_ffi::layout::GresNode;
use slurm_ffi::release::Release;

use crate::call::Call;
use crate::decide::said;
use crate::engine::Engine;
use crate::note::Decision;
use crate::request;
use crate::trust::Trust;

/// From this release on Slurm keeps the mark of a shared GPU until the last of its jobs has ended.
const KEEPS_MARKS_FROM: Release = Release::new(23, 11, 5);

/// What is kept of shards from call to call.
pub struct Shards {
    gres: Gres,
    /// Whether a node has any; `None`: nobody has looked yet.
    any: Option<bool>,
    /// Whether requests for them fit the layout table, once one was held against it.
    fits: bool,
    rooms: Vec<Room>,
    chosen: Vec<(usize, usize, u64)>,
    /// Room for what a call marks: there is one element for each node.
    marked: Vec<(usize, u64)>,
}

/// A node with a GPU that has enough shards left.
#[derive(Clone, Copy)]
struct Room {
    node: usize,
    /// Address of the node's GRES state of whole GPUs. Valid for this call only.
    gpus: usize,
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

/// Shared GPUs that are marked as in use for the length of a call, because Slurm had lost the mark; also while a panic
/// unwinds.
#[derive(Default)]
pub struct Shown {
    /// Addresses of Slurm's GRES states, with what was marked in each, and the layout of these.
    marked: RefCell<Vec<(usize, u64)>>,
    layout: RefCell<Option<&'static GresNode>>,
}

impl Shown {
    /// Whether a call looked for such GPUs.
    pub fn looked(&self) -> bool {
        self.layout.borrow().is_some()
    }

    /// Takes the marks back; the room for those of the next call.
    fn hide(&self) -> Vec<(usize, u64)> {
        let mut all = self.marked.take();
        let Some(layout) = self.layout.take() else {
            return all;
        };
        for (address, marked) in all.drain(..) {
            // SAFETY: the address was a live GRES state when it was marked in this call, and slurmctld's node
            // write lock is held until the call has ended.
            if let Some(gres) = unsafe { NodeGres::new(address as *mut c_void, layout) } {
                gres.hide_in_use(marked);
            }
        }
        all
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.hide();
    }
}

impl Shards {
    /// Nothing is known yet.
    pub fn new(api: &Api) -> Shards {
        Shards {
            gres: Gres::shards(api),
            any: None,
            fits: false,
            rooms: Vec::new(),
            chosen: Vec::new(),
            marked: Vec::new(),
        }
    }

    /// Forgets the nodes: their table is made anew.
    pub fn clear(&mut self) {
        self.any = None;
    }

    /// Slurm's number of the GRES.
    pub fn gres_id(&self) -> u32 {
        self.gres.id
    }

    /// Slurm's number of the GRES, unless no node has any.
    pub fn id(&self) -> Option<u32> {
        (self.any == Some(true)).then_some(self.gres.id)
    }
}

impl Engine {
    /// Whether any node has shards. Called from job_test.
    #[inline]
    pub(crate) fn has_shards(&mut self) -> bool {
        match self.shards.any {
            Some(any) => any,
            None => self.look_for_shards(),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_for_shards(&mut self) -> bool {
        let source = self.source();
        let has = |index: usize| {
            // SAFETY: called from job_test, under slurmctld's node write lock; the slot holds null or a live record.
            let shards = unsafe {
                let node = Node::new(source.table.raw(index), source.layout);
                node.and_then(|node| source.gres(node, self.shards.gres.id))
            };
            shards.is_some_and(|shards| shards.available() > 0)
        };
        let any = (0..source.table.len()).any(has);
        self.shards.any = Some(any);
        if any && self.release < KEEPS_MARKS_FROM {
            self.shards.marked.reserve(source.table.len());
        }
        any
    }

    /// Has cons_tres see all GPUs of which shards are in use: before 23.11.5 it gives one as a whole once
    /// the first of the jobs that share it has ended. Also where gpuos does not steer.
    pub(crate) fn show_shared(&mut self, call: &Call) {
        if self.has_shards() && self.release < KEEPS_MARKS_FROM {
            self.show_on_candidates(call);
        }
    }

    /// Takes back what [`Engine::show_shared`] marked, at the end of its call.
    #[inline(never)]
    pub(crate) fn hide_shared(&mut self, call: &Call) {
        self.shards.marked = call.shown.hide();
    }

    #[inline(never)]
    fn show_on_candidates(&mut self, call: &Call) {
        // SAFETY: the job record and bitmap of this call, locked by slurmctld for its length, of the
        // release whose layout the self-check accepted.
        let both = unsafe { (Job::new(call.job, self.layout), Bitmap::new(call.nodes)) };
        let (Some(job), Some(nodes)) = both else {
            return;
        };
        if job.gres_list().is_null() {
            return;
        }
        let source = self.source();
        let shown = &call.shown;
        shown.layout.replace(Some(&self.layout.gres_node));
        shown
            .marked
            .replace(std::mem::take(&mut self.shards.marked));
        for index in nodes.iter().take_while(|at| *at < source.table.len()) {
            // SAFETY: called from job_test, under slurmctld's node write lock; the slot holds null or a live record.
            let shards = unsafe {
                let node = Node::new(source.table.raw(index), source.layout);
                node.and_then(|node| source.gres(node, self.shards.gres.id))
            };
            let Some(shards) = shards else { continue };
            let marked = shards.show_in_use();
            if marked != 0 {
                let address = shards.raw() as usize;
                shown.marked.borrow_mut().push((address, marked));
            }
        }
    }

    /// What a job asks for of shards, where it names one type of them or none.
    pub(crate) fn shards_asked<'a>(&self, job: Job<'a>) -> Option<JobGres<'a>> {
        self.asked_once(job, self.shards.gres.id)
    }

    /// Decides a call about a job with shards; `None` hands it on as it came.
    #[inline(never)]
    pub(crate) fn place_shards(
        &mut self,
        call: &Call,
        job: Job<'_>,
        nodes: Bitmap<'_>,
        asked: JobGres<'_>,
    ) -> Option<c_int> {
        self.pending = None;
        self.decided(call, Decision::Stock);
        if !self.settings.config.slurm.steer || job.whole_nodes() || !self.trusts_shards(job) {
            return None;
        }
        let count = asked.per_node();
        let other_forms = asked.per_job() | asked.per_task() | asked.per_socket();
        if count == 0 || other_forms != 0 || (job.has_spank_env() && said(job).off) {
            return None;
        }
        self.find_shards(nodes, job, asked, count);
        let counts = request::counts(call.counts, job);
        let rooms = &self.shards.rooms;
        let (all, wanted) = (rooms.len(), counts.wanted as usize);
        let named = rooms.iter().filter(|room| !room.unnamed).count();
        let lacks_named = job
            .required_nodes()
            .is_some_and(|required| required.count() != named);
        if all < wanted || named > wanted || lacks_named {
            return None;
        }
        self.steering.begin(nodes, None);
        let others = wanted - named;
        let last = all - wanted;
        let most = match others {
            0 => 0,
            _ => last.min(usize::from(self.settings.config.slurm.attempts)),
        };
        for tried in 0..=most {
            let (shards, steering) = (&mut self.shards, &mut self.steering);
            let from = named + tried;
            let picked = shards.rooms[..named]
                .iter()
                .chain(&shards.rooms[from..from + others]);
            shards.chosen.clear();
            shards
                .chosen
                .extend(picked.map(|room| (room.node, room.gpus, 1 << room.part.gpu)));
            if steering.attempt_slices(call, nodes, self.layout, &shards.chosen) == 0 {
                return Some(0);
            }
        }
        None
    }

    /// Whether requests for shards fit the layout table. Where one does not, the next is looked at.
    fn trusts_shards(&mut self, job: Job<'_>) -> bool {
        if !self.shards.fits && self.may_look_at(job) {
            let (api, layout, strings) = (self.api, self.layout, &self.strings);
            let checked = check::job(api, layout, strings, job.raw(), self.shards.gres);
            self.shards.fits = checked.is_ok();
            if checked.is_err() {
                self.settle(job.raw(), checked, Trust::Refused);
            }
        }
        self.shards.fits
    }

    /// Finds the candidates with a GPU that has so many shards left, the best first.
    fn find_shards(&mut self, nodes: Bitmap<'_>, job: Job<'_>, asked: JobGres<'_>, count: u64) {
        let source = self.source();
        let named = job.required_nodes();
        self.shards.rooms.clear();
        for index in nodes.iter().take_while(|at| *at < source.table.len()) {
            // SAFETY: called from job_test, under slurmctld's node write lock; the slot holds null or a live record.
            let found = unsafe {
                let node = Node::new(source.table.raw(index), source.layout);
                node.and_then(|node| {
                    let shards = source.gres(node, self.shards.gres.id)?;
                    Some((node, shards, source.gpus(node)?))
                })
            };
            let Some((node, shards, gpus)) = found else {
                continue;
            };
            let (_, degraded) = self.service.of(index);
            let part = best(shards, gpus, asked.type_name(), count, degraded.0);
            let Some(part) = part else { continue };
            self.shards.rooms.push(Room {
                node: index,
                gpus: gpus.raw() as usize,
                unnamed: !named.is_some_and(|named| named.test(index)),
                weight: node.weight(),
                part,
            });
        }
        self.shards.rooms.sort_unstable_by_key(|room| {
            let Room { node, part, .. } = *room;
            (room.unnamed, room.weight, part, node)
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
