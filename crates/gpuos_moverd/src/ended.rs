//! Which jobs of the store are over, as far as the workload manager was asked: those that can come back to what is kept go first where a node
//! names only some.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gpuos_core::health::held::{Candidate, HeldJob, named};
use gpuos_core::job::JobId;
use gpuos_store::store::JobUsage;
use gpuos_workload::WorkloadManager;

use crate::jobs::{Jobs, Standing, locked};

/// Jobs that are asked about at a time: users may leave something of many.
const AT_A_TIME: usize = 4;
/// One that can come back is asked about again after so long ...
const AGAIN: Duration = Duration::from_secs(60);
/// ... and one that is over after so long: it can be requeued as long as its record is there.
const OVER_AGAIN: Duration = Duration::from_secs(600);

/// What is known of a job.
struct Verdict {
    at: Instant,
    is_over: bool,
}

/// Jobs that were asked about.
#[derive(Default)]
pub struct Ended(Mutex<BTreeMap<JobId, Verdict>>);

impl Ended {
    /// Asks about some of these jobs, of which something is kept, and forgets all others.
    pub fn look(&self, kept: &[JobId], jobs: &Jobs, manager: &dyn WorkloadManager) {
        locked(&self.0).retain(|job, _| kept.contains(job));
        let is_due = |job: &&JobId| {
            let known = locked(&self.0);
            let known = known.get(*job);
            known.is_none_or(|known| {
                let again = if known.is_over { OVER_AGAIN } else { AGAIN };
                known.at.elapsed() >= again
            })
        };
        for job in kept.iter().filter(is_due).take(AT_A_TIME) {
            let standing = jobs.standing(job, manager);
            // Where it does not tell of one it would not of the others.
            if matches!(standing, Standing::Untold(_)) {
                break;
            }
            let verdict = Verdict {
                is_over: standing == Standing::Over,
                at: Instant::now(),
            };
            locked(&self.0).insert(job.clone(), verdict);
        }
    }

    /// What was heard of a job last; `None`: nothing yet.
    pub fn is_over(&self, job: &JobId) -> Option<bool> {
        locked(&self.0).get(job).map(|verdict| verdict.is_over)
    }

    /// The jobs that this node names of those whose checkpoints it keeps, with their bytes, and whether it leaves any out.
    pub fn named(&self, usage: &[JobUsage]) -> (Vec<(JobId, u64)>, bool) {
        let known = locked(&self.0);
        let of = |one: &JobUsage| {
            Some(Candidate {
                held: HeldJob::of(one.job.number()?, one.bytes),
                uid: one.owner,
                is_over: known.get(&one.job).is_some_and(|verdict| verdict.is_over),
            })
        };
        let all: Vec<Candidate> = usage
            .iter()
            .filter(|one| one.committed)
            .filter_map(of)
            .collect();
        let (held, more) = named(&all);
        let bytes = |held: &HeldJob| {
            let own = usage.iter().find(|one| one.job.number() == Some(held.job));
            own.map(|one| (one.job.clone(), one.bytes))
        };
        (held.iter().filter_map(bytes).collect(), more)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use gpuos_workload::job::{Job, JobState};
    use gpuos_workload::recorded::{Recorded, Table};

    use super::*;

    #[test]
    fn jobs_that_are_over_leave_their_places_to_those_that_wait() {
        let job = |number: u32, state| Job {
            id: number.into(),
            state,
            ..Job::default()
        };
        let all = (1..=20).map(|number| job(number, JobState::Over));
        let all = all.chain([job(21, JobState::Waiting)]);
        let table = Table {
            jobs: all.map(|job| (job.id.clone(), job)).collect(),
            ..Table::default()
        };
        let manager = Recorded::new(table);
        let jobs = Jobs::new(sync_channel(1).0);
        let usage: Vec<JobUsage> = (1..=21u32)
            .map(|number| JobUsage {
                job: number.into(),
                owner: Some(number % 2),
                bytes: if number < 21 { 9 << 30 } else { 1 },
                committed: true,
            })
            .collect();
        let ended = Ended::default();
        let has = |named: &[(JobId, u64)]| named.iter().any(|(job, _)| *job == 21.into());
        assert!(!has(&ended.named(&usage).0), "nobody was asked about any");
        let kept: Vec<JobId> = usage.iter().map(|one| one.job.clone()).collect();
        for _ in 0..6 {
            ended.look(&kept, &jobs, &manager);
        }
        let (named, more) = ended.named(&usage);
        assert!(has(&named) && more && named.len() == 16, "{named:?}");
        ended.look(&kept[20..], &jobs, &manager);
        assert_eq!(locked(&ended.0).len(), 1);
    }
}
