//! Calls into the cons_tres that stands behind this plugin.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicUsize, Ordering};

use slurm_ffi::api::Api;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::release::Release;

use crate::abi::forward;
use crate::abi::masks::Masks;
use crate::abi::shards_of_call::ShardsOfCall;

/// The functions of cons_tres that gpuos calls itself.
#[derive(Clone, Copy)]
pub enum Entry {
    /// `init`
    Init,
    /// `fini`
    Fini,
    /// `select_p_job_test`
    JobTest,
    /// `select_p_select_nodeinfo_set`
    NodeinfoSet,
    /// `select_p_job_fini`
    JobFini,
    /// `select_p_job_resized`
    JobResized,
    /// `select_p_job_expand`
    JobExpand,
    /// `select_p_node_init`
    NodeInit,
    /// `select_p_reconfigure`
    Reconfigure,
}

const NAMES: [&CStr; 9] = [
    c"init",
    c"fini",
    c"select_p_job_test",
    c"select_p_select_nodeinfo_set",
    c"select_p_job_fini",
    c"select_p_job_resized",
    c"select_p_job_expand",
    c"select_p_node_init",
    c"select_p_reconfigure",
];

static ADDRESSES: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

/// Looks up every [`Entry`] in the cons_tres that [`forward::open`] loaded.
pub fn bind() {
    for (slot, name) in ADDRESSES.iter().zip(NAMES) {
        slot.store(
            forward::symbol(name).map_or(0, |address| address as usize),
            Ordering::Release,
        );
    }
}

fn address(entry: Entry) -> Option<usize> {
    let address = ADDRESSES[entry as usize].load(Ordering::Acquire);
    (address != 0).then_some(address)
}

/// Calls an entry with up to two pointer arguments. SLURM_ERROR where cons_tres is not loaded.
pub fn forward_plain(entry: Entry, a: *mut c_void, b: *mut c_void) -> c_int {
    let Some(address) = address(entry) else {
        return -1;
    };
    // SAFETY: the entries of this kind take no, one or two pointers and return int; surplus arguments
    // stay unread in registers. The pointers are those that Slurm passed to the entry of the same name.
    unsafe {
        transmute::<usize, unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int>(address)(a, b)
    }
}

type JobTest = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    u32,
    u32,
    u32,
    u16,
    *mut c_void,
    *mut *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// What a call of `job_test` asks for (low byte of its mode).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Start the job now.
    RunNow,
    /// When could it start.
    WillRun,
    /// Anything else: never steered.
    Other,
}

/// Slurm's "no" to a job that cannot start now.
pub const NOT_NOW: c_int = -1;

/// How many nodes Slurm asks for.
#[derive(Clone, Copy)]
pub struct Counts {
    /// Fewest.
    pub min: u32,
    /// Most.
    pub max: u32,
    /// Wanted.
    pub wanted: u32,
}

/// The arguments of one `select_p_job_test`.
pub struct Call {
    /// `job_record_t *`
    pub job: *mut c_void,
    /// `bitstr_t *`: candidates in, choice out.
    pub nodes: *mut c_void,
    /// Number of nodes.
    pub counts: Counts,
    /// The fewest nodes that cons_tres is asked for.
    fewest: Cell<u32>,
    mode: u16,
    preemptable: *mut c_void,
    preempted: *mut *mut c_void,
    /// Whether cons_tres may preempt, where Slurm says so.
    may_preempt: Cell<bool>,
    excluded: *mut c_void,
    will_run: *mut c_void,
    answered: Cell<Option<c_int>>,
    /// Whether Slurm came with a list of jobs to preempt already.
    had_preempted: bool,
    /// GPUs that are out of service: nobody is given them in this call.
    pub out_of_service: Masks,
    /// Shared GPUs that are in use and whose mark Slurm had lost.
    pub shared: Masks,
    /// MIG-switchable GPUs that are not for the job of this call.
    pub other_mode: Masks,
    /// Where the shards are that the job asks for, if it starts now and the release may give others.
    pub shards: ShardsOfCall,
    /// Those of GPUs that count as given, while cons_tres is asked.
    closed_shards: Masks,
}

impl Call {
    #[allow(clippy::too_many_arguments, reason = "the signature is Slurm's")]
    pub fn new(
        job: *mut c_void,
        nodes: *mut c_void,
        min_nodes: u32,
        max_nodes: u32,
        req_nodes: u32,
        mode: u16,
        preemptable: *mut c_void,
        preempted: *mut *mut c_void,
        excluded: *mut c_void,
        will_run: *mut c_void,
    ) -> Call {
        Call {
            job,
            nodes,
            counts: Counts {
                min: min_nodes,
                max: max_nodes,
                wanted: req_nodes,
            },
            fewest: Cell::new(min_nodes),
            mode,
            preemptable,
            preempted,
            may_preempt: Cell::new(true),
            excluded,
            will_run,
            answered: Cell::new(None),
            // SAFETY: the argument of this call: null, or the place of a list.
            had_preempted: !preempted.is_null() && unsafe { !(*preempted).is_null() },
            out_of_service: Masks::default(),
            shared: Masks::default(),
            other_mode: Masks::default(),
            shards: ShardsOfCall::default(),
            closed_shards: Masks::default(),
        }
    }

    /// Whether cons_tres may neither preempt nor has to keep out of what is reserved.
    pub fn is_plain(&self, release: Release) -> bool {
        self.preemptable().is_null() && (self.excluded.is_null() || self.excludes_nothing(release))
    }

    /// Before 23.11 what is reserved is a bitmap of cores, and there is none where nothing is. Later ones pass
    /// a `resv_exc_t` in any case: six pointers, to cores and to GRES (src/slurmctld/slurmctld.h).
    fn excludes_nothing(&self, release: Release) -> bool {
        // SAFETY: the argument of this call, not null, and of this size from that release on.
        let part = |at: usize| unsafe { self.excluded.cast::<usize>().add(at).read() };
        release >= Release::new(23, 11, 0) && (0..6).all(|at| part(at) == 0)
    }

    /// The time from which on a forecast is asked for (0 = now), and until when it is of use. Before 24.11
    /// nobody says.
    pub fn asked_between(&self, release: Release) -> (i64, Option<i64>) {
        match self.will_run(release) {
            Some(times) => {
                // SAFETY: `will_run` vouches for both.
                let (from, until) = unsafe { (times.read(), times.add(1).read()) };
                (from, (until != 0).then_some(until))
            }
            None => (0, None),
        }
    }

    /// Runs `work` in which cons_tres looks no further than to this time, where the release lets it be told.
    pub fn asking_until<T>(&self, release: Release, until: i64, work: impl FnOnce() -> T) -> T {
        struct Back(*mut i64, i64);
        impl Drop for Back {
            fn drop(&mut self) {
                // SAFETY: as below; the call is not over.
                unsafe { self.0.write(self.1) };
            }
        }
        let _back = self.will_run(release).map(|times| {
            // SAFETY: `will_run` vouches for both.
            unsafe {
                let end = times.add(1);
                let back = Back(end, end.read());
                end.write(until);
                back
            }
        });
        work()
    }

    /// From 24.11 on, the caller's `will_run_data_t`: begin and end, both time_t (src/interfaces/select.h).
    fn will_run(&self, release: Release) -> Option<*mut i64> {
        let known = release >= Release::new(24, 11, 0) && self.mode() == Mode::WillRun;
        (known && !self.will_run.is_null()).then(|| self.will_run.cast())
    }

    /// What the call asks for.
    pub fn mode(&self) -> Mode {
        match self.mode & 0xff {
            0 => Mode::RunNow,
            2 => Mode::WillRun,
            _ => Mode::Other,
        }
    }

    /// Whether it is of a kind that is steered at all. TEST_ONLY asks "could it ever run": that is
    /// for Slurm alone to say.
    pub fn may_be_steered(&self) -> bool {
        self.mode() != Mode::Other && !self.job.is_null() && !self.nodes.is_null()
    }

    /// Whether a lack of free GPUs is the answer: cons_tres could only find the same, after a longer search.
    /// When the job could start, and whether others make way for it, is for cons_tres to say.
    pub fn refuses_for_lack_of_gpus(&self) -> bool {
        self.mode() == Mode::RunNow && self.preemptable().is_null()
    }

    /// Jobs that may be preempted, or null.
    pub fn preemptable(&self) -> *mut c_void {
        match self.may_preempt.get() {
            true => self.preemptable,
            false => std::ptr::null_mut(),
        }
    }

    /// Runs `work` in which cons_tres is asked for so many nodes at least, no more than Slurm's most.
    pub fn asking_for_nodes<T>(&self, nodes: u32, work: impl FnOnce() -> T) -> T {
        struct Back<'a>(&'a Cell<u32>, u32);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }
        let fewest = nodes.clamp(self.counts.min, self.counts.max.max(self.counts.min));
        let _back = Back(&self.fewest, self.fewest.replace(fewest));
        work()
    }

    /// Whether GPUs that are free count as given in this call.
    pub fn masks_gpus(&self) -> bool {
        !self.out_of_service.is_empty() || !self.other_mode.is_empty()
    }

    /// Runs `work` in which nobody is preempted.
    pub fn without_preemption<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.may_preempt.replace(false);
        let done = work();
        self.may_preempt.set(before);
        done
    }

    /// Nobody is preempted until [`Call::skips_preemption`].
    pub fn spare(&self) {
        self.may_preempt.set(self.preemptable().is_null());
    }

    /// Preemption is what is left. Returns whether it was kept back.
    pub fn skips_preemption(&self) -> bool {
        !self.may_preempt.replace(true)
    }

    /// Asks cons_tres, with the node bitmap as it stands now.
    pub fn forward(&self) -> c_int {
        let code = match self.may_preempt.get() {
            true => self.forward_with_preemption(),
            false => self.forward_without_preemption(),
        };
        if code == 0 {
            self.answered.set(Some(code));
        }
        code
    }

    fn forward_with_preemption(&self) -> c_int {
        if self.shards.has_any() {
            // cons_tres, too, begins with what is there without preemption. Where that is not enough, it looks whose
            // jobs to preempt: their GPUs may not be closed to it then, and it gives nothing before they are gone.
            // SAFETY: the bitmap of this call, locked by slurmctld for its length.
            let nodes = unsafe { Bitmap::new(self.nodes) };
            let mut saved = Vec::new();
            nodes.iter().for_each(|nodes| nodes.save(&mut saved));
            let code = self.forward_without_preemption();
            if code == 0 || self.preemptable.is_null() {
                return code;
            }
            nodes.iter().for_each(|nodes| nodes.restore(&saved));
        }
        self.ask(self.preemptable, self.preempted)
    }

    /// Asks cons_tres without leave to preempt.
    pub fn forward_without_preemption(&self) -> c_int {
        let _open_again = self.closed_shards.scope();
        self.shards.close(&self.closed_shards, self.nodes);
        self.ask(std::ptr::null_mut(), std::ptr::null_mut())
    }

    fn ask(&self, preemptable: *mut c_void, preempted: *mut *mut c_void) -> c_int {
        let Some(address) = address(Entry::JobTest) else {
            return -1;
        };
        // SAFETY: the arguments are Slurm's own, in its order; see exports for the tenth.
        unsafe {
            transmute::<usize, JobTest>(address)(
                self.job,
                self.nodes,
                self.fewest.get(),
                self.counts.max,
                self.counts.wanted,
                self.mode,
                preemptable,
                preempted,
                self.excluded,
                self.will_run,
            )
        }
    }

    /// The last answer does not count: the candidates are as they came again.
    pub fn unanswered(&self) {
        self.answered.set(None);
    }

    /// The last answer does not count, nor whom cons_tres would preempt for it.
    pub fn take_back(&self, api: &Api) {
        self.unanswered();
        if self.preempted.is_null() || self.had_preempted {
            return;
        }
        // SAFETY: the argument of this call, the place of a list that cons_tres has made in it, or of null. The list owns
        // none of its jobs.
        unsafe {
            let list = self.preempted.replace(std::ptr::null_mut());
            if !list.is_null() {
                (api.list_destroy)(list);
            }
        }
    }

    /// For the way out after a panic: asks cons_tres unless it has already said yes, in which case
    /// asking again would choose twice.
    pub fn forward_once(&self) -> c_int {
        self.answered.get().unwrap_or_else(|| self.forward())
    }
}
