//! GPUs that are out of service.
//!
//! Those that are out and free count as given, so that nobody gets them. A job that takes whole nodes is not offered a node with
//! such a GPU.
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};

use crate::explain;

/// What a job asks for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Job {
    /// It takes whole nodes.
    pub whole_nodes: bool,
    /// How many nodes it needs.
    pub nodes: u64,
    /// The fewest GPUs that a node has to give to it.
    pub each: u64,
    /// GPUs in all, where it says so; else 0.
    pub sum: u64,
}

/// A candidate of the job.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NodeState {
    /// How many GPUs it has; 0: none, or their bits cannot be read.
    pub devices: usize,
    /// Which of the first 64 are given.
    pub allocated: GpuSet,
    /// Which are out of service.
    pub out: GpuSet,
    /// Whether a GPU of which jobs get slices is out of service.
    pub is_pool_out: bool,
}

/// What is withheld of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Withhold {
    /// Nothing.
    Nothing,
    /// The node: the job would get all its GPUs, also one that is out of service.
    Node,
    /// These GPUs. Those of them that somebody has are his until he ends.
    Gpus {
        /// Which are out of service.
        out: GpuSet,
        /// A job still has one of them: its end gives nobody that GPU.
        held: bool,
        /// The others are too few for the job.
        too_few: bool,
    },
}

impl Job {
    /// What is withheld of a node from the job.
    pub fn withhold(&self, state: &NodeState) -> Withhold {
        // Who takes a whole node gets all its slices; others are given slices elsewhere (`mig`).
        if self.whole_nodes && state.is_pool_out {
            return Withhold::Node;
        }
        let present = GpuSet::first(state.devices);
        let out = state.out.and(present);
        if out.is_empty() || state.devices > MAX_GPUS {
            return Withhold::Nothing;
        }
        if self.whole_nodes {
            return Withhold::Node;
        }
        let held = !out.and(state.allocated).is_empty();
        let sound = present.minus(out).len() as u64;
        Withhold::Gpus {
            out,
            held,
            too_few: held && sound < self.each,
        }
    }

    /// Whether a forecast needs more GPUs than the sound ones that are free now, where it has nodes on which a
    /// job holds a GPU that is out: of each of its nodes, how many are free, and whether it is such a node. By the time of
    /// the start it cannot be told: backfill also asks from a later time on.
    pub fn counts_on_held(&self, nodes: impl Iterator<Item = (u64, bool)>) -> bool {
        let (mut all, mut held, mut enough) = (0, false, true);
        for (free, is_held) in nodes {
            all += free;
            held |= is_held;
            enough &= !is_held || free >= self.each;
        }
        held && !(enough && all >= self.sum)
    }
}

/// Which GPUs a job gets on a node where Slurm has only counted them: it would take the first ones that are free, among
/// them those that are out of service. `given` are those that count as given.
pub fn name_the_sound(devices: usize, given: GpuSet, count: usize) -> GpuSet {
    let free = GpuSet::first(devices).minus(given);
    free.iter().take(count).fold(GpuSet::EMPTY, GpuSet::with)
}

/// What a job could have.
#[derive(Clone, Copy, Default, Debug)]
struct Capacity {
    nodes: u64,
    gpus: u64,
}

impl Capacity {
    fn add(&mut self, gpus: GpuSet, each: u64) {
        let gpus = gpus.len() as u64;
        if gpus >= each {
            self.nodes += 1;
            self.gpus += gpus;
        }
    }

    fn is_enough(&self, job: &Job) -> bool {
        self.nodes >= job.nodes && self.gpus >= job.sum
    }
}

/// Whether GPUs that are out of service are why a job has no place, and which.
#[derive(Clone, Debug)]
pub struct Blame<'a> {
    job: Job,
    /// What it could have now of GPUs in service, and of all.
    now: [Capacity; 2],
    /// The same once all jobs have ended.
    ever: [Capacity; 2],
    total: usize,
    out: Vec<(&'a str, GpuSet)>,
}

impl<'a> Blame<'a> {
    /// No node has been looked at.
    pub fn new(job: Job) -> Blame<'a> {
        Blame {
            job,
            now: Default::default(),
            ever: Default::default(),
            total: 0,
            out: Vec::new(),
        }
    }

    /// Adds a candidate by its name. `state.given` is without those that only count as given.
    pub fn add(&mut self, name: &'a str, state: &NodeState) {
        let present = GpuSet::first(state.devices);
        let out = state.out.and(present);
        let sound = |set: GpuSet| match self.job.whole_nodes && !out.is_empty() {
            true => GpuSet::EMPTY,
            false => set.minus(out),
        };
        let free = present.minus(state.allocated);
        for (sums, set) in [(&mut self.now, free), (&mut self.ever, present)] {
            sums[0].add(sound(set), self.job.each);
            sums[1].add(set, self.job.each);
        }
        self.total += state.devices;
        if !out.is_empty() {
            self.out.push((name, out));
        }
    }

    /// The GPUs that are out of service, as a sentence, where the job would have room now, or could have it at all, if they
    /// were not.
    pub fn sentence(&self) -> Option<String> {
        let blamed = [&self.now, &self.ever]
            .into_iter()
            .any(|[sound, all]| all.is_enough(&self.job) && !sound.is_enough(&self.job));
        blamed.then(|| explain::out_of_service(&self.out, self.total))
    }
}
