//! The broker's numbers of jobs. Slurm numbers its own; the name that PBS has for one, such as `12.head`, becomes a number that depends on it alone,
//! above all of Slurm's: the journal has these numbers, and the next gpuosd makes the same of the same name.

use std::collections::BTreeSet;

use gpuos_core::job::JobId;
use gpuos_memory::lease::{JobId as Number, JobSpec};
use gpuos_workload::job::Job;

/// The GPUs of a job by a journal of before, in which is not which of its runs that was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Before {
    gpus: BTreeSet<usize>,
    in_turns: bool,
}

impl Before {
    /// Those that the job had.
    pub(super) fn of(spec: &JobSpec) -> Before {
        let gpus = spec.gpus.iter().map(|gpu| gpu.0 as usize);
        Before {
            gpus: gpus.collect(),
            in_turns: spec.timeslice,
        }
    }

    /// Whether the job has these by its record, so that it can be the same run.
    pub(super) fn is_of(&self, record: &Job, node: &str) -> bool {
        let given = match self.in_turns {
            true => record.shared_on(node),
            false => record.whole_on(node),
        };
        self.gpus.iter().all(|gpu| given.contains(*gpu))
    }
}

/// A number that is of a name has this bit.
const OF_NAME: u64 = 1 << 63;

/// The number of a job.
pub(super) fn number(job: &JobId) -> Number {
    Number(match job.number() {
        Some(number) => number.into(),
        None => of_name(&job.to_string()) | OF_NAME,
    })
}

/// FNV-1a, which is the same in all releases. Names are pbs_server's, and no user chooses one.
fn of_name(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The job that has a number; one of a name is among those that are known.
pub(super) fn named_by<'a>(
    job: Number,
    mut known: impl Iterator<Item = &'a JobId>,
) -> Option<JobId> {
    match u32::try_from(job.0) {
        Ok(plain) => Some(plain.into()),
        Err(_) => known.find(|one| number(one) == job).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_of_one_job_and_leads_back_to_it() {
        let named: Vec<JobId> = ["12.head", "13.head", "12[3].head", "12[4].head"]
            .iter()
            .map(|name| name.parse().unwrap())
            .collect();
        for job in &named {
            let own = number(job);
            assert_eq!(named_by(own, named.iter()).as_ref(), Some(job));
            assert_eq!(named_by(own, [].iter()), None);
        }
        // The journal of a gpuosd before has it.
        assert_eq!(number(&named[0]), Number(0xa795_bcd9_1c4e_0f2e));
        let plain = JobId::from(12);
        assert_eq!(number(&plain), Number(12));
        assert_eq!(named_by(Number(12), [].iter()), Some(plain));
    }
}
