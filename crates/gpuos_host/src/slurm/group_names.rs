//! Which job a control group is of that Slurm has named by an id of its own (SLUID), as version 2 has it from 26.05 unless
//! `CgroupJobIdPaths=yes`.
//!
//! A name says nothing about a job. Only slurmctld does: its records have both, and what stands there before a job's user is written
//! by Slurm alone. An id is never another job's, so what was told once is kept while there is room.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuos_core::job::JobId;

/// Names that are kept: no node has so many jobs at a time.
const MOST: usize = 8192;
/// The id of a job that has none: of a slurmctld before 26.05, whose slurmd is newer.
const NONE: &str = "s0000000000000";

/// Names of groups, as slurmctld has told them.
#[derive(Debug, Default)]
pub struct GroupNames(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// `None`: it was told of two jobs, and is believed of neither.
    jobs: BTreeMap<String, Option<JobId>>,
    /// The same names, the oldest first.
    order: VecDeque<String>,
}

/// Slurm's own id of a job, from 26.05: `s` and 13 digits of base 32.
pub(crate) fn is_sluid(part: &str) -> bool {
    let digits = part.strip_prefix('s');
    digits.is_some_and(|digits| {
        digits.len() == 13
            && digits
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
    })
}

impl GroupNames {
    /// Notes what slurmctld says of a job that has nodes.
    pub fn learn(&self, name: &str, job: &JobId) {
        if !is_sluid(name) || name == NONE {
            return;
        }
        let mut inner = self.lock();
        match inner.jobs.get_mut(name) {
            Some(known) => {
                if known.as_ref() != Some(job) {
                    *known = None;
                }
            }
            None => {
                if inner.order.len() >= MOST
                    && let Some(oldest) = inner.order.pop_front()
                {
                    inner.jobs.remove(&oldest);
                }
                inner.jobs.insert(name.to_owned(), Some(job.clone()));
                inner.order.push_back(name.to_owned());
            }
        }
    }

    /// The job of a name; `None`: slurmctld has not told it.
    pub fn job(&self, name: &str) -> Option<JobId> {
        self.lock().jobs.get(name).cloned().flatten()
    }

    /// The names that groups of a job may have: those of its earlier runs too.
    pub fn of(&self, job: &JobId) -> Vec<String> {
        let inner = self.lock();
        let own = inner.jobs.iter().filter(|(_, of)| of.as_ref() == Some(job));
        own.map(|(name, _)| name.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why nothing is said of a group with such a name.
pub(crate) fn untold(name: &str) -> String {
    format!(
        "Slurm has named its group {name}, and slurmctld has told of no job that has this id (yet, or scontrol -d show job does not print SLUID=); with \
         CgroupJobIdPaths=yes in cgroup.conf the group has the job's number"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "s521M7XBGAHZ00";

    #[test]
    fn a_name_is_a_jobs_only_as_slurmctld_says() {
        let names = GroupNames::default();
        assert_eq!(names.job(NAME), None);
        names.learn(NAME, &7.into());
        names.learn(NAME, &7.into());
        names.learn("s521M7XBGAJ600", &7.into());
        assert_eq!(names.job(NAME), Some(7.into()));
        assert_eq!(names.of(&7.into()), [NAME, "s521M7XBGAJ600"]);
        assert!(names.of(&8.into()).is_empty());
        // What cannot be is believed of nobody.
        names.learn(NAME, &8.into());
        names.learn(NAME, &7.into());
        assert_eq!(names.job(NAME), None);
        assert_eq!(names.of(&7.into()), ["s521M7XBGAJ600"]);
    }

    #[test]
    fn what_is_no_id_names_nothing() {
        let names = GroupNames::default();
        for name in [
            NONE,
            "",
            "s521",
            "job_7",
            "s521m7XBGAHZ00",
            "../../x0000000",
        ] {
            names.learn(name, &7.into());
            assert_eq!(names.job(name), None, "{name}");
        }
    }

    #[test]
    fn the_oldest_names_go_when_there_are_too_many() {
        let names = GroupNames::default();
        let name = |number: usize| format!("s{number:013}");
        for number in 1..=MOST + 1 {
            names.learn(&name(number), &(number as u32).into());
        }
        assert_eq!(names.job(&name(1)), None);
        assert_eq!(names.job(&name(MOST + 1)), Some((MOST as u32 + 1).into()));
        assert_eq!(names.lock().jobs.len(), MOST);
    }
}
