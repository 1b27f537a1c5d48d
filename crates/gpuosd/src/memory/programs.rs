//! Which process may ask for memory in tiers, and for which job.
//!
//! The kernel says which process and user is at the other end of a connection, and which step of Slurm's it belongs to by its control
//! group. The loop says which steps have `--gpuos-mem`, by the reports of root's slurmstepd, and whose their jobs are. Nothing that a
//! program says counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_host::steps::job_processes::Who;
use gpuos_memory::lease::ClientId;

/// Bits of a process number: Linux has none above.
const PID_BITS: u32 = 22;

/// A process that may ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Its job.
    pub job: JobId,
    /// Its user.
    pub uid: u32,
    /// Its number.
    pub pid: u32,
    /// When it was started, in the kernel's ticks since boot.
    pub started: u64,
}

/// A process by its number and start: the same after a restart of gpuosd, and never another's.
pub fn client(pid: u32, started: u64) -> ClientId {
    ClientId((started << PID_BITS) | (u64::from(pid) & ((1 << PID_BITS) - 1)))
}

/// Number and start of a process.
pub fn process(client: ClientId) -> (u32, u64) {
    let pid = client.0 & ((1 << PID_BITS) - 1);
    (pid as u32, client.0 >> PID_BITS)
}

/// A job whose programs may ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its user.
    pub uid: u32,
    /// Its steps with the option.
    pub steps: BTreeSet<u32>,
}

/// Jobs whose programs may ask, as of the loop's last word.
#[derive(Clone, Debug, Default)]
pub struct Members(Arc<RwLock<BTreeMap<JobId, Member>>>);

impl Members {
    /// The jobs that there are now.
    pub fn set(&self, members: BTreeMap<JobId, Member>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = members;
    }

    /// Whether a user has such a job.
    pub fn has(&self, uid: u32) -> bool {
        let members = self.0.read().unwrap_or_else(PoisonError::into_inner);
        members.values().any(|member| member.uid == uid)
    }

    /// The job for which a process of a user asks.
    ///
    /// # Errors
    /// It may not: a sentence for the program's user.
    pub fn job_of(&self, who: &Who, uid: u32) -> Result<JobId, &'static str> {
        let members = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if who.uid != uid && !who.owners.contains(&uid) {
            return Err("the process is another user's by now");
        }
        if let Some(step) = &who.step {
            let member = members.get(&step.job).filter(|member| member.uid == uid);
            let has = |member: &Member| {
                let mut steps = member.steps.iter();
                steps.any(|number| StepId::name(*number) == step.step)
            };
            return match member.is_some_and(has) {
                true => Ok(step.job.clone()),
                false => Err(
                    "gpuosd knows of no memory in tiers for this step: submit its job with --gpuos-mem, or with --gpuos-share=timeslice,mem=SIZE",
                ),
            };
        }
        // Without control groups: whichever of his own jobs it is, he is given no more than that one has.
        let mut own = members.iter().filter(|(_, member)| member.uid == uid);
        match (own.next(), own.next()) {
            (Some((job, _)), None) => Ok(job.clone()),
            (Some(_), Some(_)) => Err(
                "of several jobs of this user with memory in tiers (--gpuos-mem, --gpuos-share=timeslice,mem=SIZE) gpuosd cannot tell which one this process belongs to: control groups would say it \
                 (in Slurm ProctrackType=proctrack/cgroup, in PBS gpuos pbs install --confine try)",
            ),
            (None, _) => Err(
                "this process belongs to no job with memory in tiers on this node (--gpuos-mem, --gpuos-share=timeslice,mem=SIZE)",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuos_host::steps::job_processes::JobStep;

    use super::*;

    fn who(uid: u32, step: Option<(u32, &str)>) -> Who {
        let step = step.map(|(job, step)| JobStep {
            job: job.into(),
            step: step.into(),
        });
        let owners = vec![uid];
        Who {
            uid,
            owners,
            step,
            ..Who::default()
        }
    }

    fn members(of: &[(u32, u32, &[u32])]) -> Members {
        let members = Members::default();
        let one = |(job, uid, steps): &(u32, u32, &[u32])| {
            let steps = steps.iter().copied().collect();
            (JobId::from(*job), Member { uid: *uid, steps })
        };
        members.set(of.iter().map(one).collect());
        members
    }

    #[test]
    fn a_program_asks_for_its_own_step_and_no_other() {
        let all = members(&[(7, 1000, &[0, StepId::BATCH]), (8, 1001, &[0])]);
        let job_of = |uid, step| all.job_of(&who(uid, step), uid).ok();
        assert_eq!(job_of(1000, Some((7, "0"))), Some(7.into()));
        assert_eq!(job_of(1000, Some((7, "batch"))), Some(7.into()));
        assert_eq!(job_of(1000, Some((7, "1"))), None, "without the option");
        assert_eq!(job_of(1000, Some((7, ""))), None);
        assert_eq!(job_of(1000, Some((8, "0"))), None, "another's job");
        assert_eq!(job_of(1001, Some((7, "0"))), None);
        assert_eq!(job_of(1002, Some((9, "0"))), None, "no such job");
        assert_eq!(all.job_of(&who(1001, Some((7, "0"))), 1000).ok(), None);
    }

    #[test]
    fn without_control_groups_it_is_the_only_job_of_the_user() {
        let one = members(&[(7, 1000, &[0]), (8, 1001, &[0])]);
        assert_eq!(one.job_of(&who(1000, None), 1000), Ok(7.into()));
        assert!(one.job_of(&who(1002, None), 1002).is_err());
        let two = members(&[(7, 1000, &[0]), (9, 1000, &[0])]);
        let why = two.job_of(&who(1000, None), 1000).unwrap_err();
        assert!(why.contains("of several jobs"), "{why}");
        assert!(two.has(1000) && !two.has(1001));
    }

    proptest::proptest! {
        #[test]
        fn a_process_has_one_number(pid in 1..1u32 << PID_BITS, started in 0..1u64 << 42) {
            proptest::prop_assert_eq!(process(client(pid, started)), (pid, started));
        }
    }
}
