//! GPUs that move between GRES `gpu` and GRES `gpuos`: each stands in both, and is given in one at a time.
//!
//! At the beginning of a call a GPU of which anybody has a slice counts as given whole, and one that somebody has
//! whole counts as given slice by slice, until the call ends: for cons_tres too, whoever decides the call. Where a node
//! does not show which are whose, it is no candidate. Besides, as advice, an idle GPU of the other kind of job counts
//! as given until it is offered ([`crate::gres::moving_later`]). Which kind it served last is remembered here and lost
//! with slurmctld.

use gpuos_model::gpuset::MAX_GPUS;
use slurm_ffi::api::Api;
use slurm_ffi::check::Gres;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::log;
use slurm_ffi::release::Release;

use crate::abi::call::Call;
use crate::abi::clock;
use crate::abi::frame::Frame;
use crate::abi::masks::Masks;
use crate::abi::source::Source;
use crate::gres::registration;
use crate::read::backfill::Twofold;
use crate::read::ledger::{Holding, Ledger};
use crate::read::prefetch::Prefetch;
use crate::read::service::Service;
use crate::read::settings::Settings;
use crate::read::site::Site;
use crate::read::trust::Selections;

/// The two kinds of job that a GPU serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// They have it whole, or a shard of it.
    Whole,
    /// They have slices of it.
    Slices,
}

/// A GPU that moves.
#[derive(Clone, Copy)]
struct Gpu {
    /// NVML's index.
    nvml: usize,
    /// Its bit in GRES `gpu`.
    whole: u64,
    /// Its bits in GRES `gpuos`.
    slices: u64,
    /// The kind of job that it served last, and since when; 0 = since slurmctld started.
    kind: Kind,
    since: i64,
}

/// A node with such GPUs.
struct MovingNode {
    node: usize,
    name: String,
    /// How many slices GRES `gpuos` has to have there.
    slices: usize,
    /// None: nobody knows which move.
    gpus: Vec<Gpu>,
    /// Whether the log says that its GPUs cannot move.
    said: bool,
}

/// Slurm's numbers of the GRES beside `gpu` that such GPUs are in.
#[derive(Clone, Copy, Default)]
struct Ids {
    slices: u32,
    shards: u32,
    mps: u32,
}

/// What is kept of GPUs that move from call to call.
#[derive(Default)]
pub struct Moving {
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
    /// Seconds that a job has to wait, and that a GPU has to have been of its kind, before it moves.
    pub after: i64,
    pub hold: i64,
    /// `None` until they are needed.
    nodes: Option<Vec<MovingNode>>,
    /// What they were, for what their GPUs served.
    before: Vec<MovingNode>,
    /// Whether the call at hand is about a job that a GPU that moves could be given to.
    pub looked: bool,
    /// What that job asks for.
    pub asks: Option<Kind>,
    /// The marks of that call, and room for those of the next one.
    pub state: SwitchState,
}

/// Why a GPU counts as given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It is, to a job of the other kind.
    Given,
    /// It is idle and of the other kind, and may be offered from this time on.
    Other(i64),
    /// The job takes slices too, which might be those of this GPU, or the GPU is out of service.
    Never,
}

/// Bits of one GPU in one GRES that count as given.
#[derive(Clone, Copy)]
pub struct Mark {
    pub node: usize,
    /// Its number in [`Call::other_mode`](crate::abi::call::Call).
    number: usize,
    bits: u64,
    pub why: Why,
    /// When the jobs end that have it, where it is given and that was looked for; else 0.
    pub end: i64,
    /// The GPU by NVML's index.
    pub nvml: usize,
    /// Whose bits they are that keep the GPU from the job, and these, in the other GRES.
    pub holder: Kind,
    pub held: u64,
}

impl Mark {
    /// When the job of the call can have the GPU, as far as that is known.
    pub fn moment(&self) -> Option<i64> {
        match self.why {
            Why::Given => (self.end != 0).then_some(self.end),
            Why::Other(at) => Some(at),
            Why::Never => None,
        }
    }

    /// How many GPUs or slices it marks.
    pub fn count(&self) -> u32 {
        self.bits.count_ones()
    }
}

/// One call's marks, those that were taken back, and its candidates.
#[derive(Default)]
pub struct SwitchState {
    /// SwitchState for the marks themselves.
    masks: Masks,
    pub marks: Vec<Mark>,
    pub lifted: Vec<Mark>,
    /// Nodes that are no candidates because what they show of their GPUs is not understood.
    pub unknown: Vec<usize>,
    /// The candidates without them, as words of a bitmap.
    pub offered: Vec<u64>,
    /// The soonest start of the forecasts so far, and its nodes.
    pub start: Option<i64>,
    pub best: Vec<u64>,
}

impl SwitchState {
    /// Whether idle GPUs of the other kind are marked.
    pub fn marks_idle(&self) -> bool {
        let mut marks = self.marks.iter();
        marks.any(|mark| matches!(mark.why, Why::Other(_)))
    }

    /// Takes back the marks of which `which` says so; whether there were any.
    pub fn lift(&mut self, masks: &Masks, which: impl Fn(&Mark) -> bool) -> bool {
        let SwitchState { marks, lifted, .. } = self;
        let before = lifted.len();
        marks.retain(|mark| {
            let lifts = which(mark);
            if lifts {
                masks.give_back_one(mark.number);
                lifted.push(*mark);
            }
            !lifts
        });
        lifted.len() > before
    }
}

/// What a node shows of its GPUs.
enum Seen<'a> {
    /// It lacks one of the two GRES: nothing can be given twice.
    One,
    /// Not what gpuos.toml says of it.
    Strange {
        /// It has not registered.
        provisional: bool,
        /// It comes right by itself.
        passes: bool,
        /// Slices of it are given.
        given: bool,
    },
    /// GRES `gpu` and GRES `gpuos`, and the bits of both that are given.
    Both(NodeGres<'a>, NodeGres<'a>, u64, u64),
}

impl MovingNode {
    fn look<'a>(&self, source: &Source<'a>, release: Release, ids: Ids) -> Seen<'a> {
        let Some(node) = source.node(self.node) else {
            return Seen::One;
        };
        let both = (source.gpus(node), source.gres(node, ids.slices));
        let (Some(gpus), Some(slices)) = both else {
            return Seen::One;
        };
        let last = self.gpus.iter().fold(1, |all, gpu| all | gpu.whole);
        let len = |gres: NodeGres<'_>| gres.bits().map_or(0, |bits| bits.len());
        let loses = [gpus, slices].map(|gres| registration::loses(release, node, gres));
        let given = |gres: NodeGres<'_>| gres.bits().map_or(0, |bits| bits.chunk(0));
        // 22.05: a job that began before the node registered has some, and nobody knows which.
        let nameless = [gpus, slices]
            .iter()
            .any(|gres| gres.allocated() > u64::from(given(*gres).count_ones()));
        let fits = len(slices) == self.slices
            && !self.gpus.is_empty()
            && !nameless
            && self.slices <= MAX_GPUS
            && slices.topologies() > 0
            && gpus.topologies() > 0
            && len(gpus) <= MAX_GPUS
            && len(gpus) > last.ilog2() as usize;
        if !fits || loses.contains(&true) {
            return Seen::Strange {
                provisional: (gpus.is_provisional() || slices.is_provisional())
                    && !node.power_saved(),
                passes: nameless || gpus.is_provisional() || slices.is_provisional(),
                given: slices.allocated() > 0,
            };
        }
        let shards = source.shards(node);
        let mps = source.gres(node, ids.mps);
        let shared = shards.map_or(0, given) | mps.map_or(0, |mps| given(mps) | mps.in_use());
        Seen::Both(gpus, slices, given(gpus) | shared, given(slices))
    }
}

impl MovingNode {
    #[cold]
    fn say_strange(&self) {
        if self.gpus.is_empty() {
            log::error(&format!(
                "{}: without a sound gpuos.toml nobody knows which of its GPUs are divided and which move. It gets no job \
                 with slices, and no job with GPUs while somebody has slices there, until there is one and slurmctld is \
                 reconfigured",
                self.name,
            ));
            return;
        }
        log::error(&format!(
            "{}: its GPUs do not move: Slurm has no GRES gpuos there with {} slices and no GRES gpu with all the GPUs that \
             move, both with Type= and File= in gres.conf and at most 64 of each. It gets no job with slices, and no job \
             with GPUs while somebody has slices there, until gres.conf and [[mig.pool]] in gpuos.toml say the same \
             (gpuos discover prints them)",
            self.name, self.slices,
        ));
    }
}

impl Gpu {
    /// The kind of job that has it, if anybody has.
    fn user(&self, whole: u64, slices: u64) -> Option<Kind> {
        if self.whole & whole != 0 {
            Some(Kind::Whole)
        } else if self.slices & slices != 0 {
            Some(Kind::Slices)
        } else {
            None
        }
    }

    fn learn(&mut self, user: Option<Kind>, now: i64) {
        if let Some(user) = user.filter(|user| *user != self.kind) {
            (self.kind, self.since) = (user, now);
        }
    }
}

impl Moving {
    /// Nothing is known yet but what gpuos.toml says.
    pub fn new(api: &Api, settings: &Settings) -> Moving {
        let mut moving = Moving {
            gres: Ids {
                slices: Gres::slices(api).id,
                shards: Gres::shards(api).id,
                mps: Gres::mps(api).id,
            },
            ..Moving::default()
        };
        moving.reload(settings);
        moving
    }

    /// gpuos.toml was read again.
    pub fn reload(&mut self, settings: &Settings) {
        let mig = &settings.config.mig;
        self.blind = !settings.knows_pools();
        self.may_be = self.blind || mig.pools.iter().any(|pool| !pool.moving.is_empty());
        (self.after, self.hold) = (mig.move_after.into(), mig.move_hold.into());
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

    /// Forgets the nodes, their table is made anew; not what their GPUs served.
    pub fn clear(&mut self) {
        self.on = self.may_be;
        if let Some(nodes) = self.nodes.take() {
            self.before = nodes;
        }
    }

    /// The kind of job that a GPU served last, and since when.
    fn served(&self, node: &str, nvml: usize) -> (Kind, i64) {
        let own = self.before.iter().find(|own| own.name == node);
        let gpu = own.and_then(|own| own.gpus.iter().find(|gpu| gpu.nvml == nvml));
        gpu.map_or((Kind::Whole, 0), |gpu| (gpu.kind, gpu.since))
    }
}

impl Moving {
    /// The nodes with GPUs that move, to be put back; made where they are not known yet.
    fn take_nodes(&mut self, site: &Site, source: &Source<'_>) -> Option<Vec<MovingNode>> {
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
        let mig = &site.settings.config.mig;
        let mut nodes = Vec::new();
        for index in 0..source.nodes() {
            let Some(node) = source.node(index) else {
                continue;
            };
            let name = node.name();
            if self.blind {
                let both = (source.gpus(node), source.gres(node, self.gres.slices));
                if let (Some(_), Some(_)) = both {
                    nodes.push(MovingNode {
                        node: index,
                        name: name.into(),
                        slices: 0,
                        gpus: Vec::new(),
                        said: false,
                    });
                }
                continue;
            }
            let Some((pool, board)) = mig.pool_of(name) else {
                continue;
            };
            let each = usize::from(board.geometry.slices());
            let gpus = pool.gpus.iter().enumerate().filter_map(|(nth, nvml)| {
                let whole = pool.whole(nvml).filter(|bit| *bit < MAX_GPUS)?;
                let first = (nth * each).min(MAX_GPUS) as u32;
                let slices = u64::MAX
                    .checked_shr(64 - each as u32)
                    .and_then(|bits| bits.checked_shl(first));
                let (kind, since) = self.served(name, nvml);
                Some(Gpu {
                    nvml,
                    whole: 1 << whole,
                    slices: slices.unwrap_or(0),
                    kind,
                    since,
                })
            });
            let own = MovingNode {
                node: index,
                name: name.into(),
                slices: pool.slices(board),
                gpus: gpus.collect(),
                said: false,
            };
            if !own.gpus.is_empty() {
                nodes.push(own);
            }
        }
        let gpus: usize = nodes.iter().map(|own| own.gpus.len()).sum();
        let state = &mut self.state;
        // A GPU has two marks at most.
        state.masks.reserve(2 * gpus);
        state.marks.reserve(2 * gpus);
        state.lifted.reserve(2 * gpus);
        self.on = !nodes.is_empty();
        self.nodes = Some(nodes);
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
            if own.node >= source.nodes() || !held.iter().any(|one| one.node as usize == own.node) {
                continue;
            }
            let seen = own.look(source, site.release, self.gres);
            if let Seen::Both(_, _, taken, cut) = seen {
                let gpus = own.gpus.iter_mut();
                gpus.for_each(|gpu| gpu.learn(gpu.user(taken, cut), now));
            }
        }
        self.nodes = Some(nodes);
    }

    /// Ends what [`Switching::switch`] began.
    pub fn switch_back(&mut self, call: &Call) {
        call.other_mode.give_back();
        (self.looked, self.marked) = (false, false);
        let state = &mut self.state;
        call.other_mode.exchange_room(&state.masks);
        state.marks.clear();
        state.lifted.clear();
        state.unknown.clear();
        state.start = None;
    }
}

/// The phase of a call that sees to GPUs that move.
pub struct Switching<'e, 'a> {
    /// The call.
    pub frame: &'e Frame<'a>,
    /// This slurmctld.
    pub site: &'e Site,
    /// The GPUs that move.
    pub moving: &'e mut Moving,
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
    /// Has GPUs that move count as given where they are in the other GRES. A job that takes whole nodes finds them
    /// without anybody, and takes both.
    pub fn switch(&mut self) {
        self.mark();
        // A GPU of the other kind that is idle costs nobody his job.
        if self.frame.is_start() && self.moving.state.marks_idle() {
            self.frame.call.spare();
        }
    }

    fn mark(&mut self) {
        let Frame {
            call,
            source,
            job,
            candidates,
            now,
            ..
        } = *self.frame;
        if job.gres_list().is_null() || job.takes_whole_nodes() {
            return;
        }
        let Some(mut nodes) = self.moving.take_nodes(self.site, &source) else {
            return;
        };
        self.moving.looked = true;
        call.other_mode.exchange_room(&self.moving.state.masks);
        let ids = self.moving.gres;
        let sliced = source.asked(job, ids.slices).next().is_some();
        let shared = [ids.shards, ids.mps];
        let whole = source.wants_gpus(job)
            || shared
                .iter()
                .any(|gres| source.asked(job, *gres).next().is_some());
        let serves = self.service.serves(self.site)
            && (self.service).looks_for_changes(self.frame, self.prefetch);
        self.moving.marked = true;
        self.moving.asks = match (whole, sliced) {
            (true, false) => Some(Kind::Whole),
            (false, true) => Some(Kind::Slices),
            _ => None,
        };
        let since = match job.eligible_time() {
            0 => now,
            since => since,
        };
        let until = since.saturating_add(self.moving.after);
        for own in &mut nodes {
            if own.node >= source.nodes() || !candidates.test(own.node) {
                continue;
            }
            match own.look(&source, self.site.release, ids) {
                Seen::One => {}
                Seen::Strange {
                    provisional,
                    passes,
                    given,
                } => {
                    if !passes && !std::mem::replace(&mut own.said, true) {
                        own.say_strange();
                    }
                    if provisional || given || sliced {
                        candidates.put(own.node, false);
                        self.moving.state.unknown.push(own.node);
                    }
                }
                Seen::Both(gpus, slices, taken, cut) => {
                    let out = match serves {
                        true => self.service.of(own.node).0.0,
                        false => 0,
                    };
                    for gpu in &mut own.gpus {
                        gpu.learn(gpu.user(taken, cut), now);
                        let at = until.max(gpu.since.saturating_add(self.moving.hold));
                        self.mark_gpu(
                            own.node,
                            (gpus, slices),
                            (taken, cut),
                            gpu,
                            (sliced, whole, gpu.whole & out != 0, at),
                        );
                    }
                }
            }
        }
        let state = &mut self.moving.state;
        candidates.save(&mut state.offered);
        if self.frame.is_forecast() {
            let due = |mark: &Mark| matches!(mark.why, Why::Other(at) if at <= now);
            state.lift(&call.other_mode, due);
            state.lifted.clear();
        }
        self.moving.nodes = Some(nodes);
        slurm_ffi::guard::inject("job_test.switched");
    }

    /// Marks one GPU for the job of this call.
    fn mark_gpu(
        &mut self,
        node: usize,
        (gpus, slices): (NodeGres<'_>, NodeGres<'_>),
        (taken, cut): (u64, u64),
        gpu: &Gpu,
        (sliced, whole, out, at): (bool, bool, bool, i64),
    ) {
        let (call, layout) = (self.frame.call, self.frame.source.layout);
        let marks = &mut self.moving.state.marks;
        let mut mark = |kind: Kind, why: Why| {
            let (gres, bits, holder, held) = match kind {
                Kind::Whole => (gpus, gpu.whole, Kind::Slices, gpu.slices),
                Kind::Slices => (slices, gpu.slices, Kind::Whole, gpu.whole),
            };
            // Bits that count as given already are somebody else's to take back.
            let marked = call.other_mode.allocate(layout, gres, bits);
            marks.extend(marked.map(|(number, bits)| Mark {
                node,
                number,
                bits,
                why,
                end: 0,
                nvml: gpu.nvml,
                holder,
                held,
            }));
        };
        if sliced && whole {
            mark(Kind::Whole, Why::Never);
        }
        if sliced && out {
            mark(Kind::Slices, Why::Never);
        }
        let steers = self.site.steers();
        match gpu.user(taken, cut) {
            Some(Kind::Slices) => mark(Kind::Whole, Why::Given),
            // Somebody has both: a job that took the whole node.
            Some(Kind::Whole) if sliced => mark(Kind::Slices, Why::Given),
            // One that is out of service is withheld from it besides.
            None if steers && whole && !out && gpu.kind == Kind::Slices => {
                mark(Kind::Whole, Why::Other(at));
            }
            None if steers && sliced && gpu.kind == Kind::Whole => {
                mark(Kind::Slices, Why::Other(at));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_of_the_kind_that_it_served_last() {
        let mut gpu = Gpu {
            nvml: 6,
            whole: 1 << 6,
            slices: 0xff00,
            kind: Kind::Whole,
            since: 0,
        };
        for (now, whole, slices, kind, since) in [
            (10, 0, 0, Kind::Whole, 0),
            (20, 1 << 5, 0xff, Kind::Whole, 0),
            (30, 0, 0x0100, Kind::Slices, 30),
            (40, 0, 0, Kind::Slices, 30),
            (50, 0, 0x8000, Kind::Slices, 30),
            (60, 1 << 6, 0, Kind::Whole, 60),
            // A job that took the whole node.
            (70, 1 << 6, 0xff00, Kind::Whole, 60),
        ] {
            gpu.learn(gpu.user(whole, slices), now);
            assert_eq!((gpu.kind, gpu.since), (kind, since), "at {now}");
        }
    }
}
