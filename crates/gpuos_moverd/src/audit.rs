//! What somebody has had done to checkpoints: lines of the daemon's log with the field `audit`, in the journal `GPUOS_AUDIT`.
//!
//! None has anything that a user has written, and whoever asks again and again gets a line a second.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;

use crate::jobs::locked;

/// Between two lines of the same user about the same thing.
const PAUSE: Duration = Duration::from_secs(1);

/// When whom something was last written for, and how often it was left out since.
type Written = BTreeMap<(u32, &'static str), (Instant, u64)>;

static WRITTEN: Mutex<Written> = Mutex::new(BTreeMap::new());

/// A client has asked for something. `what`: one word, as `now`.
pub fn asked(what: &'static str, by: u32, job: &JobId, outcome: &str) {
    if let Some(more) = turn(what, by) {
        let more = match more {
            0 => String::new(),
            more => format!(" ({more} more of these were left out before)"),
        };
        tracing::info!(target: "audit", audit = what, %job, by, "user {by} asked for {what} of job {job}: {outcome}{more}");
    }
}

/// A program has refused a checkpoint.
pub fn refused(job: &JobId, uid: u32, clause: &str) {
    tracing::info!(target: "audit", audit = "refuse", %job, by = uid, "job {job} of user {uid}: {clause}");
}

/// What was kept of a job is gone. `uid`: whose it was by its signed note; `why`: a clause.
pub fn removed(job: &JobId, uid: Option<u32>, why: &str) {
    let whose = uid.map_or_else(|| "an unknown user".into(), |uid| format!("user {uid}"));
    tracing::info!(target: "audit", audit = "remove", %job, by = uid, "what was kept of job {job} of {whose} is removed: {why}");
}

/// The folder of a job's programs is gone, which does not run here.
pub fn folder_removed(job: &JobId) {
    tracing::info!(target: "audit", audit = "remove", %job, "the folder of job {job}, which does not run here, is removed");
}

/// How many were left out; `None`: this one is, too.
fn turn(what: &'static str, by: u32) -> Option<u64> {
    let now = Instant::now();
    let mut written = locked(&WRITTEN);
    let old = |at: Instant| now.saturating_duration_since(at) >= PAUSE;
    written.retain(|key, (at, more)| *key == (by, what) || *more > 0 || !old(*at));
    match written.get_mut(&(by, what)) {
        Some((at, more)) if !old(*at) => {
            *more += 1;
            None
        }
        before => {
            let more = before.map_or(0, |(_, more)| *more);
            written.insert((by, what), (now, 0));
            Some(more)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_again_and_again_gets_a_line_and_then_a_count() {
        assert_eq!(turn("test", 1), Some(0));
        assert_eq!(turn("test", 2), Some(0));
        let left_out = (0..1000).filter(|_| turn("test", 1).is_none()).count();
        assert!(left_out > 0);
    }
}
