//! GPUs that move between GRES `gpu` and GRES `gpuos`: each stands in both, and is given in one at a time.
//!
//! At the beginning of a call a GPU of which anybody has a slice counts as given whole, and one that somebody has
//! whole counts as given slice by slice, until the call ends: for cons_tres too, whoever decides the call. Where a node
//! does not show which are whose, it is no candidate. Besides, as advice, an idle GPU of the other kind of job counts
//! as given until it is offered ([`crate::moving_later`]). Which kind it served last is remembered here and lost
//! with slurmctld.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;

use gpuos_core::gpuset::MAX_GPUS;
use slurm_ffi::api::Api;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::check::Gres;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::handles::{Job, Node};
use slurm_ffi::layout::GresNode;
use slurm_ffi::log;

use crate::call::{Call, Mode};
use crate::clock;
use crate::engine::Engine;
use crate::forecast::Twofold;
use crate::ledger::Held;
use crate::registration;
use crate::settings::Settings;
use crate::snapshot::Source;

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
struct Own {
    node: usize,
    name: String,
    /// How many slices GRES `gpuos` has to have there.
    slices: usize,
    /// None: nobody knows which move.
    gpus: Vec<Gpu>,
    /// Whether the log says that its GPUs cannot move.
    said: bool,
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
    /// Slurm's number of GRES `mps`.
    mps: u32,
    /// Whether GPUs count as given that are not.
    marked: bool,
    pub twofold: Twofold,
    /// Seconds that a job has to wait, and that a GPU has to have been of its kind, before it moves.
    pub after: i64,
    pub hold: i64,
    /// `None` until they are needed.
    nodes: Option<Vec<Own>>,
    /// What they were, for what their GPUs served.
    before: Vec<Own>,
    room: Room,
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
    /// Address of the GRES state. Valid for this call only.
    gres: usize,
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

/// Room for one call's marks, those that were taken back, and its candidates.
#[derive(Default)]
pub struct Room {
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

/// Marks for the length of a call, taken back when it ends, also while a panic unwinds.
#[derive(Default)]
pub struct Crossed {
    pub room: RefCell<Room>,
    layout: Cell<Option<&'static GresNode>>,
    /// What the job asks for.
    pub asks: Cell<Option<Kind>>,
}

impl Crossed {
    /// Whether the call is about a job that a GPU that moves could be given to.
    pub fn looked(&self) -> bool {
        self.layout.get().is_some()
    }

    /// Whether idle GPUs of the other kind are marked.
    pub fn marks_idle(&self) -> bool {
        let room = self.room.borrow();
        let mut marks = room.marks.iter();
        marks.any(|mark| matches!(mark.why, Why::Other(_)))
    }

    /// Takes back the marks of which `which` says so; whether there were any.
    pub fn lift(&self, which: impl Fn(&Mark) -> bool) -> bool {
        let Some(layout) = self.layout.get() else {
            return false;
        };
        let mut room = self.room.borrow_mut();
        let Room { marks, lifted, .. } = &mut *room;
        let before = lifted.len();
        marks.retain(|mark| {
            let lifts = which(mark);
            if lifts {
                // SAFETY: the address was a live GRES state when it was marked in this call, and slurmctld's node
                // write lock is held until the call has ended.
                let gres = unsafe { NodeGres::new(mark.gres as *mut c_void, layout) };
                if let Some(gres) = gres {
                    gres.unmask(mark.bits);
                }
                lifted.push(*mark);
            }
            !lifts
        });
        lifted.len() > before
    }

    /// Marks free bits; those that count as given already are somebody else's to take back.
    fn mark(&self, gres: NodeGres<'_>, bits: u64, mark: Mark) {
        // Remembered first: what is marked is never without somebody who takes it back.
        let mut room = self.room.borrow_mut();
        room.marks.push(mark);
        let marked = gres.mask(bits);
        match (marked, room.marks.last_mut()) {
            (0, _) => {
                room.marks.pop();
            }
            (_, Some(last)) => last.bits = marked,
            _ => {}
        }
    }
}

impl Drop for Crossed {
    fn drop(&mut self) {
        self.lift(|_| true);
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

impl Own {
    /// # Safety
    /// The caller holds slurmctld's node write lock for `'a`, and the layout was accepted.
    unsafe fn look<'a>(&self, source: &'a Source<'_>, engine: &Engine) -> Seen<'a> {
        // SAFETY: by the caller; the table's slot holds null or a live record.
        let Some(node) = (unsafe { Node::new(source.table.raw(self.node), source.layout) }) else {
            return Seen::One;
        };
        // SAFETY: by the caller.
        let both = unsafe { (source.gpus(node), source.gres(node, engine.slices.id())) };
        let (Some(gpus), Some(slices)) = both else {
            return Seen::One;
        };
        let last = self.gpus.iter().fold(1, |all, gpu| all | gpu.whole);
        let len = |gres: NodeGres<'_>| gres.bits().map_or(0, |bits| bits.len());
        let loses = [gpus, slices].map(|gres| registration::loses(engine.release, gres));
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
        if !fits || loses.contains(&true) && !node.power_saved() {
            return Seen::Strange {
                provisional: (gpus.is_provisional() || slices.is_provisional())
                    && !node.power_saved(),
                passes: nameless || gpus.is_provisional() || slices.is_provisional(),
                given: slices.allocated() > 0,
            };
        }
        let shards = source
            .shard_id
            // SAFETY: by the caller.
            .and_then(|shard| unsafe { source.gres(node, shard) });
        // SAFETY: by the caller.
        let mps = unsafe { source.gres(node, engine.moving.mps) };
        let shared = shards.map_or(0, given) | mps.map_or(0, |mps| given(mps) | mps.in_use());
        Seen::Both(gpus, slices, given(gpus) | shared, given(slices))
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
            mps: Gres::mps(api).id,
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

impl Engine {
    /// Has GPUs that move count as given where they are in the other GRES. A job that takes whole nodes finds them
    /// without anybody, and takes both.
    #[inline(never)]
    pub(crate) fn cross(&mut self, call: &Call) {
        // SAFETY: the job record and bitmap of this call, locked by slurmctld for its length, of the
        // release whose layout the self-check accepted.
        let both = unsafe { (Job::new(call.job, self.layout), Bitmap::new(call.nodes)) };
        let (Some(job), Some(candidates)) = both else {
            return;
        };
        if job.gres_list().is_null() || job.takes_whole_nodes() {
            return;
        }
        let Some(mut nodes) = self.moving_nodes() else {
            return;
        };
        let crossed = &call.crossed;
        crossed.room.replace(std::mem::take(&mut self.moving.room));
        crossed.layout.set(Some(&self.layout.gres_node));
        let sliced = self.asked(job, self.slices.id()).next().is_some();
        let shared = [self.shards.gres_id(), self.moving.mps];
        let whole = self.gpus_asked(job).next().is_some()
            || shared
                .iter()
                .any(|gres| self.asked(job, *gres).next().is_some());
        let serves = self.serves() && self.looks_for_changes(candidates);
        self.moving.marked = true;
        crossed.asks.set(match (whole, sliced) {
            (true, false) => Some(Kind::Whole),
            (false, true) => Some(Kind::Slices),
            _ => None,
        });
        let now = clock::now();
        let since = match job.eligible_time() {
            0 => now,
            since => since,
        };
        let until = since.saturating_add(self.moving.after);
        let source = self.source();
        for own in &mut nodes {
            if own.node >= source.table.len() || !candidates.test(own.node) {
                continue;
            }
            // SAFETY: called from job_test, under slurmctld's node write lock.
            match unsafe { own.look(&source, self) } {
                Seen::One => {}
                Seen::Strange {
                    provisional,
                    passes,
                    given,
                } => {
                    if !passes && !std::mem::replace(&mut own.said, true) {
                        self.say_strange(own);
                    }
                    if provisional || given || sliced {
                        candidates.put(own.node, false);
                        crossed.room.borrow_mut().unknown.push(own.node);
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
                        self.cross_gpu(
                            call,
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
        candidates.save(&mut crossed.room.borrow_mut().offered);
        self.moving.nodes = Some(nodes);
        if call.mode() == Mode::WillRun {
            crossed.lift(|mark| matches!(mark.why, Why::Other(at) if at <= now));
            crossed.room.borrow_mut().lifted.clear();
        }
        slurm_ffi::guard::inject("job_test.crossed");
    }

    /// Marks one GPU for the job of this call.
    fn cross_gpu(
        &self,
        call: &Call,
        node: usize,
        (gpus, slices): (NodeGres<'_>, NodeGres<'_>),
        (taken, cut): (u64, u64),
        gpu: &Gpu,
        (sliced, whole, out, at): (bool, bool, bool, i64),
    ) {
        let mark = |kind: Kind, why: Why| {
            let (gres, bits, holder, held) = match kind {
                Kind::Whole => (gpus, gpu.whole, Kind::Slices, gpu.slices),
                Kind::Slices => (slices, gpu.slices, Kind::Whole, gpu.whole),
            };
            let mark = Mark {
                node,
                gres: gres.raw() as usize,
                bits: 0,
                why,
                end: 0,
                nvml: gpu.nvml,
                holder,
                held,
            };
            call.crossed.mark(gres, bits, mark);
        };
        if sliced && whole {
            mark(Kind::Whole, Why::Never);
        }
        if sliced && out {
            mark(Kind::Slices, Why::Never);
        }
        let steers = self.settings.config.slurm.steer;
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

    /// The nodes with GPUs that move, to be put back; made where they are not known yet.
    fn moving_nodes(&mut self) -> Option<Vec<Own>> {
        if self.moving.nodes.is_none() {
            self.make_moving();
        }
        self.moving.nodes.take().filter(|nodes| {
            let any = !nodes.is_empty();
            if !any {
                self.moving.nodes = Some(Vec::new());
            }
            any
        })
    }

    #[cold]
    #[inline(never)]
    fn make_moving(&mut self) {
        let mig = &self.settings.config.mig;
        let mut nodes = Vec::new();
        for index in 0..self.table.len() {
            // SAFETY: called from job_test, or while a job starts, under slurmctld's node write lock.
            let Some(node) = (unsafe { Node::new(self.table.raw(index), self.layout) }) else {
                continue;
            };
            let name = node.name();
            if self.moving.blind {
                let source = self.source();
                // SAFETY: as above.
                let both = unsafe { (source.gpus(node), source.gres(node, self.slices.id())) };
                if let (Some(_), Some(_)) = both {
                    nodes.push(Own {
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
                let (kind, since) = self.moving.served(name, nvml);
                Some(Gpu {
                    nvml,
                    whole: 1 << whole,
                    slices: slices.unwrap_or(0),
                    kind,
                    since,
                })
            });
            let own = Own {
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
        let room = &mut self.moving.room;
        // A GPU has two marks at most.
        room.marks.reserve(2 * gpus);
        room.lifted.reserve(2 * gpus);
        self.moving.on = !nodes.is_empty();
        self.moving.nodes = Some(nodes);
    }

    #[cold]
    fn say_strange(&self, own: &Own) {
        if own.gpus.is_empty() {
            log::error(&format!(
                "{}: without a sound gpuos.toml nobody knows which of its GPUs are divided and which move. It gets no job \
                 with slices, and no job with GPUs while somebody has slices there, until there is one and slurmctld is \
                 reconfigured",
                own.name,
            ));
            return;
        }
        log::error(&format!(
            "{}: its GPUs do not move: Slurm has no GRES gpuos there with {} slices and no GRES gpu with all the GPUs that \
             move, both with Type= and File= in gres.conf and at most 64 of each. It gets no job with slices, and no job \
             with GPUs while somebody has slices there, until gres.conf and [[mig.pool]] in gpuos.toml say the same \
             (gpuos discover prints them)",
            own.name, own.slices,
        ));
    }

    /// Remembers what the GPUs of these nodes serve.
    #[inline(never)]
    pub(crate) fn note_moves(&mut self, held: &[Held]) {
        // In the middle of a call they show marks as well.
        if self.moving.marked {
            return;
        }
        let Some(mut nodes) = self.moving_nodes() else {
            return;
        };
        let (source, now) = (self.source(), clock::now());
        for own in &mut nodes {
            if own.node >= source.table.len()
                || !held.iter().any(|one| one.node as usize == own.node)
            {
                continue;
            }
            // SAFETY: called while slurmctld starts or changes a job, under its node write lock.
            let seen = unsafe { own.look(&source, self) };
            if let Seen::Both(_, _, taken, cut) = seen {
                let gpus = own.gpus.iter_mut();
                gpus.for_each(|gpu| gpu.learn(gpu.user(taken, cut), now));
            }
        }
        self.moving.nodes = Some(nodes);
    }

    /// Ends what [`Engine::cross`] began.
    pub(crate) fn uncross(&mut self, call: &Call) {
        call.crossed.lift(|_| true);
        self.moving.marked = false;
        let mut room = call.crossed.room.take();
        room.lifted.clear();
        room.unknown.clear();
        room.start = None;
        self.moving.room = room;
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
