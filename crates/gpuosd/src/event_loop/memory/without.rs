//! Processes of steps with memory in tiers or in turns that use a GPU and have asked for nothing: static and setuid programs, and those that lost
//! `LD_PRELOAD`, do not load the library, so nobody else can tell. They are named, once each, and nothing is done to them.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::isolation::Process;
use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_core::wire::MemoryUnaskedStatus;
use gpuos_memory::lease::{ClientId, GpuId};

use super::super::effect::{Effect, Effects, Quota};
use super::super::facts::Facts;
use super::{Memory, number};
use crate::memory::programs::{client, process};

/// A process is named when it is seen in so many looks in a row. A program connects as it begins with the GPU, and again a second after
/// gpuosd is back: whoever has not by then does not.
const LOOKS: u32 = 3;
/// Uses of GPUs that are kept in mind. What is beyond is not named.
const MOST: usize = 1024;

/// What a process uses of a GPU without having asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Use {
    client: ClientId,
    gpu: GpuId,
    job: JobId,
    /// The user of the job.
    uid: u32,
    bytes: u64,
}

/// Those that were seen.
#[derive(Debug, Default)]
pub struct Without {
    /// In how many looks in a row, and as of the last one.
    seen: BTreeMap<(ClientId, GpuId), (u32, Use)>,
    /// Of whom the log has a line.
    told: BTreeSet<ClientId>,
}

impl Without {
    /// Takes what was seen now. Answers what the log is to have of processes that it does not have yet.
    fn look(&mut self, now: Vec<Use>) -> Vec<Use> {
        let before = std::mem::take(&mut self.seen);
        for one in now.into_iter().take(MOST) {
            let key = (one.client, one.gpu);
            let looks = before.get(&key).map_or(0, |(looks, _)| *looks);
            self.seen.insert(key, (looks.saturating_add(1), one));
        }
        let is_here = |client: &ClientId| self.seen.keys().any(|(of, _)| of == client);
        self.told.retain(is_here);
        let named: Vec<Use> = self.named().cloned().collect();
        // One line for each: of its first GPU.
        let new = named.into_iter().filter(|one| self.told.insert(one.client));
        new.collect()
    }

    fn named(&self) -> impl Iterator<Item = &Use> {
        let seen = self.seen.values().filter(|(looks, _)| *looks >= LOOKS);
        seen.map(|(_, one)| one)
    }

    /// As clients see it.
    pub fn status(&self) -> Vec<MemoryUnaskedStatus> {
        let one = |one: &Use| {
            Some(MemoryUnaskedStatus {
                job: one.job.clone(),
                uid: one.uid,
                pid: process(one.client).0,
                gpu: number(one.gpu)?,
                bytes: one.bytes,
            })
        };
        self.named().filter_map(one).collect()
    }
}

/// Takes what is seen on GPUs, and tells of processes that should have asked and have not.
pub fn look(
    memory: &mut Memory,
    seen: &[Process],
    leases: &BTreeSet<(ClientId, GpuId)>,
    on: &Facts<'_>,
    fx: &mut Effects,
) {
    let uses = seen.iter();
    let uses = uses.filter_map(|process| unasked(memory, process, leases, on));
    let uses = uses.collect();
    for one in memory.machine.without.look(uses) {
        let tenths = (u128::from(one.bytes) * 10) >> 30;
        let text = format!(
            "process {} of job {} uses {}.{} GiB of GPU {} and has not asked for it: it takes no turns and has no tiers. Static and setuid \
             programs do not load libgpuos_preload.so, nor do those that lose LD_PRELOAD",
            process(one.client).0,
            one.job,
            tenths / 10,
            tenths % 10,
            one.gpu.0
        );
        fx.push(Effect::Note {
            text,
            job: Some(one.job),
            uid: Some(one.uid),
            quota: Quota::User(Some(one.uid)),
        });
    }
}

/// What a process uses of a GPU of its job, if its step has the option and it has never asked. Of a setuid program the job's user counts:
/// whose step it is in says the kernel.
fn unasked(
    memory: &Memory,
    seen: &Process,
    leases: &BTreeSet<(ClientId, GpuId)>,
    on: &Facts<'_>,
) -> Option<Use> {
    let (job, step) = seen.step.as_ref()?;
    let uid = memory.jobs.get(job)?.uid;
    let has = |id: &&StepId| id.job == *job && StepId::name(id.step) == *step;
    memory.steps.keys().find(has)?;
    let client = client(seen.pid, seen.started);
    let has_lease = leases.iter().any(|(of, _)| *of == client);
    let bytes = seen.memory_mib.filter(|mib| *mib > 0)? << 20;
    let is_of_job = on.jobs.on(seen.gpu).contains(job);
    if memory.holders.contains_key(&client) || has_lease || !is_of_job {
        return None;
    }
    Some(Use {
        client,
        gpu: GpuId(seen.gpu.index() as u32),
        job: job.clone(),
        uid,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pid: u32, gpu: u32, bytes: u64) -> Use {
        Use {
            client: client(pid, 70),
            gpu: GpuId(gpu),
            job: 7.into(),
            uid: 1000,
            bytes,
        }
    }

    fn pids(told: &[Use]) -> Vec<u32> {
        told.iter().map(|one| process(one.client).0).collect()
    }

    #[test]
    fn a_process_is_named_when_it_has_been_there_for_some_looks_and_told_once() {
        let mut without = Without::default();
        for looks in 1..LOOKS {
            assert_eq!(without.look(vec![of(41, 2, 5)]), []);
            assert!(without.status().is_empty(), "after {looks}");
        }
        // Another one has just begun, and this one uses a second GPU by now.
        let told = without.look(vec![of(41, 2, 6), of(41, 3, 1), of(42, 2, 9)]);
        assert_eq!(told, [of(41, 2, 6)]);
        let status = without.status();
        assert_eq!(status.len(), 1);
        assert_eq!((status[0].pid, status[0].bytes), (41, 6));
        assert_eq!(without.look(vec![of(41, 2, 6), of(41, 3, 1)]), []);
        assert_eq!(without.look(vec![of(41, 2, 7), of(41, 3, 1)]), []);
        assert_eq!(without.status().len(), 2, "of each GPU");
        // It has asked at last, or has ended; the same number with another start is another one.
        assert_eq!(without.look(Vec::new()), []);
        assert!(without.status().is_empty() && without.told.is_empty());
        let other = Use {
            client: client(41, 71),
            ..of(41, 2, 5)
        };
        for _ in 1..LOOKS {
            assert_eq!(without.look(vec![other.clone()]), []);
        }
        assert_eq!(pids(&without.look(vec![other])), [41]);
    }

    #[test]
    fn one_that_comes_and_goes_is_not_named_and_many_are_bounded() {
        let mut without = Without::default();
        for _ in 0..LOOKS {
            assert_eq!(without.look(vec![of(41, 2, 5)]), []);
            assert_eq!(without.look(Vec::new()), []);
        }
        let many: Vec<Use> = (0..3 * MOST as u32).map(|pid| of(pid, 2, 5)).collect();
        for _ in 1..LOOKS {
            assert_eq!(without.look(many.clone()), []);
        }
        assert_eq!(without.look(many.clone()).len(), MOST);
        assert_eq!(without.look(many), []);
    }
}
