//! The sentence that squeue shows while a job that asks for GPUs waits.
//!
//! slurmctld clears a job's reason right after a refused RUN_NOW, and calls no plugin before another job is
//! tested. So sentences are remembered here, and a thread ([`crate::tell::keeper`]) puts them back. Where there is
//! no such thread, the next test of another job does.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};

use gpuos_placement::explain::Refusal;
use slurm_ffi::api::{self, Api};
use slurm_ffi::handles::Job;
use slurm_ffi::log;

use crate::abi::call::Mode;
use crate::abi::clock;
use crate::abi::frame::Frame;

/// Slurm's WAIT_RESOURCES, the same number in every release.
const WAIT_RESOURCES: u32 = 3;
/// Slurm's WAIT_PRIORITY.
const WAIT_PRIORITY: u32 = 1;

/// Sentences that are remembered at most; of more waiting jobs, each has its own until it is refused again.
const MOST: usize = 1024;

/// What is said of a job.
#[derive(PartialEq, Debug)]
enum Reason {
    /// A sentence that was made when the job was decided.
    Text(String),
    /// What becomes one when it is shown.
    Refused(Refusal),
}

impl Reason {
    fn sentence(&self) -> String {
        match self {
            Reason::Text(text) => text.clone(),
            Reason::Refused(refusal) => format!("gpuos: {refusal}"),
        }
    }
}

/// Jobs that wait, by id, with the sentence of each. Decisions and the thread use it under slurmctld's job write lock,
/// so neither finds it locked by the other; a reload may be at it, and then a sentence comes a round later.
static WAITING: Mutex<Vec<(u32, Reason)>> = Mutex::new(Vec::new());
/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The thread that keeps them in sight: pid of its process and its number there. 0 = none.
pub static KEEPER: AtomicU64 = AtomicU64::new(0);
/// Whether slurmctld has cleared one of them, or is about to.
static LOST: AtomicBool = AtomicBool::new(false);

fn has_keeper() -> bool {
    KEEPER.load(Ordering::Acquire) != 0
}

fn waiting() -> Option<MutexGuard<'static, Vec<(u32, Reason)>>> {
    match WAITING.try_lock() {
        Ok(waiting) => Some(waiting),
        // Each step leaves it whole.
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn with(work: impl FnOnce(&mut Vec<(u32, Reason)>)) {
    if let Some(mut waiting) = waiting() {
        work(&mut waiting);
        COUNT.store(waiting.len(), Ordering::Release);
    }
}

/// Makes room for all sentences, so that remembering one allocates nothing.
pub fn reserve() {
    with(|waiting| waiting.reserve_exact(MOST.saturating_sub(waiting.len())));
}

/// Forgets all.
pub fn clear() {
    with(Vec::clear);
}

/// Whether any sentence is remembered.
pub fn any() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

/// Whether a sentence was cleared since this was asked last.
pub fn lost() -> bool {
    LOST.swap(false, Ordering::AcqRel)
}

/// Where a job is among those that wait, or would be: every decision asks, so it looks at a few only.
fn place(waiting: &[(u32, Reason)], job: u32) -> Result<usize, usize> {
    waiting.binary_search_by_key(&job, |(id, _)| *id)
}

fn remember(job: u32, said: Reason) {
    with(|waiting| match place(waiting, job) {
        Ok(at) => waiting[at].1 = said,
        Err(at) if waiting.len() < MOST => waiting.insert(at, (job, said)),
        Err(_) => {}
    });
}

/// Counts of an earlier refusal stay until the next one: a forecast says nothing in their place.
fn forget(job: u32) {
    with(|waiting| {
        if let Ok(at) = place(waiting, job)
            && matches!(waiting[at].1, Reason::Text(_))
        {
            waiting.remove(at);
        }
    });
}

/// The sentence that is said of a job.
pub fn of(job: u32) -> Option<String> {
    let waiting = waiting()?;
    match &waiting[place(&waiting, job).ok()?].1 {
        Reason::Text(text) => Some(text.clone()),
        Reason::Refused(_) => None,
    }
}

/// Whether a sentence is said of a job.
pub fn has_text(job: u32) -> bool {
    let text = |waiting: MutexGuard<'_, Vec<(u32, Reason)>>| {
        let at = place(&waiting, job).ok()?;
        Some(matches!(waiting[at].1, Reason::Text(_)))
    };
    waiting().and_then(text).unwrap_or(false)
}

/// Remembers why a job was refused, whose reason slurmctld clears when it has the answer. Where no thread would show it,
/// Slurm's own reason stays: it is true, and the next decision has better things to do.
pub fn refused(job: u32, refusal: Refusal) {
    if has_keeper() {
        remember(job, Reason::Refused(refusal));
        LOST.store(true, Ordering::Release);
    }
}

/// A job is being decided: what was said of it holds no longer. Where no thread does it, other jobs' sentences
/// are put back.
pub fn begin(frame: &Frame<'_>) {
    if any() {
        forget(frame.job.id());
        if !has_keeper() && lost() {
            restore(frame.source.api, |id| frame.source.job(id));
        }
    }
}

/// Has a job's sentence stand in its record: at once in a forecast, which leaves the reason alone, and else after
/// slurmctld has written its own.
pub fn publish(frame: &Frame<'_>, sentence: String) {
    match frame.mode {
        Mode::WillRun => show(frame.source.api, frame.job, sentence),
        _ => later(frame.job.id(), sentence),
    }
}

/// Remembers why a job waits, whose reason slurmctld clears when it has the answer.
pub fn later(job: u32, sentence: String) {
    remember(job, Reason::Text(sentence));
    LOST.store(true, Ordering::Release);
    if !has_keeper() {
        note_change();
    }
}

/// Shows a sentence on a job that waits for resources; any other reason is Slurm's to tell.
pub fn show(api: &Api, job: Job<'_>, sentence: String) {
    if matches!(job.reason(), WAIT_RESOURCES | WAIT_PRIORITY | 0) {
        log::debug(&format!("job {} waits: {sentence}", job.id()));
        job.set_reason(api, WAIT_RESOURCES, &sentence);
        remember(job.id(), Reason::Text(sentence));
    }
}

/// Puts every sentence back that slurmctld has cleared, and forgets those of jobs that no longer wait for
/// resources.
pub fn restore<'a>(api: &Api, find: impl Fn(u32) -> Option<Job<'a>>) {
    let mut changed = false;
    with(|waiting| {
        waiting.retain(|(id, said)| {
            let Some(job) = find(*id) else {
                return false;
            };
            let ours = job.is_pending() && job.reason() == WAIT_RESOURCES;
            if ours && !job.has_reason_text() {
                job.set_reason(api, WAIT_RESOURCES, &said.sentence());
                changed = true;
            }
            ours
        });
    });
    if changed {
        note_change();
    }
}

/// Tells slurmctld that a job has changed, as it does itself wherever it sets a reason.
fn note_change() {
    static LAST: OnceLock<Option<usize>> = OnceLock::new();
    let last = LAST.get_or_init(|| api::symbol(c"last_job_update").map(|last| last as usize));
    if let Some(last) = *last {
        let last = (last as *mut c_void).cast::<libc::time_t>();
        // SAFETY: slurmctld's `time_t last_job_update`; all callers are under its job write lock.
        unsafe { *last = clock::now() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_and_replaced() {
        reserve();
        let room = waiting().expect("free").capacity();
        // In no order: a multiplier that has no divisor in common with the number of jobs.
        let most = MOST as u32;
        for job in (0..most).map(|n| n * 389 % most) {
            remember(job, Reason::Text(format!("job {job}")));
        }
        for job in most..most + 10 {
            remember(job, Reason::Text(format!("job {job}")));
        }
        remember(3, Reason::Text("again".into()));
        forget(5);
        forget(most + 5);
        remember(5, Reason::Text("job 5".into()));
        let all = waiting().expect("free");
        assert_eq!((all.len(), all.capacity()), (MOST, room));
        assert_eq!(all.iter().filter(|(id, _)| *id == 3).count(), 1);
        for (n, (job, sentence)) in (0..).zip(all.iter()) {
            let expected = match n {
                3 => "again".into(),
                _ => format!("job {n}"),
            };
            assert_eq!((*job, sentence), (n, &Reason::Text(expected)));
        }
        drop(all);
        assert!(any());
        clear();
        assert!(!any());
        // Of a release without a thread: the next decision looks.
        later(7, "waits".into());
        assert!(lost() && !lost());
        clear();
    }
}
