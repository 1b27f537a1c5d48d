//! The state of the plugin in slurmctld, and how far it trusts what it reads there.

use std::ffi::c_void;
use std::sync::{Mutex, TryLockError};

use slurm_ffi::api::Api;
use slurm_ffi::check::{self, Misfit};
use slurm_ffi::handles::{Job, NodeTable};
use slurm_ffi::layout::Layout;
use slurm_ffi::needs::{CR_CORE, CR_MEMORY};
use slurm_ffi::release::Release;
use slurm_ffi::{conf, log, mem};

use crate::abi::call::Call;
use crate::abi::frame::Frame;
use crate::abi::source::Source;
use crate::decide::Placing;
use crate::decide::cluster_state::ClusterState;
use crate::gres::registration;
use crate::messages;
use crate::read::settings;
use crate::read::site::Site;
use crate::read::trust::{self, Checked, LayoutTrust, Selections, Trust, Verdict};
use crate::tell::keeper;
use crate::tell::reasons;

/// slurmctld calls under its node write lock, one call at a time; the lock here is only ever found
/// taken by a call of another kind, which then passes through rather than wait.
static ENGINE: Mutex<Option<Engine>> = Mutex::new(None);

/// Everything that steering needs.
pub struct Engine {
    pub(crate) site: Site,
    pub(crate) trust: LayoutTrust,
    pub(crate) cluster: ClusterState,
    pub(crate) placing: Placing,
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
            engine.site.settings.announce(release, engine.site.layout);
            if let Ok(mut slot) = ENGINE.lock() {
                *slot = Some(engine);
            }
        }
        Err(why) => pass_through(&why),
    }
}

fn pass_through(why: &str) {
    log::error(&messages::passing_through(why));
}

fn prepare(release: Release) -> Result<Engine, String> {
    if let Some(why) = mem::detour()? {
        log::info(&messages::read_through_a_pipe(why));
    }
    let fields = conf::fields(release)?;
    // One per process: slurmctld initialises its select plugin once.
    let layout: &'static Layout = Box::leak(Box::new(Layout::of(&fields)?));
    let strings = check::Strings::of(&fields)?;
    let api = Api::get().map_err(|symbol| messages::not_exported(release, symbol))?;
    let table = NodeTable::find().ok_or_else(messages::no_node_table)?;
    let misfit = |why| messages::configuration_misfits(why);
    let parameters = check::configuration(layout).map_err(misfit)?;
    let settings = settings::load(&fields);
    let site = Site {
        api,
        layout,
        strings,
        table,
        gpu: check::Gres::gpu(api),
        parameters,
        settings,
        fields,
        release,
    };
    Ok(Engine {
        trust: LayoutTrust::default(),
        cluster: ClusterState::new(&site),
        placing: Placing {
            hides_cores: release < CORES_ARE_CHEAP_FROM && parameters & !CR_MEMORY == CR_CORE,
            ..Placing::default()
        },
        site,
    })
}

/// From this release on cons_tres takes no longer over more idle cores. Before, it drops them one by one,
/// and for each looks through all others of the socket.
const CORES_ARE_CHEAP_FROM: Release = Release::new(24, 5, 0);

/// Runs `work` with the state, where there is some and no other call has it.
pub fn with<T>(work: impl FnOnce(&mut Engine) -> T) -> Option<T> {
    match ENGINE.try_lock() {
        Ok(mut slot) => slot.as_mut().map(work),
        Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => None,
    }
}

impl Engine {
    /// Slurm's records, for one call or event.
    ///
    /// # Safety
    /// The caller holds slurmctld's job and node write locks for `'a`.
    pub(crate) unsafe fn source<'a>(&self) -> Source<'a> {
        // SAFETY: by the caller.
        unsafe { self.site.source(self.cluster.shards.id()) }
    }

    /// What the phases of a call go by, once the records that it is about are trusted as far as they will be read.
    pub(crate) fn frame<'a>(&mut self, call: &'a Call) -> Option<Frame<'a>> {
        // SAFETY: slurmctld calls job_test under its job and node write locks, and `call` is gone when it returns.
        let source = unsafe { self.source() };
        if self.trusts(&source, call) {
            self.cluster
                .shards
                .detect_shards(&source, self.site.release);
        } else if !self.trusts_whole_nodes(&source, call) {
            return None;
        }
        // SAFETY: as above. This job's record was held against the layout table, or those of jobs and nodes before it.
        unsafe { Frame::new(call, self.source()) }
    }

    /// Whether this call may be steered: it is about a job that asks for GPUs, and the layout table fits.
    fn trusts(&mut self, source: &Source<'_>, call: &Call) -> bool {
        #[cfg(debug_assertions)]
        self.trust.check_shifts(source, call.job);
        self.trust.reads_records() || self.check_records(source, call)
    }

    /// Whether a call is about a job without GRES that comes before any record is trusted, and that may be read: it takes
    /// whole nodes, and with them all their GPUs.
    fn trusts_whole_nodes(&mut self, source: &Source<'_>, call: &Call) -> bool {
        let site = &self.site;
        self.trust.level == Trust::None
            && (self.cluster.service.serves(site) || registration::matters(site.release))
            && check::whole_nodes(site.layout, call.job) == Some(true)
            && self.comes_to_trust_nodes(source, call.job)
    }

    /// Has Slurm's own functions make probe objects, once: where slurmctld makes its table of nodes. In `init` it
    /// holds locks that some of these functions take, and when the first job comes more waits for it.
    pub(crate) fn probe_once(&mut self) {
        if let Some(why) = self.trust.probe_once(&self.site) {
            pass_through(&messages::objects_misfit(why));
        }
    }

    #[cold]
    #[inline(never)]
    fn check_records(&mut self, source: &Source<'_>, call: &Call) -> bool {
        let refused = self.trust.level == Trust::Refused;
        if !self.trust.may_recheck(trust::id_of(&self.site, call.job)) {
            return false;
        }
        // Where slurmctld made no table of nodes since it started.
        self.probe_once();
        if self.trust.is_refused_for_good() {
            return false;
        }
        self.trust.level = Trust::None;
        let trusted = self.comes_to_trust(source, call);
        match trusted {
            true if refused => self.keep_reasons(),
            // A job without GRES takes nothing back.
            false if refused => self.trust.level = Trust::Refused,
            _ => {}
        }
        trusted
    }

    fn comes_to_trust(&mut self, source: &Source<'_>, call: &Call) -> bool {
        let Some(checked) = self.trust.check_first(&self.site, source, call) else {
            return false;
        };
        self.apply_check(call.job, checked, Trust::Records);
        let trusted = self.trust.level == Trust::Records;
        if trusted {
            self.placing.hides_cores &= source.check_cores();
            self.count_running(source);
        }
        trusted
    }

    /// Whether the record of a job without GRES and those of all nodes may be read: what such a job shows is
    /// not enough to trust all others.
    #[cold]
    #[inline(never)]
    fn comes_to_trust_nodes(&mut self, source: &Source<'_>, job: *mut c_void) -> bool {
        let site = &self.site;
        if check::job(site.api, site.layout, &site.strings, job, site.gpu).is_err() {
            return false;
        }
        if !self.trust.nodes {
            let checked = source.check_nodes(&site.strings, site.gpu);
            self.trust.nodes = checked.is_ok();
            if checked.is_err() {
                self.apply_check(job, checked, Trust::None);
            }
        }
        self.trust.nodes
    }

    /// Looks once more after the first choice that cons_tres accepted, before the selection is read.
    pub(crate) fn trusts_selection(&mut self, source: &Source<'_>, job: Job<'_>) -> bool {
        if let Some(checked) = self.trust.check_selection(&self.site, job) {
            self.apply_check(job.raw(), checked, Trust::Selection);
            if self.trust.level == Trust::Selection {
                // Their GPUs could not be read before.
                self.count_running(source);
            }
        }
        self.trust.level == Trust::Selection
    }

    /// Draws the conclusion from a look at a job, for all that was read.
    #[cold]
    #[inline(never)]
    fn apply_check(&mut self, job: *mut c_void, checked: Checked, next: Trust) {
        let id = trust::id_of(&self.site, job);
        let Verdict::Refused(news, trusted) = self.trust.conclude(id, checked, next) else {
            return;
        };
        self.cluster.slices.doubt();
        self.drop_reasons();
        if trusted {
            self.forget();
        }
        if let Some(why) = news {
            pass_through(&messages::records_misfit(why));
        }
    }

    /// The same for what a job shows beside GPUs.
    pub(crate) fn apply_misfit(&mut self, job: Job<'_>, doubt: Misfit) {
        self.apply_check(job.raw(), Err(doubt), Trust::Refused);
    }

    /// Whose selections may be read.
    pub(crate) fn selections(&self) -> Selections {
        self.trust.selections(self.cluster.slices.readable())
    }

    fn count_running(&mut self, source: &Source<'_>) {
        (self.cluster).count_running(&self.site, &mut self.trust, source);
    }

    /// Forgets what was read of nodes and of jobs.
    pub(crate) fn forget(&mut self) {
        self.cluster.forget();
        self.placing.refusals.clear();
    }

    /// Has the processor fetch what every call reads first, all at once instead of one after the other.
    pub(crate) fn fetch(&self) {
        const LINE: usize = 64;
        let start = std::ptr::from_ref(self) as usize;
        // A length that the compiler does not know: unrolled, the loop would be longer than much of the rest.
        let end = start + std::hint::black_box(size_of::<Engine>());
        for line in (start..end).step_by(LINE) {
            mem::prefetch(line);
        }
        self.cluster.prefetch.fetch_first();
    }

    /// Has reasons kept in sight where gpuos steers. Called where slurmctld reads its tables, when it has
    /// become the process and the controller that it is going to be.
    pub(crate) fn keep_reasons(&self) {
        let site = &self.site;
        if site.steers() && self.trust.level != Trust::Refused {
            keeper::start(site.release, site.api, site.layout);
        } else {
            self.drop_reasons();
        }
    }

    fn drop_reasons(&self) {
        keeper::stop();
        reasons::clear();
    }
}
