//! Whose a job is and when it ends: what rules of co-location ask.

use crate::handles::{Job, NO_VAL, place, text};

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

    /// Time limit in minutes, if there is one.
    pub fn minutes(self) -> Option<u32> {
        let limit: u32 = self.get(self.fields().time_limit);
        (limit < NO_VAL).then_some(limit)
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
