//! The state of the plugin in slurmctld, and the way of one `job_test` through it.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, TryLockError};

use gpuos_core::fabric::Traffic;
use gpuos_core::gpuset::GpuSet;
use gpuos_core::plan::{Choice, Planner};
use slurm_ffi::api::Api;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::{Job, Node, NodeTable, for_each_job};
use slurm_ffi::layout::{Fields, Layout};
use slurm_ffi::needs::{CR_CORE, CR_MEMORY};
use slurm_ffi::release::Release;
use slurm_ffi::{check, conf, log, mem};

use crate::call::{Call, Mode, NOT_NOW};
use crate::cluster;
use crate::demand::Demand;
use crate::ends;
use crate::forecast::Forecasts;
use crate::keeper;
use crate::ledger::{Held, Ledger};
use crate::mix::{Mix, Spare};
use crate::moving::Moving;
use crate::neighbours::Neighbours;
use crate::note::Pending;
use crate::policy::Standing;
use crate::reasons;
use crate::records::Records;
use crate::refusals::Refusals;
use crate::refused::Refused;
use crate::registration::{self, KeptOut, Registration};
use crate::service::{self, Heed, Service};
use crate::settings::{self, Settings};
use crate::shards::Shards;
use crate::slices::Slices;
use crate::snapshot::{Snapshot, Source};
use crate::steer::Steering;
use crate::trust::{Doubts, Trust};

/// slurmctld calls under its node write lock, one call at a time; the lock here is only ever found
/// taken by a call of another kind, which then passes through rather than wait.
static ENGINE: Mutex<Option<Engine>> = Mutex::new(None);

/// Everything that steering needs.
pub struct Engine {
    pub(crate) api: &'static Api,
    pub(crate) layout: &'static Layout,
    pub(crate) strings: check::Strings,
    pub(crate) fields: Fields,
    pub(crate) release: Release,
    pub(crate) table: NodeTable,
    pub(crate) gpu: check::Gres,
    pub(crate) slices: Slices,
    pub(crate) shards: Shards,
    pub(crate) moving: Moving,
    pub(crate) trust: Trust,
    pub(crate) doubts: Doubts,
    /// Whether the layout of what a job holds has been held against a job that holds something.
    pub(crate) trusts_held: bool,
    pub(crate) settings: Settings,
    pub(crate) planner: Option<Planner>,
    /// The gangs on the network, where gpuos.toml describes one.
    pub(crate) traffic: Option<Traffic>,
    /// The choice that the last successful attempt followed.
    pub(crate) chosen: Choice,
    /// Which attempt that was, counted from 0.
    pub(crate) attempt: u32,
    /// What the call at hand is, should cons_tres decide it.
    pub(crate) left: Left,
    /// What is to be noted when the job that was decided last starts.
    pub(crate) pending: Option<Pending>,
    pub(crate) snapshot: Snapshot,
    pub(crate) steering: Steering,
    pub(crate) ledger: Ledger,
    pub(crate) forecasts: Forecasts,
    pub(crate) records: Records,
    pub(crate) mix: Mix,
    pub(crate) standing: Standing,
    pub(crate) neighbours: Neighbours,
    pub(crate) service: Service,
    /// Why the call that is being decided would be refused.
    pub(crate) refused: Refused,
    registration: Registration,
    /// Whether the node records alone have been held against the layout.
    pub(crate) trusts_nodes: bool,
    /// `SelectTypeParameters` as Slurm's bits.
    pub(crate) parameters: u16,
    /// What the job at hand needs of its nodes beside GPUs.
    pub(crate) demand: Demand,
    /// Whether some node has cores with several threads.
    pub(crate) has_threads: bool,
    /// What cons_tres has refused, and for which jobs.
    pub(crate) refusals: Refusals,
    /// Whether idle cores that a job has no use for are hidden from cons_tres.
    pub(crate) hides_cores: bool,
    #[cfg(feature = "fault-injection")]
    pub(crate) shifts: Option<crate::shifts::Shifts>,
}

/// Prepares steering in slurmctld; in any other program, and for a release whose layout is not known,
/// the plugin stays a plain forwarder.
pub fn start(release: Release) {
    // Only slurmctld has jobs to place.
    if slurm_ffi::api::symbol(c"find_job_record").is_none() {
        return;
    }
    match prepare(release) {
        Ok(engine) => {
            engine.settings.announce(release, engine.layout);
            if let Ok(mut slot) = ENGINE.lock() {
                *slot = Some(engine);
            }
        }
        Err(why) => pass_through(&why),
    }
}

pub(crate) fn pass_through(why: &str) {
    log::error(&format!(
        "passing through to cons_tres, jobs are scheduled as by stock Slurm: {why}"
    ));
}

fn prepare(release: Release) -> Result<Engine, String> {
    let fields = conf::fields(release)?;
    // One per process: slurmctld initialises its select plugin once.
    let layout: &'static Layout = Box::leak(Box::new(Layout::of(&fields)?));
    let strings = check::Strings::of(&fields)?;
    let api = Api::get().map_err(|symbol| format!("Slurm {release} does not export {symbol}"))?;
    let table = NodeTable::find().ok_or("Slurm does not export its node table")?;
    let misfit = |why| format!("the layout table does not fit this slurmctld ({why})");
    let parameters = check::configuration(layout).map_err(misfit)?;
    let settings = settings::load(&fields);
    Ok(Engine {
        api,
        layout,
        strings,
        table,
        gpu: check::Gres::gpu(api),
        slices: Slices::new(api, &settings),
        shards: Shards::new(api),
        moving: Moving::new(api, &settings),
        trust: Trust::None,
        doubts: Doubts::default(),
        trusts_held: false,
        settings,
        planner: None,
        traffic: None,
        chosen: Choice::default(),
        attempt: 0,
        left: Left::default(),
        pending: None,
        snapshot: Snapshot::default(),
        steering: Steering::default(),
        ledger: Ledger::default(),
        forecasts: Forecasts::default(),
        records: Records::default(),
        mix: Mix::default(),
        standing: Standing::default(),
        neighbours: Neighbours::default(),
        service: Service::default(),
        refused: Refused::default(),
        registration: Registration::default(),
        trusts_nodes: false,
        parameters,
        hides_cores: release < CORES_ARE_CHEAP_FROM && parameters & !CR_MEMORY == CR_CORE,
        demand: Demand::default(),
        has_threads: false,
        refusals: Refusals::default(),
        #[cfg(feature = "fault-injection")]
        shifts: None,
        fields,
        release,
    })
}

/// From this release on cons_tres takes no longer over more idle cores. Before, it drops them one by one,
/// and for each looks through all others of the socket.
const CORES_ARE_CHEAP_FROM: Release = Release::new(24, 5, 0);

fn with(work: impl FnOnce(&mut Engine)) {
    match ENGINE.try_lock() {
        Ok(mut slot) => {
            if let Some(engine) = slot.as_mut() {
                work(engine);
            }
        }
        Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => {}
    }
}

/// Steers one call, or hands it on as it came.
pub fn job_test(call: &Call) -> c_int {
    let mut code = answer(call, true);
    if call.crossed.looked() {
        code = offer_more(call, code);
    }
    if call.shown.looked() {
        with(|engine| engine.hide_shared(call));
    }
    if code != 0 {
        with(|engine| engine.say_refused(call));
    }
    code
}

/// Decides a call again with GPUs that move and were kept from the job at first, where that is of use.
#[cold]
fn offer_more(call: &Call, mut code: c_int) -> c_int {
    for tried in 0.. {
        let mut offers = false;
        with(|engine| offers = engine.offers_more(call, code, tried));
        if !offers {
            break;
        }
        call.withheld.give_back();
        code = match call.mode() {
            Mode::WillRun => call.without_preemption(|| answer(call, false)),
            _ => answer(call, false),
        };
    }
    with(|engine| {
        code = engine.moved(call, code);
        engine.uncross(call);
    });
    code
}

/// `first`: the first time in this call.
fn answer(call: &Call, first: bool) -> c_int {
    let (mut steps, mut heed) = (Steps::default(), None);
    with(|engine| {
        engine.fetch();
        let trusted = engine.trusts(call);
        if trusted && first {
            engine.show_shared(call);
            if engine.moving.on {
                engine.cross(call);
                // A GPU of the other kind that is idle costs nobody his job.
                if call.mode() == Mode::RunNow && call.crossed.marks_idle() {
                    call.spare();
                }
            }
        }
        heed = match trusted {
            true => engine.withhold(call),
            false => engine.withhold_untrusted(call),
        };
        if heed.is_none() {
            match trusted {
                true => steps = engine.steer(call),
                false => steps.kept_out = engine.keep_out_untrusted(call),
            }
        }
    });
    let Some(heed) = heed else {
        return steps.end(call);
    };
    let code = service::test(call, &heed, |call| {
        let mut steps = Steps::default();
        with(|engine| match engine.reads_records() {
            true => steps = engine.steer(call),
            false => steps.kept_out = engine.keep_out_untrusted(call),
        });
        steps.end(call)
    });
    with(|engine| engine.heeded(call, code, &heed));
    code
}

/// A call that cons_tres decides, by what gpuos had to do with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Left {
    /// Nothing, or there was nothing to choose.
    #[default]
    Elsewhere,
    /// gpuos has no plan for jobs of this form, or is not to have one.
    Unplanned,
    /// gpuos knew of no place, or cons_tres refused those that it was offered.
    Refused,
}

/// How far a call has come: the answer, if there is one, and what was taken out of its candidates.
#[derive(Default)]
struct Steps<'a> {
    answer: Option<c_int>,
    /// What it means if cons_tres starts the job by itself.
    left: Left,
    kept_out: Option<KeptOut<'a>>,
    apart: Option<KeptOut<'a>>,
}

impl Steps<'_> {
    /// Has cons_tres answer what gpuos did not, and settles what was taken out.
    fn end(self, call: &Call) -> c_int {
        let mut code = self.answer.unwrap_or_else(|| call.forward());
        if self.answer.is_none() && self.left != Left::Elsewhere && code == 0 {
            with(|engine| engine.left_to_slurm(call, self.left));
        }
        if let Some(apart) = self.apart {
            match code {
                0 => apart.done(),
                _ => drop(apart),
            }
            with(|engine| code = engine.say_apart(call, code));
        }
        if let Some(kept_out) = self.kept_out.filter(|_| code == 0) {
            kept_out.done();
        }
        code
    }
}

/// Whether a forecast counts on a GPU that is out of service and held.
pub fn counts_on_held(call: &Call, heed: &Heed) -> bool {
    let mut counts = false;
    with(|engine| counts = engine.counts_on_held(call, heed));
    counts
}

/// Whether a node that the job names is not among its candidates.
pub fn lacks_a_named_node(call: &Call) -> bool {
    let mut lacks = false;
    with(|engine| lacks = engine.lacks_a_named_node(call, true));
    lacks
}

/// A job is about to start on the nodes that it was given last.
pub fn job_starts(job: *mut c_void) {
    with(|engine| engine.note_start(job));
}

/// A job has, or no longer has, what its record says.
pub fn job_holds(job: *mut c_void) {
    with(|engine| engine.note_holdings(job));
}

/// A job ends.
pub fn job_ends(job: *mut c_void) {
    with(|engine| {
        // Before the records are trusted no job stands in the ledger.
        if engine.reads_records() {
            // SAFETY: the record that slurmctld is ending, under its job write lock.
            if let Some(job) = unsafe { Job::new(job, engine.layout) } {
                engine.learn(job);
                engine.ledger.remove(job.id());
                engine.neighbours.ended(job.id());
                engine.slices.ends(job.id());
                if let Some(traffic) = &mut engine.traffic {
                    traffic.end(job.id());
                    engine.records.gang(job.id(), traffic);
                }
                engine.mix_works(Spare::End);
            }
        }
    });
}

/// The node table is being rebuilt; Slurm reports every running job again afterwards.
pub fn forget_nodes() {
    with(|engine| {
        engine.probe_once();
        engine.forget();
        engine.open_records();
        engine.keep_reasons();
    });
}

/// Reads the configuration files again.
pub fn reload() {
    with(|engine| {
        let steered = engine.settings.config.slurm.steer;
        let mig = std::mem::take(&mut engine.settings.config.mig);
        engine.settings = settings::load(&engine.fields);
        if engine.settings.broken || engine.settings.absent {
            // Which GPUs move is as true as it was, and nobody is to be given one twice.
            engine.settings.config.mig = mig;
        }
        engine.standing.reload();
        if engine.settings.config.slurm.steer != steered {
            engine.settings.announce(engine.release, engine.layout);
        }
        engine.planner = None;
        engine.traffic = None;
        engine.neighbours.book = None;
        engine.slices.reload(&engine.settings);
        engine.moving.reload(&engine.settings);
        engine.open_records();
        engine.keep_reasons();
    });
}

impl Engine {
    /// Decides a call about a job whose record is trusted.
    fn steer<'a>(&mut self, call: &'a Call) -> Steps<'a> {
        self.refused.begin(call);
        let kept_out = self.keep_out(call);
        let apart = self.keep_apart(call);
        let lacks = self.lacks_a_named_node(call, apart.is_some());
        let answer = match lacks || self.settings.broken && self.asks_for_slices(call) {
            true => Some(NOT_NOW),
            false => self.decide(call),
        };
        self.mix_works(match answer {
            Some(code) if code != 0 => Spare::Refused,
            _ => Spare::Asked,
        });
        Steps {
            answer,
            left: std::mem::take(&mut self.left),
            kept_out,
            apart,
        }
    }

    /// Forgets what was read of nodes and of jobs.
    pub(crate) fn forget(&mut self) {
        self.planner = None;
        self.traffic = None;
        self.neighbours = Neighbours::default();
        self.snapshot.signatures.clear();
        self.ledger.clear();
        self.registration.clear();
        self.service.clear();
        self.slices.clear();
        self.shards.clear();
        self.refusals.clear();
        self.moving.clear();
    }

    /// Has the processor fetch what every call reads first, all at once instead of one after the other.
    fn fetch(&self) {
        const LINE: usize = 64;
        let start = std::ptr::from_ref(self) as usize;
        // A length that the compiler does not know: unrolled, the loop would be longer than much of the rest.
        let end = start + std::hint::black_box(size_of::<Engine>());
        for line in (start..end).step_by(LINE) {
            mem::prefetch(line);
        }
        self.snapshot.hints.fetch_first();
    }

    fn open_records(&mut self) {
        let folder = conf::folder(Some(&self.fields));
        let count = self.settings.config.slurm.records;
        self.records.open(&folder, count, self.table.len());
        if self.settings.config.policy.weighs() {
            self.standing.recall(&mut self.records);
        }
    }

    /// Has reasons kept in sight where gpuos steers. Called where slurmctld reads its tables, when it has
    /// become the process and the controller that it is going to be.
    pub(crate) fn keep_reasons(&self) {
        if self.settings.config.slurm.steer && self.trust != Trust::Refused {
            keeper::start(self.release, self.api, self.layout);
        } else {
            self.drop_reasons();
        }
    }

    pub(crate) fn drop_reasons(&self) {
        keeper::stop();
        reasons::clear();
    }

    /// Takes nodes out of a GPU job's candidates that slurmctld does not know well enough yet; also when it
    /// asks for the time of a start, lest backfill plan a start that is then refused.
    fn keep_out<'a>(&mut self, call: &'a Call) -> Option<KeptOut<'a>> {
        match self.settings.config.slurm.steer && registration::matters(self.release) {
            true => self.keep_out_unregistered(call),
            false => None,
        }
    }

    /// The same for a job without GRES that comes before any record is trusted: it takes whole nodes, and with
    /// them all their GPUs.
    fn keep_out_untrusted<'a>(&mut self, call: &'a Call) -> Option<KeptOut<'a>> {
        let whole = self.trust == Trust::None
            && registration::matters(self.release)
            && check::whole_nodes(self.layout, call.job) == Some(true)
            && self.comes_to_trust_nodes(call.job);
        match whole {
            true => self.keep_out(call),
            false => None,
        }
    }

    #[inline(never)]
    fn keep_out_unregistered<'a>(&mut self, call: &'a Call) -> Option<KeptOut<'a>> {
        // SAFETY: the job record and bitmap of this call, locked by slurmctld for its length, of the
        // release whose layout the self-check accepted.
        unsafe {
            let job = Job::new(call.job, self.layout)?;
            let candidates = Bitmap::new(call.nodes)?;
            if !job.gets_all_gres() && self.gpus_asked(job).next().is_none() {
                return None;
            }
            let source = self.source();
            self.registration
                .keep_out(self.release, &source, candidates)
        }
    }

    /// Where snapshots read from.
    pub(crate) fn source(&self) -> Source<'static> {
        Source {
            api: self.api,
            layout: self.layout,
            table: self.table,
            gpu_id: self.gpu.id,
            shard_id: self.shards.id(),
            memory_counts: self.parameters & CR_MEMORY != 0,
        }
    }

    /// Makes the cluster model, when there is none or a node has changed.
    pub(crate) fn model(&mut self) -> bool {
        self.planner.is_some() && !self.snapshot.changed || self.new_model()
    }

    // Apart, so that calls that need none do not pay for its place on the stack.
    #[cold]
    #[inline(never)]
    fn new_model(&mut self) -> bool {
        // SAFETY: called from job_test, under slurmctld's node write lock.
        match unsafe { cluster::build(&self.source(), &self.settings) } {
            Ok(cluster) => {
                let net = self.settings.config.recipe(&cluster);
                self.records.model(&cluster, net.as_ref());
                self.traffic = self.settings.config.traffic(&cluster);
                self.standing.conditions = self.settings.config.conditions(&cluster);
                self.planner = Some(Planner::new(cluster));
                self.new_book();
                self.mix.tell_anew();
                self.has_threads = (0..self.table.len()).any(|index| {
                    // SAFETY: as above.
                    let node = unsafe { Node::new(self.table.raw(index), self.layout) };
                    node.is_some_and(|node| node.threads() > 1)
                });
                self.snapshot.changed = false;
                if self.traffic.is_some() || self.neighbours.book.is_some() {
                    self.count_running();
                }
                true
            }
            Err(why) => {
                log::debug(&format!(
                    "no model of the cluster, this job is placed by cons_tres: {why}"
                ));
                false
            }
        }
    }

    /// Counts what all running jobs hold: those that started before the layout was trusted or the model made.
    pub(crate) fn count_running(&mut self) {
        let mut records = Vec::new();
        // SAFETY: called from job_test, under slurmctld's job lock; pushing an address does not unwind.
        unsafe { for_each_job(self.api, &mut |record| records.push(record as usize)) };
        for record in records {
            let record = record as *mut c_void;
            // SAFETY: a record of Slurm's own list, under the lock.
            if unsafe { Job::new(record, self.layout) }.is_some_and(Job::holds_resources) {
                self.note_holdings(record);
            }
        }
    }

    fn note_holdings(&mut self, record: *mut c_void) {
        if !self.reads_records() {
            return;
        }
        if !self.trusts_held {
            let Ok(fits) = check::held(self.layout, record) else {
                return;
            };
            self.trusts_held = fits;
        }
        // SAFETY: Slurm's record of a job that has its nodes, under the job lock; what it holds, or what
        // an earlier job held, was checked by reads that cannot fault.
        let Some(job) = (unsafe { Job::new(record, self.layout) }) else {
            return;
        };
        let mut held = Vec::new();
        let asked: Vec<JobGres<'_>> = match self.trust {
            Trust::Selection => self.gpus_asked(job).collect(),
            _ => Vec::new(),
        };
        job.for_each_held(|node, cpus, memory_mib| {
            let gpus = asked.iter().map(|gpus| gpus.selected_count(node));
            held.push(Held {
                node: node as u32,
                cpus,
                memory_mib,
                gpus: u32::try_from(gpus.sum::<u64>()).unwrap_or(0),
                cores: None,
            })
        });
        self.note_cores(job, &mut held);
        if self.traffic.is_some() {
            self.note_traffic(job, &held);
        }
        self.note_neighbour(job, &held);
        if self.slices.on {
            self.note_slices(job, &held);
        }
        if self.moving.on {
            self.note_moves(&held);
        }
        if let Some(gpus) = self.one_type(job) {
            let per_task = gpus.per_task() * u64::from(job.tasks());
            let in_all = (gpus.per_node() * held.len() as u64).max(gpus.per_job());
            let typed = gpus.type_name().is_some();
            self.mix_runs(job.id(), in_all.max(per_task), typed, &held);
        }
        let part = self.follows_part(job).then(|| job.partition_key());
        let kind = (job.sharing(), part);
        self.ledger.set(job.id(), held, kind, ends::of_running(job));
    }

    /// Counts a job among the gangs on the network, if it has GPUs on several nodes, of one type or of
    /// several.
    fn note_traffic(&mut self, job: Job<'_>, held: &[Held]) {
        let asked: Vec<JobGres<'_>> = self.gpus_asked(job).collect();
        let selected = match self.trust {
            Trust::Selection => &asked[..],
            _ => &[],
        };
        let on = |one: &Held| {
            let bits = selected
                .iter()
                .filter_map(|gpus| gpus.selected(one.node as usize));
            // Empty = any of the node's.
            let all = bits.fold(0, |all, bits| all | bits.chunk(0));
            (one.node, GpuSet(all))
        };
        let nodes = match asked.is_empty() {
            true => Vec::new(),
            false => held.iter().map(on).collect(),
        };
        if let Some(traffic) = &mut self.traffic {
            traffic.start(job.id(), nodes);
            self.records.gang(job.id(), traffic);
        }
    }
}
