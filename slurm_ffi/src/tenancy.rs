//! Whose a job is and when it ends, and which nodes are in service: what rules of co-location ask.

use std::ffi::c_void;

use crate::bits::Bitmap;
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

/// Nodes that are up and not drained; `None` where slurmctld does not tell.
///
/// # Safety
/// The caller holds slurmctld's node read lock for `'a`.
pub unsafe fn nodes_in_service<'a>() -> Option<Bitmap<'a>> {
    let global = crate::api::symbol(c"avail_node_bitmap")?;
    // SAFETY: slurmctld's global `bitstr_t *avail_node_bitmap`, null or live under the lock.
    unsafe { Bitmap::new(global.cast::<*mut c_void>().read()) }
}
