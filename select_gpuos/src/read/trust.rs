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

use slurm_ffi::check::{self, Gres, Misfit};
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;
use slurm_ffi::{log, mem, probe};

use crate::abi::call::{Call, Mode};
use crate::abi::clock;
use crate::abi::frame::Frame;
use crate::abi::source::Source;
use crate::messages;
use crate::read::site::Site;

/// How far the layout table has been held against this process.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Trust {
    /// Not yet: nothing is read but by reads that cannot fault.
    #[default]
    None,
    /// A job and all nodes fit.
    Records,
    /// So did the selection after a first successful RUN_NOW.
    Selection,
    /// Something did not fit: calls pass through until a later job has been looked at.
    Refused,
}

/// What a look at records found.
pub type Checked = Result<(), Misfit>;

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
struct Doubts {
    /// The last of them, and when it was looked at.
    job: Option<u32>,
    at: i64,
    refusals: u32,
    logged: Vec<String>,
    /// Whether probe objects have been made.
    probed: bool,
    /// Whether they did not fit: no job can take that back.
    for_good: bool,
}

impl Doubts {
    /// Whether the look at a job may end otherwise than the last one did.
    fn may_recheck(&self, job: Option<u32>, refused: bool, now: i64) -> bool {
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
    fn is_unlogged(&mut self, why: &str) -> bool {
        let news = self.logged.len() < MOST_SAID && !self.logged.iter().any(|said| said == why);
        if news {
            self.logged.push(why.to_owned());
        }
        news
    }
}

/// How far the layout table is trusted, and what speaks against it.
#[derive(Default)]
pub struct LayoutTrust {
    /// How far.
    pub level: Trust,
    doubts: Doubts,
    /// Whether the layout of what a job holds has been held against a job that holds something.
    pub held: bool,
    /// Whether the node records alone have been held against the layout.
    pub nodes: bool,
    #[cfg(debug_assertions)]
    shifts: Option<crate::read::shifts::Shifts>,
}

/// What a look at records speaks for.
pub enum Verdict {
    /// They fit, or a job was not understood.
    Holds,
    /// The table is refused: why, where the log does not have that yet, and whether records were trusted until now.
    Refused(Option<String>, bool),
}

impl LayoutTrust {
    /// Whether job and node records may be read.
    pub fn reads_records(&self) -> bool {
        matches!(self.level, Trust::Records | Trust::Selection)
    }

    /// Whether a look at a job may end otherwise than the last one did.
    pub fn may_recheck(&self, job: Option<u32>) -> bool {
        let refused = self.level == Trust::Refused;
        self.doubts.may_recheck(job, refused, clock::now())
    }

    /// Whether a look at a job that asks for shards or slices may end otherwise than the last one did.
    pub fn may_recheck_job(&self, job: Job<'_>) -> bool {
        self.doubts.may_recheck(Some(job.id()), false, clock::now())
    }

    /// Has Slurm's own functions make probe objects, once. Why the table is refused, where they do not fit: no job can
    /// take that back.
    pub fn probe_once(&mut self, site: &Site) -> Option<String> {
        if std::mem::replace(&mut self.doubts.probed, true) {
            return None;
        }
        #[cfg(debug_assertions)]
        {
            self.shifts = crate::read::shifts::Shifts::try_all(&site.fields, site.release);
        }
        let why = probe::objects(&site.fields, site.layout, site.release).err()?;
        self.doubts.for_good = true;
        self.level = Trust::Refused;
        Some(why)
    }

    /// Whether the table is refused until slurmctld restarts.
    pub fn is_refused_for_good(&self) -> bool {
        self.doubts.for_good
    }

    /// Looks at a job and all nodes for the first time.
    pub fn check_first(
        &mut self,
        site: &Site,
        source: &Source<'_>,
        call: &Call,
    ) -> Option<Checked> {
        let job = call.job;
        // A job without any GRES proves nothing and is not steered either.
        let list = mem::read::<usize>(job as usize + site.layout.job.gres_list_req);
        if list == Some(0) || id_of(site, job) == Some(0) {
            // Slurm starts no job without id, and a job without GRES asked for none.
            if call.mode() != Mode::RunNow {
                return None;
            }
            let why = check::plain_job(site.layout, &site.strings, job).err()?;
            return Some(Err(why));
        }
        let checked = check::job(site.api, site.layout, &site.strings, job, site.gpu);
        Some(checked.and_then(|()| source.check_nodes(&site.strings, site.gpu)))
    }

    /// Looks once more after the first choice that cons_tres accepted, before the selection is read. `None`: there is
    /// nothing to look for.
    pub fn check_selection(&mut self, site: &Site, job: Job<'_>) -> Option<Checked> {
        #[cfg(debug_assertions)]
        if let Some(shifts) = &self.shifts {
            shifts.check_allocated(site.api, job.raw());
        }
        match self.level {
            Trust::Records => Some(check_selection(site, job)),
            _ => None,
        }
    }

    /// Holds every shift of the table against a job, in a debug build.
    #[cfg(debug_assertions)]
    pub fn check_shifts(&mut self, source: &Source<'_>, job: *mut c_void) {
        if let Some(shifts) = &mut self.shifts {
            shifts.check(source, job);
        }
    }

    /// Draws the conclusion from a look at a job.
    pub fn conclude(&mut self, id: Option<u32>, checked: Checked, next: Trust) -> Verdict {
        let verdict = match checked {
            Ok(()) => {
                self.level = next;
                return Verdict::Holds;
            }
            Err(Misfit::Job(why)) => {
                if self.doubts.is_unlogged(&why) {
                    log::info(&messages::job_not_understood(id.unwrap_or(0), why));
                }
                Verdict::Holds
            }
            Err(Misfit::Table(why)) => {
                let trusted = self.reads_records();
                self.level = Trust::Refused;
                self.doubts.refusals = self.doubts.refusals.saturating_add(1);
                self.nodes = false;
                self.held &= !trusted;
                let news = self.doubts.is_unlogged(&why).then_some(why);
                Verdict::Refused(news, trusted)
            }
        };
        self.doubts.note(id, clock::now());
        verdict
    }

    /// Whether what cons_tres has just selected for a job may be read: it is trusted, or fits where none was looked at yet.
    pub fn reads_selection(&self, site: &Site, job: Job<'_>) -> bool {
        match self.level {
            Trust::Selection => true,
            Trust::Records => check_selection(site, job).is_ok(),
            Trust::None | Trust::Refused => false,
        }
    }

    /// Whose selections may be read. `slices`: the GRES of slices, where those may.
    pub fn selections(&self, slices: Option<u32>) -> Selections {
        let gpus = self.level == Trust::Selection;
        Selections { gpus, slices }
    }
}

/// Looks at what cons_tres has just selected for a job.
pub fn check_selection(site: &Site, job: Job<'_>) -> Checked {
    check_gres(site, job, site.gpu).and_then(|()| check::held(site.layout, job.raw()).map(drop))
}

/// Looks at what a job asks for of a GRES.
pub fn check_gres(site: &Site, job: Job<'_>, gres: Gres) -> Checked {
    check::job(site.api, site.layout, &site.strings, job.raw(), gres)
}

/// The id of a job whose record may not be one.
pub fn id_of(site: &Site, job: *mut c_void) -> Option<u32> {
    mem::read(job as usize + site.layout.job.job_id)
}

/// Which of cons_tres's selections may be read.
#[derive(Clone, Copy)]
pub struct Selections {
    /// Those of GPUs.
    pub gpus: bool,
    /// The GRES of slices, where those may.
    pub slices: Option<u32>,
}

impl Selections {
    /// Takes back what was selected for an earlier start that was not one. Before selections are trusted none was
    /// supplied by this plugin, and none is read.
    pub fn withdraw(self, source: &Source<'_>, gpus: JobGres<'_>) {
        if self.gpus {
            gpus.withdraw(source.api);
        }
    }

    /// The same for all that the job of a call asks for.
    pub fn withdraw_all(self, frame: &Frame<'_>) {
        let (source, job) = (&frame.source, frame.job);
        let gpus = source.gpus_asked(job);
        gpus.for_each(|gpus| self.withdraw(source, gpus));
        if let Some(gres) = self.slices {
            let slices = source.asked(job, gres);
            slices.for_each(|slices| slices.withdraw(source.api));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_job_is_looked_at_and_refusals_become_rare() {
        let mut doubts = Doubts::default();
        assert!(doubts.may_recheck(Some(1), false, 1000));
        doubts.note(Some(1), 1000);
        assert!(!doubts.may_recheck(Some(1), false, 1001));
        assert!(doubts.may_recheck(Some(2), false, 1001));
        assert!(doubts.may_recheck(Some(1), false, 1000 + SAME_JOB));
        for refusal in 1..=AT_ONCE {
            doubts.refusals = refusal;
            assert!(doubts.may_recheck(Some(2), true, 1001), "{refusal}");
        }
        doubts.refusals += 1;
        assert!(!doubts.may_recheck(Some(2), true, 1001));
        assert!(doubts.may_recheck(Some(1), true, 1000 + RARELY));
        // A clock that was set back.
        assert!(!doubts.may_recheck(Some(1), true, 0));
    }

    #[test]
    fn the_log_is_told_of_each_doubt_once_and_of_so_many() {
        let mut doubts = Doubts::default();
        assert!(doubts.is_unlogged("a") && !doubts.is_unlogged("a"));
        let said = (0..100)
            .filter(|n| doubts.is_unlogged(&n.to_string()))
            .count();
        assert_eq!(said, MOST_SAID - 1);
    }
}
