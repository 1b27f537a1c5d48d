//! The mix of jobs, learned as they arrive, for the planner's choice of nodes.
//!
//! A job counts once: when it is decided for the first time, or when it is seen to run, as after a
//! restart of slurmctld. What is counted outlives a reconfiguration; the values that follow are
//! computed in pieces, where there is time for some, and recorded when they come into use.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use gpuos_placement::frag::{Learner, Share};
use gpuos_placement::plan::{NodeState, Planner};
use slurm_ffi::log;

use crate::abi::frame::Frame;
use crate::abi::source::Source;
use crate::messages;
use crate::read::ledger::Holding;
use crate::read::request::Wanted;
use crate::tell::records::Records;

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

/// A job that is seen to run, as far as it counts for the mix.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Its number.
    pub job: u32,
    /// GPUs that it asked for, on all its nodes together.
    pub gpus: u64,
    /// It names a GPU model.
    pub typed: bool,
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
    pub fn resend_learned(&mut self) {
        self.learner.reset_conclusions();
    }
}

impl Mix {
    /// A job is decided, among candidates in these states.
    pub fn arrives(
        &mut self,
        frame: &Frame<'_>,
        planner: Option<&Planner>,
        states: &[NodeState],
        wanted: &Wanted,
        typed: bool,
    ) {
        if !self.is_new(&frame.source, frame.job.id()) {
            return;
        }
        let Some(planner) = planner else {
            return;
        };
        let states = states.iter().zip(0..).filter(|_| typed);
        let named = states.filter(|(state, _)| !state.present.is_empty());
        let named = named.map(|(_, node)| node);
        let (share, nodes) = planner.share(&wanted.request, wanted.nodes, named);
        self.learner.arrives(share, nodes);
    }

    /// A job is seen to run that was not decided before: after a restart, or as an element of an array. Where
    /// it names a GPU model, the node types that it needs are those that it has.
    pub fn runs(
        &mut self,
        source: &Source<'_>,
        planner: Option<&Planner>,
        seen: Seen,
        held: &[Holding],
    ) {
        let nodes = held.len() as u64;
        if seen.gpus == 0 || nodes == 0 || !self.is_new(source, seen.job) {
            return;
        }
        let most = |figure: fn(&Holding) -> u64| held.iter().map(figure).max().unwrap_or(0);
        let share = Share {
            gpus: seen.gpus.div_ceil(nodes).min(255) as u8,
            cpus: most(|one| u64::from(one.cpus)) as u32,
            memory_gib: most(|one| one.memory_mib).div_ceil(1024).min(1 << 20) as u32,
            types: match (planner, seen.typed) {
                (Some(planner), true) => planner.types_of(held.iter().map(|one| one.node)),
                _ => 0,
            },
        };
        self.learner.arrives(share, nodes as u32);
    }

    /// Whether a job was not counted before.
    pub fn is_new(&mut self, source: &Source<'_>, job: u32) -> bool {
        if self.seen.len() >= self.limit.max(REMEMBERED) {
            self.seen.retain(|id| source.job(*id).is_some());
            self.limit = 2 * self.seen.len();
        }
        self.seen.insert(job)
    }

    /// After a call: goes on with the values, a little, as far as there is time.
    pub fn works(
        &mut self,
        source: &Source<'_>,
        planner: Option<&mut Planner>,
        records: &mut Records,
        spare: Spare,
    ) {
        let work = spare.work(source.nodes());
        if let Some(planner) = planner.filter(|_| work != 0) {
            self.works_on(source, planner, records, work);
        }
    }

    #[inline(never)]
    fn works_on(
        &mut self,
        source: &Source<'_>,
        planner: &mut Planner,
        records: &mut Records,
        work: usize,
    ) {
        if planner.has_work() {
            let classes = planner
                .learning()
                .map_or(0, |expected| expected.classes.len());
            if planner.work(work / (classes + ENTRY))
                && let Some(expected) = planner.learned()
            {
                records.learned(expected);
                let sizes = expected.sizes().into_iter().take(4);
                let sizes: Vec<String> = sizes
                    .map(|(gpus, part)| format!("{part} % of {gpus}"))
                    .collect();
                let jobs = self.learner.arrived();
                log::info(&messages::mix_is_learned(jobs, sizes.join(", ")));
            }
        } else if self.learner.due() {
            let mut sizes = vec![(0, 0); planner.types()];
            for index in 0..source.nodes() {
                if let (Some(node), Some(number)) =
                    (source.node(index), planner.type_number(index as u32))
                {
                    let size: &mut (u32, u64) = &mut sizes[number];
                    *size = (size.0.max(node.cpus()), size.1.max(node.memory()));
                }
            }
            planner.learn(self.learner.expected(sizes));
        }
    }
}
