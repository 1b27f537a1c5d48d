//! slurmctld's lock of jobs, taken by a thread of the plugin's own, and whether slurmctld is shutting down.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::api::symbol;
use crate::mem;
use crate::release::Release;

const TABLE: &str = include_str!("../data/controller.tsv");

/// Room for every field of `slurmctld_lock_t`. Both C ABIs hand a structure of this size over in memory, where
/// a release with fewer fields reads fewer.
#[repr(C)]
#[derive(Clone, Copy)]
struct Levels([u32; FIELDS]);

const FIELDS: usize = 6;
const WRITE_LOCK: u32 = 2;
/// The lock of jobs is the second field in every release.
const JOBS_LOCKED: Levels = Levels([0, WRITE_LOCK, 0, 0, 0, 0]);

/// Bytes of a mutex for which the table gives the offsets.
const MUTEX: usize = 40;

type Lock = unsafe extern "C" fn(Levels);

/// Offsets in `slurmctld_config`, and fields of `slurmctld_lock_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Row {
    fields: usize,
    boot_time: usize,
    shutdown_time: usize,
}

/// The running slurmctld.
pub struct Controller {
    lock: Lock,
    unlock: Lock,
    /// `slurmctld_config.shutdown_time`: 0 until slurmctld is told to end.
    shutdown_time: &'static AtomicI64,
}

/// slurmctld's write lock of jobs, given back when dropped.
pub struct JobsLocked<'a> {
    controller: &'a Controller,
}

impl Controller {
    /// Finds lock and state in the program that loaded the plugin. The error is a part of a sentence that says
    /// what is missing.
    pub fn find(release: Release) -> Result<Controller, String> {
        let row =
            row(release).ok_or_else(|| format!("the locks of Slurm {release} are not known"))?;
        let find = |name: &'static std::ffi::CStr| {
            symbol(name).ok_or_else(|| format!("Slurm {release} does not export {name:?}"))
        };
        let (lock, unlock) = (find(c"lock_slurmctld")?, find(c"unlock_slurmctld")?);
        let config = find(c"slurmctld_config")? as usize;
        let boot: Option<i64> = mem::read(config + row.boot_time);
        let shutdown: Option<i64> = mem::read(config + row.shutdown_time);
        // SAFETY: time() with null only returns.
        let now = unsafe { libc::time(std::ptr::null_mut()) };
        if !plausible(boot, shutdown, now) {
            return Err(format!(
                "slurmctld_config is not as expected of Slurm {release}"
            ));
        }
        // SAFETY: Slurm's two functions of these names, with the signature of the releases in the table; the
        // global lives as long as slurmctld, and only whole words are read from it.
        unsafe {
            Ok(Controller {
                lock: std::mem::transmute::<*mut c_void, Lock>(lock),
                unlock: std::mem::transmute::<*mut c_void, Lock>(unlock),
                shutdown_time: AtomicI64::from_ptr((config + row.shutdown_time) as *mut i64),
            })
        }
    }

    /// Whether slurmctld is ending, starting itself anew or handing over to another one. Until it has done so
    /// no lock of its may be taken: it saves its state only when nobody holds one, and then frees its records.
    pub fn ends(&self) -> bool {
        self.shutdown_time.load(Ordering::Acquire) != 0
    }

    /// Waits for the write lock of jobs.
    ///
    /// # Safety
    /// The calling thread holds no lock of slurmctld, and none that another thread takes while it holds one.
    pub unsafe fn lock_jobs(&self) -> JobsLocked<'_> {
        // SAFETY: by the caller.
        unsafe { (self.lock)(JOBS_LOCKED) };
        JobsLocked { controller: self }
    }
}

impl Drop for JobsLocked<'_> {
    fn drop(&mut self) {
        // SAFETY: taken by this thread, with the same levels.
        unsafe { (self.controller.unlock)(JOBS_LOCKED) };
    }
}

/// Whether the two words can be the times at which slurmctld was started and told to end.
fn plausible(boot: Option<i64>, shutdown: Option<i64>, now: i64) -> bool {
    /// The year 2020: no slurmctld of these releases was started before.
    const EARLIEST: i64 = 1_577_836_800;
    let (Some(boot), Some(shutdown)) = (boot, shutdown) else {
        return false;
    };
    (EARLIEST..=now).contains(&boot) && (shutdown == 0 || (boot..=now).contains(&shutdown))
}

fn row(release: Release) -> Option<Row> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#')).skip(1);
    rows.filter_map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        let [first, last, numbers @ ..] = &columns[..] else {
            return None;
        };
        let within = Release::parse(first)? <= release && release <= Release::parse(last)?;
        let number = |index: usize| numbers.get(index)?.parse::<usize>().ok();
        let shift = number(3)? * (size_of::<libc::pthread_mutex_t>() - MUTEX);
        let row = Row {
            fields: number(0)?,
            boot_time: number(1)? + shift,
            shutdown_time: number(2)? + shift,
        };
        (within && row.fields <= FIELDS).then_some(row)
    })
    .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_release_has_one_row() {
        let versions = include_str!("../data/versions.txt");
        let known = versions.lines().filter_map(Release::parse);
        for release in known.chain([Release::new(26, 5, 5)]) {
            let row =
                row(release).unwrap_or_else(|| panic!("controller.tsv has no row of {release}"));
            assert!(row.boot_time + 8 < row.shutdown_time, "{release}");
        }
        for unknown in ["21.08.8", "26.05.6", "26.11.0"] {
            assert_eq!(row(Release::parse(unknown).expect("a release")), None);
        }
    }

    #[test]
    fn words_that_are_no_times_are_refused() {
        let now = 1_800_000_000;
        assert!(plausible(Some(now - 5), Some(0), now));
        assert!(plausible(Some(now - 5), Some(now), now));
        for (boot, shutdown) in [
            (None, Some(0)),
            (Some(0), Some(0)),
            (Some(now + 1), Some(0)),
            (Some(now), Some(7)),
            (Some(now), None),
        ] {
            assert!(!plausible(boot, shutdown, now), "{boot:?} {shutdown:?}");
        }
    }

    #[test]
    fn a_program_that_is_not_slurmctld_has_no_lock() {
        let why = Controller::find(Release::new(24, 11, 5)).err();
        assert!(why.is_some_and(|why| why.contains("lock_slurmctld")));
    }
}
