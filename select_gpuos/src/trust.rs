//! How far the layout table is trusted, and what is done about doubts.
//!
//! Nothing of a record is read but by reads that cannot fault until a job and all nodes have fitted the table; nothing
//! of what cons_tres selected until that was looked at too, after the first RUN_NOW that succeeded. What fits once is
//! not looked at again: the checks cost nothing after the first jobs.
//!
//! Users write much of what is looked at. A job that is not understood is therefore placed by cons_tres, and the next
//! one decides. What speaks against the table ends the steering, and later jobs are looked at again, a bounded number
//! of times at once and rarely after that: a right table is not refused until a restart.

use std::ffi::c_void;

use slurm_ffi::check::{self, Misfit};
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;
use slurm_ffi::{cores, log, mem, probe};

use crate::call::{Call, Mode};
use crate::clock;
use crate::engine::{Engine, pass_through};

/// How far the layout table has been held against this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Not yet: nothing is read but by reads that cannot fault.
    None,
    /// A job and all nodes fit.
    Records,
    /// So did the selection after a first successful RUN_NOW.
    Selection,
    /// Something did not fit: calls pass through until a later job has been looked at.
    Refused,
}

/// So many refusals are each followed by a look at the next job.
const AT_ONCE: u32 = 8;
/// After that one job in so many seconds is looked at.
const RARELY: i64 = 600;
/// A job that was not understood is looked at again after so many seconds, or when another one came between.
const SAME_JOB: i64 = 60;
/// The log has so many different reasons.
const MOST_SAID: usize = 16;

/// What came of looking at jobs that did not fit.
#[derive(Default)]
pub struct Doubts {
    /// The last of them, and when it was looked at.
    job: Option<u32>,
    at: i64,
    refusals: u32,
    said: Vec<String>,
    /// Whether probe objects have been made.
    probed: bool,
    /// Whether they did not fit: no job can take that back.
    for_good: bool,
}

impl Doubts {
    /// Whether the look at a job may end otherwise than the last one did.
    fn may_look(&self, job: Option<u32>, refused: bool, now: i64) -> bool {
        if self.for_good {
            return false;
        }
        let passed = now.saturating_sub(self.at);
        match refused {
            true if self.refusals > AT_ONCE => passed >= RARELY,
            _ => job != self.job || passed >= SAME_JOB,
        }
    }

    fn note(&mut self, job: Option<u32>, now: i64) {
        (self.job, self.at) = (job, now);
    }

    /// Whether the log does not have this yet.
    fn is_news(&mut self, why: &str) -> bool {
        let news = self.said.len() < MOST_SAID && !self.said.iter().any(|said| said == why);
        if news {
            self.said.push(why.to_owned());
        }
        news
    }
}

impl Engine {
    /// Whether this call may be steered: it is about a job that asks for GPUs, and the layout table fits.
    pub(crate) fn trusts(&mut self, call: &Call) -> bool {
        #[cfg(feature = "fault-injection")]
        if let Some(shifts) = &mut self.shifts {
            shifts.look(self.api, call.job, self.layout, self.table);
        }
        match self.trust {
            Trust::Records | Trust::Selection => true,
            Trust::None | Trust::Refused => self.looks(call),
        }
    }

    /// Has Slurm's own functions make probe objects, once: where slurmctld makes its table of nodes. In `init` it
    /// holds locks that some of these functions take, and when the first job comes more waits for it.
    pub(crate) fn probe_once(&mut self) {
        if std::mem::replace(&mut self.doubts.probed, true) {
            return;
        }
        #[cfg(feature = "fault-injection")]
        {
            self.shifts = crate::shifts::Shifts::try_all(&self.fields, self.release);
        }
        if let Err(why) = probe::objects(&self.fields, self.layout, self.release) {
            self.doubts.for_good = true;
            self.trust = Trust::Refused;
            pass_through(&format!(
                "the layout table does not fit this slurmctld ({why}); run `gpuos doctor`, and report this line with \
                 the exact Slurm package"
            ));
        }
    }

    /// Whether job and node records may be read.
    pub(crate) fn reads_records(&self) -> bool {
        matches!(self.trust, Trust::Records | Trust::Selection)
    }

    #[cold]
    #[inline(never)]
    fn looks(&mut self, call: &Call) -> bool {
        let refused = self.trust == Trust::Refused;
        if !(self.doubts).may_look(self.id_of(call.job), refused, clock::now()) {
            return false;
        }
        // Where slurmctld made no table of nodes since it started.
        self.probe_once();
        if self.doubts.for_good {
            return false;
        }
        self.trust = Trust::None;
        let trusted = self.comes_to_trust(call);
        match trusted {
            true if refused => self.keep_reasons(),
            // A job without GRES takes nothing back.
            false if refused => self.trust = Trust::Refused,
            _ => {}
        }
        trusted
    }

    /// Whether a look at a job that asks for shards or slices may end otherwise than the last one did.
    pub(crate) fn may_look_at(&self, job: Job<'_>) -> bool {
        self.doubts.may_look(Some(job.id()), false, clock::now())
    }

    fn id_of(&self, job: *mut c_void) -> Option<u32> {
        mem::read(job as usize + self.layout.job.job_id)
    }

    fn comes_to_trust(&mut self, call: &Call) -> bool {
        let job = call.job;
        // A job without any GRES proves nothing and is not steered either.
        let list = mem::read::<usize>(job as usize + self.layout.job.gres_list_req);
        if list == Some(0) || self.id_of(job) == Some(0) {
            // Slurm starts no job without id, and a job without GRES asked for none.
            if call.mode() == Mode::RunNow
                && let Err(why) = check::plain_job(self.layout, &self.strings, job)
            {
                self.settle(job, Err(why), Trust::Records);
            }
            return false;
        }
        let checked = check::job(self.api, self.layout, &self.strings, job, self.gpu)
            // SAFETY: job_test is called under slurmctld's node write lock.
            .and_then(|()| unsafe {
                check::nodes(self.api, self.layout, &self.strings, self.table, self.gpu)
            });
        self.settle(job, checked, Trust::Records);
        if self.trust == Trust::Records {
            let fits = |index| {
                // SAFETY: job_test is called under slurmctld's node write lock.
                let record = unsafe { self.table.raw(index) };
                record.is_null() || cores::fits(self.layout, record)
            };
            self.hides_cores &= mem::in_blocks(|| (0..self.table.len()).all(fits));
            self.count_running();
        }
        self.trust == Trust::Records
    }

    /// Whether the record of a job without GRES and those of all nodes may be read: what such a job shows is
    /// not enough to trust all others.
    #[cold]
    #[inline(never)]
    pub(crate) fn comes_to_trust_nodes(&mut self, job: *mut c_void) -> bool {
        let (api, layout, strings) = (self.api, self.layout, &self.strings);
        if check::job(api, layout, strings, job, self.gpu).is_err() {
            return false;
        }
        if !self.trusts_nodes {
            // SAFETY: job_test is called under slurmctld's node write lock.
            let checked = unsafe { check::nodes(api, layout, strings, self.table, self.gpu) };
            self.trusts_nodes = checked.is_ok();
            if checked.is_err() {
                self.settle(job, checked, Trust::None);
            }
        }
        self.trusts_nodes
    }

    /// Looks once more after the first choice that cons_tres accepted, before the selection is read.
    pub(crate) fn trusts_selection(&mut self, job: *mut c_void) -> bool {
        #[cfg(feature = "fault-injection")]
        if let Some(shifts) = &self.shifts {
            shifts.look_again(self.api, job);
        }
        if self.trust == Trust::Records {
            self.looks_once_more(job);
        }
        self.trust == Trust::Selection
    }

    #[cold]
    #[inline(never)]
    fn looks_once_more(&mut self, job: *mut c_void) {
        let checked = check::job(self.api, self.layout, &self.strings, job, self.gpu)
            .and_then(|()| check::held(self.layout, job).map(drop));
        self.settle(job, checked, Trust::Selection);
        if self.trust == Trust::Selection {
            // Their GPUs could not be read before.
            self.count_running();
        }
    }

    /// Takes back what was selected for an earlier start that was not one. Before selections are trusted none was
    /// supplied by this plugin, and none is read.
    pub(crate) fn withdraw(&self, gpus: JobGres<'_>) {
        if self.trust == Trust::Selection {
            gpus.withdraw(self.api);
        }
    }

    /// The same for all that a job asks for.
    pub(crate) fn withdraw_all(&self, job: Job<'_>) {
        self.gpus_asked(job).for_each(|gpus| self.withdraw(gpus));
        if self.slices.reads_held() {
            self.asked(job, self.slices.id())
                .for_each(|slices| slices.withdraw(self.api));
        }
    }

    /// Draws the conclusion from a look at a job.
    pub(crate) fn settle(&mut self, job: *mut c_void, checked: Result<(), Misfit>, next: Trust) {
        let id = self.id_of(job);
        match checked {
            Ok(()) => {
                self.trust = next;
                return;
            }
            Err(Misfit::Job(why)) => {
                if self.doubts.is_news(&why) {
                    log::info(&format!(
                        "job {} is placed by cons_tres, for it is not understood ({why}); the next job with GPUs is \
                         looked at",
                        id.unwrap_or(0)
                    ));
                }
            }
            Err(Misfit::Table(why)) => {
                let was = std::mem::replace(&mut self.trust, Trust::Refused);
                self.doubts.refusals = self.doubts.refusals.saturating_add(1);
                self.slices.doubt();
                self.drop_reasons();
                self.trusts_nodes = false;
                if matches!(was, Trust::Records | Trust::Selection) {
                    self.forget();
                    self.trusts_held = false;
                }
                if self.doubts.is_news(&why) {
                    pass_through(&format!(
                        "the layout table does not fit this slurmctld ({why}); run `gpuos doctor`, and report this \
                         line with the exact Slurm package. Later jobs are looked at again"
                    ));
                }
            }
        }
        self.doubts.note(id, clock::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_job_is_looked_at_and_refusals_become_rare() {
        let mut doubts = Doubts::default();
        assert!(doubts.may_look(Some(1), false, 1000));
        doubts.note(Some(1), 1000);
        assert!(!doubts.may_look(Some(1), false, 1001));
        assert!(doubts.may_look(Some(2), false, 1001));
        assert!(doubts.may_look(Some(1), false, 1000 + SAME_JOB));
        for refusal in 1..=AT_ONCE {
            doubts.refusals = refusal;
            assert!(doubts.may_look(Some(2), true, 1001), "{refusal}");
        }
        doubts.refusals += 1;
        assert!(!doubts.may_look(Some(2), true, 1001));
        assert!(doubts.may_look(Some(1), true, 1000 + RARELY));
        // A clock that was set back.
        assert!(!doubts.may_look(Some(1), true, 0));
    }

    #[test]
    fn the_log_is_told_of_each_doubt_once_and_of_so_many() {
        let mut doubts = Doubts::default();
        assert!(doubts.is_news("a") && !doubts.is_news("a"));
        let said = (0..100).filter(|n| doubts.is_news(&n.to_string())).count();
        assert_eq!(said, MOST_SAID - 1);
    }
}
