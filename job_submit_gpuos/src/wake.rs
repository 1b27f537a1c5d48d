//! A job of ours that was requeued and is let go by root: slurmctld is to look for its nodes at once.
//!
//! slurmctld itself looks seconds later, when its main loop comes round (`batch_sched_delay`), and where that look comes to nothing not
//! before `sched_interval` is over.

use std::ffi::c_void;

use slurm_ffi::layout::Fields;
use slurm_ffi::mem::read;
use slurm_ffi::sizes;

/// Where it is seen that a job is let go; absent where the table does not say.
#[derive(Clone, Copy, Debug)]
pub struct LetGo {
    /// In a description, as is its whole size.
    asked_begin: usize,
    description: usize,
    /// In a record, as is its whole size.
    state: usize,
    restarts: usize,
    record: usize,
}

impl LetGo {
    /// The offsets of one release.
    pub fn of(fields: &Fields) -> Option<LetGo> {
        let of = |structure, field| fields.offset(structure, field).ok();
        Some(LetGo {
            asked_begin: of("job_descriptor", "begin_time")?,
            description: fields.size("job_descriptor").ok()?,
            state: of("job_record", "job_state")?,
            restarts: of("job_record", "restart_cnt")?,
            record: fields.size("job_record").ok()?,
        })
    }

    /// Whether a change lets a job go that waits after a requeue: it may begin by `now`, in seconds since the epoch.
    pub fn is_meant(&self, description: *mut c_void, record: *mut c_void, now: i64) -> bool {
        let (asked, record) = (description as usize, record as usize);
        if sizes::allocated(asked).is_some_and(|size| size != self.description)
            || sizes::allocated(record) != Some(self.record)
        {
            return false;
        }
        let begin = read::<i64>(asked + self.asked_begin);
        // slurm.h: JOB_PENDING is 0 in the low byte, and flags above it say that nodes still clean up.
        let waits = read::<u32>(record + self.state).is_some_and(|state| state & 0xff == 0);
        let again = read::<u16>(record + self.restarts).is_some_and(|restarts| restarts > 0);
        // 0 stands for no change.
        begin.is_some_and(|begin| begin > 0 && begin <= now) && waits && again
    }
}

#[cfg(test)]
mod tests {
    use slurm_ffi::release::Release;

    use super::*;

    #[test]
    fn every_release_of_the_table_has_the_fields() {
        for release in [
            Release::new(22, 5, 0),
            Release::new(23, 2, 3),
            Release::new(24, 11, 5),
            Release::new(26, 5, 5),
        ] {
            let fields = Fields::of(release, None).unwrap();
            assert!(LetGo::of(&fields).is_some(), "{release}");
        }
    }
}
