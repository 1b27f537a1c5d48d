//! The mix of jobs, learned as they arrive, for the planner's choice of nodes.
//!
//! A job counts once: when it is decided for the first time, or when it is seen to run, as after a
//! restart of slurmctld. What is counted outlives a reconfiguration; the values that follow are
//! computed in pieces, where there is time for some, and recorded when they come into use.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use gpuos_core::frag::{Learner, Share};
use slurm_ffi::handles::{Job, Node};
use slurm_ffi::log;

use crate::engine::Engine;
use crate::ledger::Held;
use crate::request::Wanted;

/// Jobs that are remembered as counted, before those that are gone are looked for.
const REMEMBERED: usize = 1 << 16;
/// Most work at a time: entries of a table times classes of the mix, some 50 microseconds.
const WORK: usize = 16_000;
/// From so many nodes on a call takes so long that this work does not show in it.
const MANY: usize = 512;
/// What an entry takes beside the classes, in classes.
const ENTRY: usize = 16;

/// When there is time for the values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spare {
    /// A call for which cons_tres was, or will be, asked: on small clusters stock Slurm would be as quick.
    Asked,
    /// A call that was refused without asking cons_tres, which saved more than this takes.
    Refused,
    /// A job has ended.
    End,
}

impl Spare {
    fn work(self, nodes: usize) -> usize {
        match self {
            _ if nodes >= MANY => WORK,
            Spare::Asked => 0,
            Spare::Refused => WORK / 2,
            Spare::End => WORK / 4,
        }
    }
}

/// Spreads job ids, which Slurm hands out in order: nobody can choose those that collide.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, id: u32) {
        let mixed = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The set takes the highest bits and the lowest.
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What is known of the jobs that come.
#[derive(Default)]
pub struct Mix {
    learner: Learner,
    seen: HashSet<u32, BuildHasherDefault<Spread>>,
    limit: usize,
}

impl Mix {
    /// The planner begins anew: it is told again what was learned.
    pub fn tell_anew(&mut self) {
        self.learner.conclude_anew();
    }
}

impl Engine {
    /// A job is decided.
    pub(crate) fn mix_arrives(&mut self, job: u32, wanted: &Wanted, typed: bool) {
        if !self.is_new(job) {
            return;
        }
        let Some(planner) = &self.planner else {
            return;
        };
        let states = self.snapshot.states.iter().zip(0..).filter(|_| typed);
        let named = states.filter(|(state, _)| !state.present.is_empty());
        let named = named.map(|(_, node)| node);
        let (share, nodes) = planner.share(&wanted.request, wanted.nodes, named);
        self.mix.learner.arrives(share, nodes);
    }

    /// A job is seen to run that was not decided before: after a restart, or as an element of an array. Where
    /// it names a GPU model, the node types that it needs are those that it has.
    pub(crate) fn mix_runs(&mut self, job: u32, gpus: u64, typed: bool, held: &[Held]) {
        let nodes = held.len() as u64;
        if gpus == 0 || nodes == 0 || !self.is_new(job) {
            return;
        }
        let most = |figure: fn(&Held) -> u64| held.iter().map(figure).max().unwrap_or(0);
        let share = Share {
            gpus: gpus.div_ceil(nodes).min(255) as u8,
            cpus: most(|one| u64::from(one.cpus)) as u32,
            memory_gib: most(|one| one.memory_mib).div_ceil(1024).min(1 << 20) as u32,
            types: match (&self.planner, typed) {
                (Some(planner), true) => planner.types_of(held.iter().map(|one| one.node)),
                _ => 0,
            },
        };
        self.mix.learner.arrives(share, nodes as u32);
    }

    /// Whether a job was not counted before.
    pub(crate) fn is_new(&mut self, job: u32) -> bool {
        let mix = &mut self.mix;
        if mix.seen.len() >= mix.limit.max(REMEMBERED) {
            let layout = self.layout;
            // SAFETY: called under slurmctld's job lock, as job_test is.
            mix.seen
                .retain(|id| unsafe { Job::find(*id, layout) }.is_some());
            mix.limit = 2 * mix.seen.len();
        }
        mix.seen.insert(job)
    }

    /// After a call: goes on with the values, a little, as far as there is time.
    pub(crate) fn mix_works(&mut self, spare: Spare) {
        let work = spare.work(self.table.len());
        if work != 0 {
            self.mix_works_on(work);
        }
    }

    #[inline(never)]
    fn mix_works_on(&mut self, work: usize) {
        let Some(planner) = &mut self.planner else {
            return;
        };
        if planner.has_work() {
            let classes = planner
                .learning()
                .map_or(0, |expected| expected.classes.len());
            if planner.work(work / (classes + ENTRY))
                && let Some(expected) = planner.learned()
            {
                self.records.learned(expected);
                let sizes = expected.sizes().into_iter().take(4);
                let sizes: Vec<String> = sizes
                    .map(|(gpus, part)| format!("{part} % of {gpus}"))
                    .collect();
                log::info(&format!(
                    "nodes are chosen by the mix of {} jobs from now on, by GPUs on a node: {}",
                    self.mix.learner.arrived(),
                    sizes.join(", ")
                ));
            }
        } else if self.mix.learner.due() {
            let mut sizes = vec![(0, 0); planner.types()];
            for index in 0..self.table.len() {
                // SAFETY: called under slurmctld's node lock; the slot holds null or a live record.
                let node = unsafe { Node::new(self.table.raw(index), self.layout) };
                if let (Some(node), Some(number)) = (node, planner.type_number(index as u32)) {
                    let size: &mut (u32, u64) = &mut sizes[number];
                    *size = (size.0.max(node.cpus()), size.1.max(node.memory()));
                }
            }
            planner.learn(self.mix.learner.expected(sizes));
        }
    }
}
