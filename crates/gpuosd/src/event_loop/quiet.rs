//! How many lines of log and audit log one user's jobs and processes may cause.
//!
//! The audit log is of a fixed size: without this, whoever starts processes on others' GPUs all day would push everybody else's
//! lines out of it. What is done is not bounded by it, and what changes a GPU or the node is always written.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_host::socket::{Bucket, Rate};

/// Lines of one user.
const LINES: Rate = Rate {
    each_second: 0.5,
    at_once: 60.0,
};
/// What was left out is told so often at most.
const TELL: Duration = Duration::from_secs(60);
/// Jobs whose users are remembered.
const JOBS: usize = 4096;
/// Users that are told apart; those beyond share one account.
const MOST: usize = 1024;

#[derive(Debug)]
struct Of {
    bucket: Bucket,
    suppressed: u64,
    logged: Instant,
}

/// Lines by user.
#[derive(Debug, Default)]
pub struct Quiet {
    users: BTreeMap<u32, Of>,
    /// Users of jobs that were here, for what is told of a job once it is over.
    jobs: BTreeMap<JobId, u32>,
}

impl Quiet {
    /// Whose a job is. The oldest jobs are forgotten.
    pub fn knows(&mut self, job: &JobId, uid: u32) {
        self.jobs.insert(job.clone(), uid);
        if self.jobs.len() > JOBS {
            self.jobs.pop_first();
        }
    }

    /// Whose a job is or was.
    pub fn user_of(&self, job: &JobId) -> Option<u32> {
        self.jobs.get(job).copied()
    }

    /// Whether one more line about this user is written.
    pub fn lets(&mut self, uid: u32, now: Instant) -> bool {
        let known = self.users.contains_key(&uid) || self.users.len() < MOST;
        let of = self.users.entry(if known { uid } else { u32::MAX });
        let of = of.or_insert_with(|| Of {
            bucket: Bucket::full(LINES, now),
            suppressed: 0,
            logged: now,
        });
        let lets = of.bucket.take(now);
        of.suppressed += u64::from(!lets);
        lets
    }

    /// What was left out of late, by user: to be told now.
    pub fn due(&mut self, now: Instant) -> Vec<(u32, u64)> {
        let mut due = Vec::new();
        for (uid, of) in &mut self.users {
            if of.suppressed > 0 && now.saturating_duration_since(of.logged) >= TELL {
                due.push((*uid, std::mem::take(&mut of.suppressed)));
                of.logged = now;
            }
        }
        self.users
            .retain(|_, of| of.suppressed > 0 || !of.bucket.is_full(now));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_user_is_counted_and_others_are_heard() {
        let (mut quiet, begun) = (Quiet::default(), Instant::now());
        let written = (0..100_000).filter(|_| quiet.lets(1001, begun)).count();
        assert_eq!(written, 60);
        assert!(quiet.lets(1002, begun));
        assert_eq!(quiet.due(begun), []);
        let later = begun + TELL;
        assert_eq!(quiet.due(later), [(1001, 100_000 - 60)]);
        assert_eq!(quiet.due(later), []);
        assert!(quiet.lets(1001, later));
        // Who is quiet again is forgotten, and many users together are bounded.
        assert_eq!(quiet.due(later + 10 * TELL), []);
        assert!(quiet.users.is_empty());
        for uid in 0..10_000 {
            quiet.lets(uid, later);
        }
        assert!(quiet.users.len() <= MOST + 1);
    }
}
