//! Whose a job is, and when it ends.

use crate::field::{place, text};
use crate::handles::{Job, NO_VAL};

/// Slurm's "infinite" for 32-bit values.
const INFINITE: u32 = 0xffff_ffff;

impl<'a> Job<'a> {
    /// Sets the predicted start of a job that waits.
    pub fn set_start_time(self, seconds: i64) {
        // SAFETY: start_time is a time_t of the record, which slurmctld has write-locked.
        unsafe { place::<i64>(self.raw(), self.fields().start_time).write_unaligned(seconds) }
    }

    /// When a running job ends at the latest, in seconds since the epoch.
    pub fn end_time(self) -> i64 {
        self.get(self.fields().end_time)
    }

    /// When others may count on a running job's end, in seconds since the epoch, `now` at the earliest: by its time
    /// limit, or by `--time-min`, which some releases count with (soft time limits of backfill).
    pub fn soonest_end(self, now: i64) -> i64 {
        let soft = match self.get::<u32>(self.fields().time_min) {
            0 | NO_VAL | INFINITE => i64::MAX,
            minutes => self.start_time().saturating_add(i64::from(minutes) * 60),
        };
        self.end_time().min(soft).max(now)
    }

    /// Whether it asks for a number of switches at most (`--switches`).
    pub fn asks_for_switches(self) -> bool {
        self.get::<u32>(self.fields().req_switch) != 0
    }

    /// Seconds that an ended job ran, without those in which it was suspended.
    pub fn run_seconds(self) -> u32 {
        let suspended: i64 = self.get(self.fields().tot_sus_time);
        let ran = self.end_time().saturating_sub(self.start_time());
        u32::try_from(ran.saturating_sub(suspended)).unwrap_or(0)
    }

    /// Time limit in minutes, if there is one: the job's own, else what its partition gives.
    pub fn limit_minutes(self) -> Option<u32> {
        self.limit().filter(|&limit| limit != INFINITE)
    }

    /// As [`Job::limit_minutes`], in seconds. None at all counts as a year, as in [`Job::end_time`]; `None` = not
    /// known.
    pub fn limit_seconds(self) -> Option<i64> {
        Some(match self.limit()? {
            INFINITE => 365 * 86_400,
            minutes => i64::from(minutes) * 60,
        })
    }

    /// As Slurm writes it: in minutes, or [`INFINITE`].
    fn limit(self) -> Option<u32> {
        let limits = [
            Some(self.get(self.fields().time_limit)),
            self.of_part(|part| part.default_time),
            self.of_part(|part| part.max_time),
        ];
        limits.into_iter().flatten().find(|&limit| limit != NO_VAL)
    }

    /// Name of its user, if Slurm has looked it up.
    pub fn user_name(self) -> Option<&'a str> {
        // SAFETY: null or a NUL-terminated string of the record.
        unsafe { text(self.get(self.fields().user_name)) }
    }

    /// Its account, if it has one.
    pub fn account(self) -> Option<&'a str> {
        // SAFETY: null or a NUL-terminated string of the record.
        unsafe { text(self.get(self.fields().account)) }
    }
}
