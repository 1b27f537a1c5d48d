//! GPUs that gpuosd has taken out of service, or holds for worn.
//!
//! It writes them into the node's `Extra`. For the length of a `job_test` those that are out and free count
//! as allocated, so that nobody is given them: neither the planner nor cons_tres, whatever the job is and
//! whoever decides it. A job that takes whole nodes is not offered a node with such a GPU. TEST_ONLY sees
//! none of this: a job that could run on the whole node waits, it is not refused.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use gpuos_core::explain::out_of_service;
use gpuos_core::gpuset::{GpuSet, MAX_GPUS};
use gpuos_core::health::ExtraPart;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::extra::Remembered;
use slurm_ffi::gres::{JobGres, NodeGres};
use slurm_ffi::handles::{Job, Node};
use slurm_ffi::layout::GresNode;
use slurm_ffi::{check, log};

use crate::call::{Call, Mode, NOT_NOW};
use crate::clock;
use crate::engine::{self, Engine};
use crate::reasons;
use crate::registration::KeptOut;
use crate::trust::Trust;

/// What is known of one node.
#[derive(Default)]
struct Known {
    text: Remembered,
    out: GpuSet,
    degraded: GpuSet,
    /// By NVML's index.
    pool_out: GpuSet,
}

/// What the nodes' `Extra` says, by node index.
#[derive(Default)]
pub struct Service {
    known: Vec<Known>,
    /// How many of them have an `Extra` at all.
    texts: usize,
    /// Whether a text of Slurm's was no text: then none is read any more.
    refused: bool,
}

impl Service {
    /// Forgets everything: the node table is made anew.
    pub fn clear(&mut self) {
        self.known.clear();
        self.texts = 0;
    }

    /// GPUs of a node that are out of service, and those that are to be given last.
    #[inline]
    pub fn of(&self, node: usize) -> (GpuSet, GpuSet) {
        match self.texts {
            0 => (GpuSet::EMPTY, GpuSet::EMPTY),
            _ => self
                .known
                .get(node)
                .map_or_else(Default::default, |known| (known.out, known.degraded)),
        }
    }

    /// GPUs of the node's pool that are out of service, by NVML's index.
    pub fn pool_out(&self, node: usize) -> GpuSet {
        let known = self.known.get(node).filter(|_| self.texts > 0);
        known.map_or(GpuSet::EMPTY, |known| known.pool_out)
    }

    /// Reads what has changed of a node.
    #[cold]
    #[inline(never)]
    fn read(&mut self, index: usize, node: Node<'_>) {
        if index >= self.known.len() {
            self.known.resize_with(index + 1, Known::default);
        }
        let known = &mut self.known[index];
        let had = known.text.is_some();
        // SAFETY: called from job_test, under slurmctld's node write lock; the field is the node's own.
        if unsafe { known.text.is_same(node.extra()) } {
            return;
        }
        let before = (known.out, known.degraded, known.pool_out);
        (known.out, known.degraded) = (GpuSet::EMPTY, GpuSet::EMPTY);
        known.pool_out = GpuSet::EMPTY;
        let name = node.name();
        match known.text.set(node.extra()) {
            Ok(text) => match ExtraPart::read(&text) {
                Ok(part) => {
                    let set = |list: &[u8]| {
                        let each = list.iter().map(|gpu| usize::from(*gpu));
                        each.fold(GpuSet::EMPTY, GpuSet::with)
                    };
                    (known.out, known.degraded) = (set(&part.out), set(&part.degraded));
                    known.pool_out = set(&part.pool_out);
                }
                Err(why) => log::error(&format!("{name}: {why}")),
            },
            Err(why) => {
                self.refused = true;
                log::error(&format!(
                    "{name}: {why}; GPUs that are out of service get jobs until slurmctld restarts; report this line \
                     with the exact Slurm package"
                ));
            }
        }
        let now = (known.out, known.degraded, known.pool_out);
        if now != before {
            log::info(&format!(
                "{name}: GPUs out of service: {}; degraded: {}; of its pool out of service, by NVML's index: {}",
                now.0, now.1, now.2
            ));
        }
        match (had, known.text.is_some()) {
            (false, true) => self.texts += 1,
            (true, false) => self.texts -= 1,
            _ => {}
        }
    }
}

/// GPUs that count as allocated for the length of a call; given back when it ends, also while a panic
/// unwinds.
#[derive(Default)]
pub struct Withheld {
    /// Addresses of Slurm's GRES states, with what was marked in each, and the layout of these.
    marked: RefCell<Vec<(usize, u64)>>,
    layout: RefCell<Option<&'static GresNode>>,
}

impl Withheld {
    fn push(&self, gres: usize, marked: u64, layout: &'static GresNode) {
        self.layout.replace(Some(layout));
        self.marked.borrow_mut().push((gres, marked));
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.marked.borrow().is_empty()
    }

    /// What is marked in one GRES state.
    fn of(&self, gres: usize) -> u64 {
        let marked = self.marked.borrow();
        let own = marked.iter().filter(|(address, _)| *address == gres);
        own.fold(0, |all, (_, marked)| all | marked)
    }
}

impl Withheld {
    /// Takes the marks back.
    pub fn give_back(&self) {
        let Some(layout) = self.layout.take() else {
            return;
        };
        for (address, marked) in self.marked.borrow_mut().drain(..) {
            // SAFETY: the address was a live GRES state when it was marked in this call, and slurmctld's node
            // write lock is held until the call has ended.
            if let Some(gres) = unsafe { NodeGres::new(address as *mut c_void, layout) } {
                gres.unmask(marked);
            }
        }
    }
}

impl Drop for Withheld {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// What a call is to heed.
#[derive(Default)]
pub struct Heed {
    /// The candidates as Slurm gave them, as words of a bitmap.
    offered: Vec<u64>,
    /// Nodes on which a job still holds a GPU that is out: its end gives nobody that GPU.
    pub held: Vec<usize>,
    /// Those of them whose other GPUs are too few for the job.
    pub too_few: Vec<usize>,
    /// Nodes with GPUs out that a job which takes whole nodes is not offered.
    pub left_out: Vec<usize>,
}

impl Heed {
    fn offered(&self) -> impl Iterator<Item = usize> {
        let word = |(at, word): (usize, &u64)| GpuSet(*word).iter().map(move |bit| at * 64 + bit);
        self.offered.iter().enumerate().flat_map(word)
    }
}

impl Engine {
    /// Whether GPUs that are out of service are withheld from anybody.
    pub(crate) fn serves(&self) -> bool {
        self.settings.config.slurm.steer
            && self.layout.node_extra.is_some()
            && !self.service.refused
    }

    /// Withholds GPUs that are out of service from the job of this call, which any GRES or whole nodes are
    /// asked for by.
    pub(crate) fn withhold(&mut self, call: &Call) -> Option<Heed> {
        if !self.serves() {
            return None;
        }
        // SAFETY: the job record and bitmap of this call, locked by slurmctld for its length, of the
        // release whose layout the self-check accepted.
        let (job, candidates) =
            unsafe { (Job::new(call.job, self.layout)?, Bitmap::new(call.nodes)?) };
        if job.gres_list().is_null() && !job.whole_nodes() {
            return None;
        }
        match self.looks_for_changes(candidates) {
            true => self.withhold_from(call, job, candidates),
            false => None,
        }
    }

    /// The same for a job without GRES that comes before any record is trusted: it takes whole nodes, and so
    /// all their GPUs.
    pub(crate) fn withhold_untrusted(&mut self, call: &Call) -> Option<Heed> {
        if self.trust != Trust::None
            || !self.serves()
            || check::whole_nodes(self.layout, call.job) != Some(true)
            || !self.comes_to_trust_nodes(call.job)
        {
            return None;
        }
        self.withhold(call)
    }

    /// Looks at the `Extra` of the candidates; whether any of the cluster has one.
    pub(crate) fn looks_for_changes(&mut self, candidates: Bitmap<'_>) -> bool {
        let source = self.source();
        let count = source.table.len();
        let mut ahead = self.snapshot.hints.begin(candidates, count);
        for index in candidates.iter().take_while(|index| *index < count) {
            self.snapshot.hints.fetch(ahead.next());
            // SAFETY: job_test is called under slurmctld's node write lock; the table's slot holds null or a
            // live record.
            let node = unsafe { Node::new(source.table.raw(index), source.layout) };
            if let Some(node) = node
                && (node.extra() != 0 || self.service.texts > 0)
            {
                self.service.read(index, node);
            }
        }
        self.service.texts > 0
    }

    #[cold]
    #[inline(never)]
    fn withhold_from(&mut self, call: &Call, job: Job<'_>, candidates: Bitmap<'_>) -> Option<Heed> {
        let mut heed = Heed::default();
        let mut any = false;
        let source = self.source();
        let whole = job.whole_nodes();
        let each = self.of_each_node(job);
        for index in candidates.iter().take_while(|at| *at < source.table.len()) {
            let (out, _) = self.service.of(index);
            // Who takes a whole node gets all its slices; others are given slices elsewhere (`slices`).
            if whole && self.is_pool_out(index) {
                any = true;
                heed.left_out.push(index);
                continue;
            }
            if out.is_empty() {
                continue;
            }
            // SAFETY: as in `looks_for_changes`.
            let gpus = unsafe {
                Node::new(source.table.raw(index), source.layout).and_then(|node| source.gpus(node))
            };
            let Some((gpus, bits)) = gpus.and_then(|gpus| Some((gpus, gpus.bits()?))) else {
                continue;
            };
            let out = out.and(GpuSet::first(bits.len()));
            if out.is_empty() || bits.len() > MAX_GPUS {
                continue;
            }
            any = true;
            if whole {
                heed.left_out.push(index);
                continue;
            }
            if out.0 & bits.chunk(0) != 0 {
                heed.held.push(index);
                let sound = GpuSet::first(bits.len()).minus(out);
                if (sound.len() as u64) < each {
                    heed.too_few.push(index);
                }
            }
            let marked = gpus.mask(out.0);
            if marked != 0 {
                call.withheld
                    .push(gpus.raw() as usize, marked, &self.layout.gres_node);
            }
        }
        if !any {
            return None;
        }
        candidates.save(&mut heed.offered);
        if call.mode() == Mode::RunNow {
            // What was supplied for an earlier start that was not one.
            self.withdraw_all(job);
        }
        // SAFETY: as above.
        unsafe { reasons::begin(self.api, self.layout, job.id()) };
        Some(heed)
    }

    /// Whether a GPU of the node's pool is out of service. One that has left the pool does not count.
    fn is_pool_out(&self, index: usize) -> bool {
        let out = self.service.pool_out(index);
        if out.is_empty() {
            return false;
        }
        let source = self.source();
        // SAFETY: as in `looks_for_changes`.
        let node = unsafe { Node::new(source.table.raw(index), source.layout) };
        let pool = node.and_then(|node| self.settings.config.mig.pool_of(node.name()));
        pool.is_some_and(|(pool, _)| !pool.gpus.and(out).is_empty())
    }

    /// Names the GPUs on nodes where cons_tres only counts them: once the call is over it would take the
    /// first ones that are free, among them those that were withheld.
    fn name_the_sound(&mut self, call: &Call) {
        if call.mode() != Mode::RunNow
            || call.withheld.is_empty()
            || !self.trusts_selection(call.job)
        {
            return;
        }
        // SAFETY: as in `withhold`.
        let both = unsafe { (Job::new(call.job, self.layout), Bitmap::new(call.nodes)) };
        let (Some(job), Some(chosen)) = both else {
            return;
        };
        let source = self.source();
        for index in chosen.iter().take_while(|at| *at < source.table.len()) {
            if self.service.of(index).0.is_empty() {
                continue;
            }
            // SAFETY: as in `looks_for_changes`.
            let gpus = unsafe {
                Node::new(source.table.raw(index), source.layout).and_then(|node| source.gpus(node))
            };
            let Some(bits) = gpus
                .filter(|g| g.topologies() == 0)
                .and_then(NodeGres::bits)
            else {
                continue;
            };
            let free = GpuSet::first(bits.len()).minus(GpuSet(bits.chunk(0)));
            for asked in self.gpus_asked(job).filter(|a| a.selected(index).is_none()) {
                let count = asked.selected_count(index) as usize;
                let devices = free.iter().take(count).fold(GpuSet::EMPTY, GpuSet::with);
                asked.supply(self.api, index, devices.0, bits.len());
            }
        }
    }

    /// Whether a forecast needs more GPUs than the sound ones that are free now, where it has nodes on which a
    /// job holds a GPU that is out. By the time of the start it cannot be told: backfill also asks from a later
    /// time on.
    pub(crate) fn counts_on_held(&self, call: &Call, heed: &Heed) -> bool {
        // SAFETY: as in `withhold`.
        let both = unsafe { (Job::new(call.job, self.layout), Bitmap::new(call.nodes)) };
        let (Some(job), Some(chosen)) = both else {
            return true;
        };
        let (source, each) = (self.source(), self.of_each_node(job));
        let (mut all, mut held, mut enough) = (0, false, true);
        for index in chosen.iter().take_while(|at| *at < source.table.len()) {
            // SAFETY: as in `looks_for_changes`.
            let free = unsafe {
                let gpus = Node::new(source.table.raw(index), source.layout)
                    .and_then(|node| source.gpus(node));
                gpus.map_or(0, |gpus| gpus.available().saturating_sub(gpus.allocated()))
            };
            all += free;
            if heed.held.contains(&index) {
                held = true;
                enough &= free >= each;
            }
        }
        held && !(enough && all >= self.sum(job, JobGres::per_job))
    }

    /// After a call in which GPUs were withheld.
    pub(crate) fn heeded(&mut self, call: &Call, code: c_int, heed: &Heed) {
        if code == 0 {
            self.name_the_sound(call);
        }
        self.say_out(call, code, heed);
    }

    /// A job got no place, or only later: says so where it is for GPUs that are out of service.
    fn say_out(&mut self, call: &Call, code: c_int, heed: &Heed) {
        // SAFETY: as in `withhold`.
        let Some(job) = (unsafe { Job::new(call.job, self.layout) }) else {
            return;
        };
        let forecast = call.mode() == Mode::WillRun;
        if job.id() == 0 || code == 0 && !(forecast && job.start_time() > clock::now()) {
            return;
        }
        let Some(sentence) = self.why_out(call, job, heed) else {
            return;
        };
        let sentence = match reasons::of(job.id()) {
            Some(other) => format!("{other}; {sentence}"),
            None => format!("gpuos: {sentence}"),
        };
        reasons::tell(self.api, call.mode(), job, sentence);
    }

    /// The fewest GPUs that a node has to give to a job.
    pub(crate) fn of_each_node(&self, job: Job<'_>) -> u64 {
        let each = self.sum(job, JobGres::per_node);
        each.max(self.sum(job, JobGres::per_task)).max(1)
    }

    /// Which GPUs of the candidates are out of service, where the job would have room now, or could have it at
    /// all, if they were not.
    fn why_out(&self, call: &Call, job: Job<'_>, heed: &Heed) -> Option<String> {
        let whole = job.whole_nodes();
        let (all, each) = (self.sum(job, JobGres::per_job), self.of_each_node(job));
        let source = self.source();
        // What it could have now, if all were in service, of those in service ever, and of all ever.
        let mut room = [Room::default(); 4];
        let (mut total, mut out_of) = (0, Vec::new());
        for index in heed.offered() {
            // SAFETY: as in `looks_for_changes`.
            let node = unsafe { Node::new(source.table.raw(index), source.layout) };
            // SAFETY: as there.
            let gpus = node.and_then(|node| unsafe { source.gpus(node) });
            let (Some(node), Some(gpus)) = (node, gpus) else {
                continue;
            };
            let Some(bits) = gpus.bits() else { continue };
            let present = GpuSet::first(bits.len());
            let out = self.service.of(index).0.and(present);
            let withheld = GpuSet(call.withheld.of(gpus.raw() as usize));
            let taken = GpuSet(bits.chunk(0)).minus(withheld);
            let sound = |set: GpuSet| match whole && !out.is_empty() {
                true => GpuSet::EMPTY,
                false => set.minus(out),
            };
            let free = present.minus(taken);
            let sets = [sound(free), free, sound(present), present];
            for (room, set) in room.iter_mut().zip(sets) {
                room.add(set.len() as u64, each);
            }
            total += bits.len();
            if !out.is_empty() {
                out_of.push((node.name(), out));
            }
        }
        let enough = room.map(|room| room.nodes >= u64::from(call.counts.min) && room.gpus >= all);
        let blamed = enough[1] && !enough[0] || enough[3] && !enough[2];
        blamed.then(|| out_of_service(&out_of, total))
    }
}

/// What a job could have.
#[derive(Clone, Copy, Default)]
struct Room {
    nodes: u64,
    gpus: u64,
}

impl Room {
    fn add(&mut self, gpus: u64, each: u64) {
        if gpus >= each {
            self.nodes += 1;
            self.gpus += gpus;
        }
    }
}

/// Decides a call with GPUs out of service among its candidates. `test` is the decision of the call as it
/// stands.
#[cold]
pub fn test(call: &Call, heed: &Heed, test: impl Fn(&Call) -> c_int) -> c_int {
    // SAFETY: the bitmap of this call, locked by slurmctld for its length.
    let Some(candidates) = (unsafe { Bitmap::new(call.nodes) }) else {
        return test(call);
    };
    let left_out = KeptOut::new(candidates, heed.left_out.clone());
    let code = match left_out.is_some() && engine::lacks_a_named_node(call) {
        true => NOT_NOW,
        false => around_held(call, candidates, heed, test),
    };
    if code == 0
        && let Some(left_out) = left_out
    {
        left_out.done();
    }
    code
}

/// What cons_tres thinks of the time when jobs have ended, or were preempted, counts on GPUs that stay
/// out of service. So it is first asked without preemption; where that counts on such a GPU, without the nodes where
/// a job holds such a GPU: nobody is preempted there. Only where nothing else is left, the forecast is the one for all nodes that have
/// enough others; it may be too early.
fn around_held(
    call: &Call,
    candidates: Bitmap<'_>,
    heed: &Heed,
    test: impl Fn(&Call) -> c_int,
) -> c_int {
    let forecast = call.mode() == Mode::WillRun;
    if heed.held.is_empty() || !forecast && call.preemptable().is_null() {
        return test(call);
    }
    let mut all = Vec::new();
    candidates.save(&mut all);
    let now = || call.without_preemption(|| test(call));
    let code = now();
    if code == 0 && !(forecast && engine::counts_on_held(call, heed)) {
        return code;
    }
    candidates.restore(&all);
    let without = KeptOut::new(candidates, heed.held.clone());
    let code = test(call);
    if code == 0 || !forecast {
        if let (0, Some(without)) = (code, without) {
            without.done();
        }
        return code;
    }
    drop(without);
    let sound = KeptOut::new(candidates, heed.too_few.clone());
    let code = now();
    if let (0, Some(sound)) = (code, sound) {
        sound.done();
    }
    code
}
