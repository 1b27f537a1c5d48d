//! Which CPUs and how much memory running jobs hold on each node, and until when.
//!
//! Slurm keeps this in cons_tres's private state. The planner needs it only as advice (cons_tres
//! has the last word), so it is followed from the start and end of jobs.

use std::collections::HashMap;

use gpuos_placement::fits::SOCKETS;
use slurm_ffi::needs::Sharing;

use crate::read::ends::Ends;

/// What one job holds on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Node index.
    pub node: u32,
    /// CPUs.
    pub cpus: u32,
    /// Host memory in MiB.
    pub memory_mib: u64,
    /// GPUs, as far as they are known: 0 until the layout of a selection is trusted.
    pub gpus: u32,
    /// Cores of each socket; `None` where they could not be read.
    pub cores: Option<[u16; SOCKETS]>,
}

/// What all jobs on a node hold there together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// CPUs.
    pub cpus: u32,
    /// Host memory in MiB.
    pub memory_mib: u64,
    /// Cores of each socket.
    pub cores: [u16; SOCKETS],
    /// Jobs, by [`Sharing`].
    pub jobs: [u16; 3],
    /// Jobs whose cores are not known.
    pub coreless: u16,
}

impl Sum {
    fn add(&mut self, one: &Holding, sharing: Sharing) {
        self.cpus += one.cpus;
        self.memory_mib += one.memory_mib;
        self.jobs[sharing as usize] += 1;
        match one.cores {
            Some(cores) => (0..SOCKETS).for_each(|at| self.cores[at] += cores[at]),
            None => self.coreless += 1,
        }
    }

    fn remove(&mut self, one: &Holding, sharing: Sharing) {
        self.cpus = self.cpus.saturating_sub(one.cpus);
        self.memory_mib = self.memory_mib.saturating_sub(one.memory_mib);
        let jobs = &mut self.jobs[sharing as usize];
        *jobs = jobs.saturating_sub(1);
        match one.cores {
            Some(cores) => (0..SOCKETS)
                .for_each(|at| self.cores[at] = self.cores[at].saturating_sub(cores[at])),
            None => self.coreless = self.coreless.saturating_sub(1),
        }
    }

    /// How many jobs there are.
    pub fn all_jobs(&self) -> u16 {
        self.jobs.iter().sum()
    }
}

/// A job in the ledger.
#[derive(Debug, Default)]
struct Entry {
    held: Vec<Holding>,
    sharing: Sharing,
    /// The partition whose sum it is part of, if it is of any.
    part: Option<usize>,
}

/// All running jobs, and their sums by node.
#[derive(Default)]
pub struct Ledger {
    jobs: HashMap<u32, Entry>,
    sums: Vec<Sum>,
    /// Of the partitions whose jobs have limits together, by [`slurm_ffi::handles::Job::partition_key`]: the cores of
    /// each socket that they hold.
    parts: HashMap<usize, Vec<[u16; SOCKETS]>>,
    ends: Ends,
    changes: u64,
}

impl Ledger {
    /// Replaces what is known of a job; `until` = when it ends at the latest, as the planner has it. `part`: its
    /// partition, where what that holds on a node counts.
    pub fn set(
        &mut self,
        job: u32,
        held: Vec<Holding>,
        (sharing, part): (Sharing, Option<usize>),
        until: u32,
    ) {
        self.remove(job);
        self.changes += 1;
        for one in &held {
            self.ends.add(one.node, job, until);
            let index = one.node as usize;
            if self.sums.len() <= index {
                self.sums.resize(index + 1, Sum::default());
            }
            self.sums[index].add(one, sharing);
            if let (Some(part), Some(cores)) = (part, one.cores) {
                let sums = self.parts.entry(part).or_default();
                if sums.len() <= index {
                    sums.resize(index + 1, [0; SOCKETS]);
                }
                (0..SOCKETS).for_each(|at| sums[index][at] += cores[at]);
            }
        }
        if !held.is_empty() {
            let entry = Entry {
                held,
                sharing,
                part,
            };
            self.jobs.insert(job, entry);
        }
    }

    /// Forgets a job.
    pub fn remove(&mut self, job: u32) {
        self.changes += 1;
        let Entry {
            held,
            sharing,
            part,
        } = self.jobs.remove(&job).unwrap_or_default();
        for one in held {
            let index = one.node as usize;
            self.sums[index].remove(&one, sharing);
            self.ends.remove(one.node, job);
            let sums = part.and_then(|part| self.parts.get_mut(&part));
            if let (Some(sums), Some(cores)) = (sums, one.cores) {
                let sum = &mut sums[index];
                (0..SOCKETS).for_each(|at| sum[at] = sum[at].saturating_sub(cores[at]));
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.changes += 1;
        self.jobs.clear();
        self.sums.clear();
        self.parts.clear();
        self.ends.clear();
    }

    /// A number that is another one after each change.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Calls `each` with every job and what it holds.
    pub fn for_each_job(&self, mut each: impl FnMut(u32, &[Holding])) {
        self.jobs
            .iter()
            .for_each(|(job, entry)| each(*job, &entry.held));
    }

    /// CPUs and MiB held on a node.
    pub fn on(&self, node: usize) -> (u32, u64) {
        self.sums
            .get(node)
            .map_or((0, 0), |sum| (sum.cpus, sum.memory_mib))
    }

    /// What is held on a node.
    pub fn sum(&self, node: usize) -> Sum {
        self.sums.get(node).copied().unwrap_or_default()
    }

    /// Cores of each socket of a node that a partition's jobs hold, where that is followed.
    pub fn of_part(&self, part: usize, node: usize) -> [u16; SOCKETS] {
        let sums = self.parts.get(&part);
        sums.and_then(|sums| sums.get(node).copied())
            .unwrap_or_default()
    }

    /// When the last job on a node ends; 0 = nothing runs there, or it is not known.
    pub fn until(&self, node: usize) -> u32 {
        self.ends.last(node)
    }

    /// Calls `each` with the nodes of every job for which `meant` answers yes to its id.
    pub fn for_each_node(&self, mut meant: impl FnMut(u32) -> bool, mut each: impl FnMut(u32)) {
        for (_, entry) in self.jobs.iter().filter(|(job, _)| meant(**job)) {
            entry.held.iter().for_each(|one| each(one.node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_starts_resizes_and_ends() {
        let mut ledger = Ledger::default();
        let one = |node, cpus| Holding {
            node,
            cpus,
            memory_mib: 10,
            gpus: 1,
            cores: Some([cpus as u16; SOCKETS]),
        };
        let plain = (Sharing::Cores, Some(9));
        ledger.set(1, vec![one(0, 4), one(2, 4)], plain, 7);
        ledger.set(2, vec![one(2, 8)], (Sharing::Nothing, None), 5);
        assert_eq!(ledger.sum(2).cores[0], 12);
        assert_eq!(ledger.sum(2).jobs, [1, 0, 1]);
        assert_eq!((ledger.of_part(9, 2)[1], ledger.of_part(8, 2)[1]), (4, 0));
        assert_eq!([0, 2, 9].map(|node| ledger.until(node)), [7, 7, 0]);
        assert_eq!(
            (ledger.on(0), ledger.on(2), ledger.on(9)),
            ((4, 10), (12, 20), (0, 0))
        );
        ledger.set(1, vec![one(2, 2)], plain, 4);
        assert_eq!([0, 2].map(|node| ledger.until(node)), [0, 5]);
        assert_eq!((ledger.on(0), ledger.on(2)), ((0, 0), (10, 20)));
        let mut nodes = Vec::new();
        ledger.for_each_node(|job| job == 1, |node| nodes.push(node));
        assert_eq!(nodes, [2]);
        ledger.remove(1);
        ledger.remove(2);
        ledger.remove(3);
        assert_eq!((ledger.on(2), ledger.until(2)), ((0, 0), 0));
        assert_eq!((ledger.sum(2), ledger.of_part(9, 2)), Default::default());
    }
}
