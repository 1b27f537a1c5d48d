//! MIG-switchable GPUs: each stands in GRES `gpu` and in GRES `gpuos`, and is given in one of them at a time.
//!
//! What that means for the job of a call is decided in [`gpuos_placement::switching`]. Here Slurm's records are read into that, and what
//! counts as given is marked until the call ends: for cons_tres too, whoever decides the call. Where a node does not show
//! which of its GPUs are whose, it is no candidate. How a GPU served last is remembered here and lost with slurmctld.

use gpuos_model::gpu_index::PoolGpu;
use gpuos_placement::switching::{Asks, GpuMode, GresState, Job, Marks, Node, NodeState, Reading};
use slurm_ffi::api::Api;
use slurm_ffi::check::Gres;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::handles;
use slurm_ffi::log;
use slurm_ffi::release::Release;

use crate::abi::call::Call;
use crate::abi::clock;
use crate::abi::frame::Frame;
use crate::abi::masks::Masks;
use crate::abi::source::Source;
use crate::gres::registration;
use crate::messages;
use crate::read::backfill::Twofold;
use crate::read::ledger::{Holding, Ledger};
use crate::read::prefetch::Prefetch;
use crate::read::service::Service;
use crate::read::settings::Settings;
use crate::read::site::Site;
use crate::read::trust::Selections;

/// Slurm's numbers of the GRES beside `gpu` that such GPUs are in.
#[derive(Clone, Copy, Default)]
struct Ids {
    slices: u32,
    shards: u32,
    mps: u32,
}

/// What is kept of MIG-switchable GPUs from call to call.
#[derive(Default)]
pub struct Switchable {
    /// Whether gpuos.toml names any, or nobody knows. The one test that others pay for.
    pub on: bool,
    /// The same before any node was looked at.
    may_be: bool,
    /// Nobody knows: gpuos.toml is not there or was broken when slurmctld started.
    blind: bool,
    gres: Ids,
    /// Whether GPUs count as given that are not.
    marked: bool,
    pub twofold: Twofold,
    /// Seconds that a job has to wait, and that a GPU has to have been of its mode, before it is switched.
    pub after: i64,
    pub hold: i64,
    /// `None` until they are needed.
    nodes: Option<Vec<Node>>,
    /// What they were, for how their GPUs served.
    before: Vec<Node>,
    /// Whether the call at hand is about a job that such a GPU could be given to.
    pub applies: bool,
    /// What that job asks for.
    pub asks: Asks,
    /// The marks of that call.
    pub marks: Marks,
    /// Its candidates.
    pub offers: Offers,
    /// Room for what it marks in Slurm's records.
    mask_buffer: Masks,
}

/// Candidates of one call.
#[derive(Default)]
pub struct Offers {
    /// Nodes that are none because what they show of their GPUs is not understood.
    pub unknown: Vec<usize>,
    /// Those without them, as words of a bitmap.
    pub all: Vec<u64>,
    /// The nodes of the soonest start of the forecasts so far.
    pub soonest: Vec<u64>,
}

/// A node that has both GRES.
struct Both<'a> {
    gpus: NodeGres<'a>,
    slices: NodeGres<'a>,
    state: NodeState,
}

impl<'a> Both<'a> {
    /// What a node shows; `None`: it lacks one of the two GRES, and nothing can be given twice.
    fn read(source: &Source<'a>, release: Release, ids: Ids, index: usize) -> Option<Both<'a>> {
        let node = source.node(index)?;
        let (gpus, slices) = (source.gpus(node)?, source.gres(node, ids.slices)?);
        let shards = source.shards(node).map_or(0, NodeGres::allocated_devices);
        let mps = source.gres(node, ids.mps);
        let mps = mps.map_or(0, |mps| mps.allocated_devices() | mps.in_use());
        let [gpu_state, slice_state] = [gpus, slices].map(|gres| gres_state(release, node, gres));
        let state = NodeState {
            gpus: gpu_state,
            slices: slice_state,
            shared: shards | mps,
            power_saved: node.power_saved(),
            ..NodeState::default()
        };
        Some(Both {
            gpus,
            slices,
            state,
        })
    }

    /// The GRES of a mode.
    fn of(&self, mode: GpuMode) -> NodeGres<'a> {
        match mode {
            GpuMode::Whole => self.gpus,
            GpuMode::Slices => self.slices,
        }
    }
}

fn gres_state(release: Release, node: handles::Node<'_>, gres: NodeGres<'_>) -> GresState {
    GresState {
        devices: gres.devices(),
        allocated_bits: gres.allocated_devices(),
        allocated: gres.allocated(),
        has_topology: gres.topologies() > 0,
        provisional: gres.is_provisional(),
        loses: registration::loses(release, node, gres),
    }
}

#[cold]
fn log_unknown(node: &Node) {
    let said = match node.gpus.is_empty() {
        true => messages::divided_is_unknown(&node.name),
        false => messages::not_switched(&node.name, node.slices),
    };
    log::error(&said);
}

impl Switchable {
    /// Nothing is known yet but what gpuos.toml says.
    pub fn new(api: &Api, settings: &Settings) -> Switchable {
        let mut switchable = Switchable {
            gres: Ids {
                slices: Gres::slices(api).id,
                shards: Gres::shards(api).id,
                mps: Gres::mps(api).id,
            },
            ..Switchable::default()
        };
        switchable.reload(settings);
        switchable
    }

    /// gpuos.toml was read again.
    pub fn reload(&mut self, settings: &Settings) {
        let mig = &settings.config.mig;
        self.blind = !settings.knows_pools();
        self.may_be = self.blind || mig.pools.iter().any(|pool| !pool.switchable.is_empty());
        (self.after, self.hold) = (mig.switch_after.into(), mig.switch_hold.into());
        self.clear();
    }

    /// Slurm's number of the GRES of slices.
    pub fn slices(&self) -> u32 {
        self.gres.slices
    }

    /// Slurm's number of the GRES of shards.
    pub fn shards(&self) -> u32 {
        self.gres.shards
    }

    /// Forgets the nodes, their table is made anew; not how their GPUs served.
    pub fn clear(&mut self) {
        self.on = self.may_be;
        if let Some(nodes) = self.nodes.take() {
            self.before = nodes;
        }
    }

    /// The nodes with such GPUs, to be put back; made where they are not known yet.
    fn take_nodes(&mut self, site: &Site, source: &Source<'_>) -> Option<Vec<Node>> {
        if self.nodes.is_none() {
            self.make_nodes(site, source);
        }
        self.nodes.take().filter(|nodes| {
            let any = !nodes.is_empty();
            if !any {
                self.nodes = Some(Vec::new());
            }
            any
        })
    }

    #[cold]
    #[inline(never)]
    fn make_nodes(&mut self, site: &Site, source: &Source<'_>) {
        let mut nodes = Vec::new();
        for index in 0..source.nodes() {
            let Some(node) = source.node(index) else {
                continue;
            };
            if !self.blind {
                nodes.extend(self.make_node(site, index, node.name()));
                continue;
            }
            let both = (source.gpus(node), source.gres(node, self.gres.slices));
            if let (Some(_), Some(_)) = both {
                nodes.push(Node::new(index, node.name(), 0));
            }
        }
        let gpus: usize = nodes.iter().map(|own| own.gpus.len()).sum();
        self.mask_buffer.reserve(2 * gpus);
        self.marks.reserve(gpus);
        self.on = !nodes.is_empty();
        self.nodes = Some(nodes);
    }

    /// A node with the MIG-switchable GPUs that gpuos.toml names there, if it names any.
    fn make_node(&self, site: &Site, index: usize, name: &str) -> Option<Node> {
        let (pool, board) = site.settings.config.mig.pool_of(name)?;
        let mut own = Node::new(index, name, pool.slices(board));
        for (nth, nvml) in pool.gpus.iter().enumerate() {
            if let (Some(gres), Some(nth)) = (pool.whole(nvml), PoolGpu::new(nth)) {
                own.add(nvml, gres, nth, board.geometry.slices(), &self.before);
            }
        }
        (!own.gpus.is_empty()).then_some(own)
    }

    /// Remembers what the GPUs of these nodes serve.
    #[inline(never)]
    pub fn note(&mut self, site: &Site, source: &Source<'_>, held: &[Holding]) {
        // In the middle of a call they show marks as well.
        if self.marked {
            return;
        }
        let Some(mut nodes) = self.take_nodes(site, source) else {
            return;
        };
        let now = clock::now();
        for own in &mut nodes {
            if own.index >= source.nodes() || !held.iter().any(|one| one.node as usize == own.index)
            {
                continue;
            }
            if let Some(both) = Both::read(source, site.release, self.gres, own.index)
                && let Reading::Known(given) = own.read(&both.state)
            {
                own.learn(given, now);
            }
        }
        self.nodes = Some(nodes);
    }

    /// Ends what [`Switching::switch`] began.
    pub fn switch_back(&mut self, call: &Call) {
        call.other_mode.revert_all();
        (self.applies, self.marked) = (false, false);
        call.other_mode.swap_buffers(&self.mask_buffer);
        self.marks.clear();
        self.offers.unknown.clear();
    }
}

/// The phase of a call that sees to MIG-switchable GPUs.
pub struct Switching<'e, 'a> {
    /// The call.
    pub frame: &'e Frame<'a>,
    /// This slurmctld.
    pub site: &'e Site,
    /// The MIG-switchable GPUs.
    pub switchable: &'e mut Switchable,
    /// What is out of service.
    pub service: &'e mut Service,
    /// Where nodes stood.
    pub prefetch: &'e mut Prefetch,
    /// What running jobs hold.
    pub ledger: &'e Ledger,
    /// What of running jobs may be read.
    pub selections: Selections,
}

impl Switching<'_, '_> {
    /// Has such GPUs count as given where they are in the other GRES. A job that takes whole nodes finds them
    /// without anybody, and takes both.
    pub fn switch(&mut self) {
        self.mark();
        // A GPU of the other mode that is idle costs nobody his job.
        if self.frame.is_start() && self.switchable.marks.has_idle() {
            self.frame.call.spare();
        }
    }

    fn mark(&mut self) {
        let Frame {
            call,
            source,
            job,
            candidates,
            ..
        } = *self.frame;
        if job.gres_list().is_null() || job.takes_whole_nodes() {
            return;
        }
        let Some(mut nodes) = self.switchable.take_nodes(self.site, &source) else {
            return;
        };
        self.switchable.applies = true;
        call.other_mode.swap_buffers(&self.switchable.mask_buffer);
        let serves =
            self.service.serves(self.site) && (self.service).refresh(self.frame, self.prefetch);
        self.switchable.marked = true;
        let job = self.job();
        self.switchable.asks = job.asks;
        for own in &mut nodes {
            if own.index < source.nodes() && candidates.test(own.index) {
                self.mark_node(own, &job, serves);
            }
        }
        candidates.save(&mut self.switchable.offers.all);
        self.switchable.nodes = Some(nodes);
        slurm_ffi::guard::inject("job_test.switched");
    }

    /// The job of this call.
    fn job(&self) -> Job {
        let Frame {
            source, job, now, ..
        } = self.frame;
        let ids = self.switchable.gres;
        let asks = |gres: u32| source.asked(*job, gres).next().is_some();
        let since = match job.eligible_time() {
            0 => *now,
            since => since,
        };
        Job {
            asks: Asks {
                whole: source.wants_gpus(*job) || [ids.shards, ids.mps].into_iter().any(asks),
                slices: asks(ids.slices),
            },
            spares_idle: self.site.steers(),
            patient_from: since.saturating_add(self.switchable.after),
            hold: self.switchable.hold,
            is_forecast: self.frame.is_forecast(),
            now: *now,
        }
    }

    /// Has GPUs of a candidate count as given, or keeps it out.
    fn mark_node(&mut self, own: &mut Node, job: &Job, serves: bool) {
        let (call, source) = (self.frame.call, &self.frame.source);
        let (release, switchable) = (self.site.release, &mut *self.switchable);
        let Some(mut both) = Both::read(source, release, switchable.gres, own.index) else {
            return;
        };
        if serves {
            both.state.out = self.service.of(own.index).0;
        }
        match own.read(&both.state) {
            Reading::Unknown { for_nobody, passes } => {
                if !passes && !std::mem::replace(&mut own.logged, true) {
                    log_unknown(own);
                }
                if for_nobody || job.asks.slices {
                    self.frame.candidates.set_bit(own.index, false);
                    switchable.offers.unknown.push(own.index);
                }
            }
            Reading::Known(given) => {
                let marks = &mut switchable.marks;
                let before = marks.all().len();
                own.mark(given, both.state.out, job, marks);
                marks.carry_out(before, |mark| {
                    let gres = both.of(mark.mode);
                    call.other_mode.allocate(source.layout, gres, mark.bits)
                });
            }
        }
    }
}
