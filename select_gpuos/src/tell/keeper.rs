//! The one thread of this plugin, in a slurmctld that gpuos steers: it puts reasons back that slurmctld has
//! cleared ([`crate::tell::reasons`]).
//!
//! It looks a few times a second, so that whoever loses a reason stores one flag and wakes nobody. It takes
//! slurmctld's job write lock, holding no other lock, and not at all once slurmctld is ending. Nobody ever waits
//! for the thread: to stop it is to withdraw its token, which it checks under the lock. The plugin is linked
//! so that it stays mapped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use slurm_ffi::api::Api;
use slurm_ffi::controller::Controller;
use slurm_ffi::guard;
use slurm_ffi::handles::Job;
use slurm_ffi::layout::Layout;
use slurm_ffi::log;
use slurm_ffi::release::Release;

use crate::messages;
use crate::tell::reasons::{self, KEEPER};

/// Its name, as `ps -L` shows it, and as the place where a test build panics.
const NAME: &str = "gpuos-reasons";
/// Between two looks at the flag: how long a reason is out of sight.
const NAP: Duration = Duration::from_millis(200);
/// Every so many naps remembered jobs are looked at anyway: slurmctld may refuse a job, and clear its reason,
/// without asking a select plugin.
const ROUND: u32 = 10;
/// Bytes. Slurm's own threads have a mebibyte; here there is only a log line to be made.
const STACK: usize = 512 << 10;

static NUMBER: AtomicU32 = AtomicU32::new(1);

/// Starts the thread, unless it runs. Where it cannot be, one line in the debug log says why.
pub fn start(release: Release, api: &'static Api, layout: &'static Layout) {
    let pid = u64::from(std::process::id()) << 32;
    // A process that forked away from the one with the thread has none.
    if KEEPER.load(Ordering::Acquire) >> 32 == pid >> 32 {
        return;
    }
    reasons::reserve();
    let token = pid | u64::from(NUMBER.fetch_add(1, Ordering::Relaxed));
    KEEPER.store(token, Ordering::Release);
    let started = Controller::find(release).and_then(|controller| {
        let keeper = Keeper {
            token,
            controller,
            api,
            layout,
        };
        spawn(move || keeper.run()).map_err(|e| format!("no thread: {e}"))
    });
    if let Err(why) = started {
        KEEPER.store(0, Ordering::Release);
        log::debug(&format!(
            "squeue shows gpuos's reasons only from the next job's test on: {why}"
        ));
    }
}

/// Stops the thread, without waiting for it.
pub fn stop() {
    KEEPER.store(0, Ordering::Release);
}

/// A thread with all signals blocked: slurmctld waits for its own in one place, and a thread that could take
/// SIGTERM would end the daemon unsaved.
fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    // SAFETY: plain calls on two signal sets of this function's own; a zeroed sigset_t is a valid one.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let builder = std::thread::Builder::new().name(NAME.into());
        let spawned = builder.stack_size(STACK).spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        spawned.map(drop)
    }
}

struct Keeper {
    token: u64,
    controller: Controller,
    api: &'static Api,
    layout: &'static Layout,
}

impl Keeper {
    fn run(self) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.keep())) {
            // A payload whose own drop panics would unwind out of the thread.
            std::mem::forget(payload);
            log::error(&messages::keeper_failed());
        }
        let _ = KEEPER.compare_exchange(self.token, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    fn wanted(&self) -> bool {
        KEEPER.load(Ordering::Acquire) == self.token && !guard::degraded()
    }

    fn keep(&self) {
        let mut naps = 0u32;
        while self.wanted() {
            std::thread::sleep(NAP);
            naps = naps.wrapping_add(1);
            let due = reasons::lost() || naps.is_multiple_of(ROUND);
            if due && reasons::any() && !self.controller.ends() {
                self.refresh();
            }
        }
    }

    fn refresh(&self) {
        // SAFETY: this thread holds no lock. Whoever holds slurmctld's lock takes of ours only the one of
        // the sentences, which this thread takes under the same lock alone.
        let _locked = unsafe { self.controller.lock_jobs() };
        guard::inject(NAME);
        // Looked at again, for the lock may have been long in coming.
        if self.wanted() && !self.controller.ends() {
            reasons::restore(self.api, |id| {
                // SAFETY: the lock is held, and sentences are remembered only after the self-check.
                unsafe { Job::find(id, self.layout) }
            });
        }
    }
}
