//! What every phase of one `job_test` goes by: the job, its candidates, and what is asked.

use slurm_ffi::bits::Bitmap;
use slurm_ffi::handles::{Job, Node};
use slurm_ffi::release::Release;

use crate::abi::call::{Call, Mode};
use crate::abi::clock;
use crate::abi::source::Source;

/// One `job_test`, with the records that it is about. Made once for a call.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// Slurm's arguments, and how to ask cons_tres.
    pub call: &'a Call,
    /// All other records.
    pub source: Source<'a>,
    /// The job.
    pub job: Job<'a>,
    /// The candidates; the choice, once there is one.
    pub candidates: Bitmap<'a>,
    /// What is asked.
    pub mode: Mode,
    /// When the call came, in seconds since 1970.
    pub now: i64,
}

impl<'a> Frame<'a> {
    /// Takes the arguments of a call for what they are. `None` where they are something else.
    ///
    /// # Safety
    /// `source` was made for this very call, whose job record slurmctld has write-locked and whose bitmap is the
    /// caller's own, and the job's record fits the layout table.
    pub unsafe fn new(call: &'a Call, source: Source<'a>) -> Option<Frame<'a>> {
        // SAFETY: by the caller.
        let (job, candidates) = unsafe { (source.job_at(call.job)?, Bitmap::new(call.nodes)?) };
        Some(Frame {
            call,
            source,
            job,
            candidates,
            mode: call.mode(),
            now: clock::now(),
        })
    }

    /// Whether the job starts, should the answer be yes.
    pub fn is_start(&self) -> bool {
        self.mode == Mode::RunNow
    }

    /// Whether it is asked when the job could start.
    pub fn is_forecast(&self) -> bool {
        self.mode == Mode::WillRun
    }

    /// Whether a forecast that is answered says "later". By the time of now: cons_tres may have taken a while.
    pub fn starts_later(&self) -> bool {
        self.is_forecast() && self.job.start_time() > clock::now()
    }

    /// Whether a forecast that is answered says a time after the one from which on it is asked for.
    pub fn starts_later_than_asked(&self, release: Release) -> bool {
        let (from, _) = self.call.asked_between(release);
        self.starts_later() && self.job.start_time() > from
    }

    /// Runs `ask`, in a forecast with cons_tres looking no further than to the time from which on it is asked for.
    pub fn asking_for_now<T>(&self, release: Release, ask: impl FnOnce() -> T) -> T {
        if !self.is_forecast() {
            return ask();
        }
        let (from, _) = self.call.asked_between(release);
        self.call.asking_until(release, from.max(self.now), ask)
    }

    /// What Slurm orders nodes by: of lower weight first.
    pub fn weight(&self, node: Node<'_>) -> u64 {
        node.weight_for(self.is_forecast())
    }

    /// The candidates' indices, lowest first.
    pub fn indices(&self) -> impl Iterator<Item = usize> + use<'a> {
        let (candidates, count) = (self.candidates, self.source.nodes());
        candidates.iter().take_while(move |index| *index < count)
    }

    /// Whether a node that the job names (`--nodelist`) is not among its candidates: Slurm need not be asked then.
    pub fn lacks_a_named_node(&self) -> bool {
        let named = self.job.required_nodes();
        named.is_some_and(|named| named.iter().any(|node| !self.candidates.test(node)))
    }
}
