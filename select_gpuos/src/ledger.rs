//! Which CPUs and how much memory running jobs hold on each node, and until when.
//!
//! Slurm keeps this in cons_tres's private state. The planner needs it only as advice (cons_tres
//! has the last word), so it is followed from the start and end of jobs.

use std::collections::HashMap;

use crate::ends::Ends;

/// What one job holds on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Node index.
    pub node: u32,
    /// CPUs.
    pub cpus: u32,
    /// Host memory in MiB.
    pub memory_mib: u64,
    /// GPUs, as far as they are known: 0 until the layout of a selection is trusted.
    pub gpus: u32,
}

/// All running jobs, and their sums by node.
#[derive(Default)]
pub struct Ledger {
    jobs: HashMap<u32, Vec<Held>>,
    sums: Vec<(u32, u64)>,
    ends: Ends,
    changes: u64,
}

impl Ledger {
    /// Replaces what is known of a job; `until` = when it ends at the latest, as the planner has it.
    pub fn set(&mut self, job: u32, held: Vec<Held>, until: u32) {
        self.remove(job);
        self.changes += 1;
        for one in &held {
            self.ends.add(one.node, job, until);
            let index = one.node as usize;
            if self.sums.len() <= index {
                self.sums.resize(index + 1, (0, 0));
            }
            self.sums[index].0 += one.cpus;
            self.sums[index].1 += one.memory_mib;
        }
        if !held.is_empty() {
            self.jobs.insert(job, held);
        }
    }

    /// Forgets a job.
    pub fn remove(&mut self, job: u32) {
        self.changes += 1;
        for one in self.jobs.remove(&job).unwrap_or_default() {
            let sum = &mut self.sums[one.node as usize];
            sum.0 = sum.0.saturating_sub(one.cpus);
            sum.1 = sum.1.saturating_sub(one.memory_mib);
            self.ends.remove(one.node, job);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.changes += 1;
        self.jobs.clear();
        self.sums.clear();
        self.ends.clear();
    }

    /// A number that is another one after each change.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Calls `each` with every job and what it holds.
    pub fn for_each_job(&self, mut each: impl FnMut(u32, &[Held])) {
        self.jobs.iter().for_each(|(job, held)| each(*job, held));
    }

    /// CPUs and MiB held on a node.
    pub fn on(&self, node: usize) -> (u32, u64) {
        self.sums.get(node).copied().unwrap_or((0, 0))
    }

    /// When the last job on a node ends; 0 = nothing runs there, or it is not known.
    pub fn until(&self, node: usize) -> u32 {
        self.ends.last(node)
    }

    /// Calls `each` with the nodes of every job for which `meant` answers yes to its id.
    pub fn for_each_node(&self, mut meant: impl FnMut(u32) -> bool, mut each: impl FnMut(u32)) {
        for (_, held) in self.jobs.iter().filter(|(job, _)| meant(**job)) {
            held.iter().for_each(|one| each(one.node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_starts_resizes_and_ends() {
        let mut ledger = Ledger::default();
        let one = |node, cpus| Held {
            node,
            cpus,
            memory_mib: 10,
            gpus: 1,
        };
        ledger.set(1, vec![one(0, 4), one(2, 4)], 7);
        ledger.set(2, vec![one(2, 8)], 5);
        assert_eq!([0, 2, 9].map(|node| ledger.until(node)), [7, 7, 0]);
        assert_eq!(
            (ledger.on(0), ledger.on(2), ledger.on(9)),
            ((4, 10), (12, 20), (0, 0))
        );
        ledger.set(1, vec![one(2, 2)], 4);
        assert_eq!([0, 2].map(|node| ledger.until(node)), [0, 5]);
        assert_eq!((ledger.on(0), ledger.on(2)), ((0, 0), (10, 20)));
        let mut nodes = Vec::new();
        ledger.for_each_node(|job| job == 1, |node| nodes.push(node));
        assert_eq!(nodes, [2]);
        ledger.remove(1);
        ledger.remove(2);
        ledger.remove(3);
        assert_eq!((ledger.on(2), ledger.until(2)), ((0, 0), 0));
    }
}
