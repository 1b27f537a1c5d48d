//! Jobs that ask for shards of a GPU: which GPU of each node they are offered.
//!
//! Slurm gives such a job shards of one GPU of each node, and of none that somebody has whole. Left to itself it takes the GPU with
//! most shards left, so that a few small jobs leave no GPU whole. So it is offered one GPU of each node only: one that is
//! shared already, with the least left that is enough, and an idle one where there is none.
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};

/// The GPUs of a node as a job with shards finds them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NodeState {
    /// How many devices GRES `gpu` has.
    pub devices: usize,
    /// How many GRES `shard` has.
    pub shard_devices: usize,
    /// GPUs that count as given: somebody has them whole, or nobody is to have them.
    pub allocated: u64,
    /// GPUs of which shards are in use.
    pub shared: u64,
    /// GPUs that are to be given last.
    pub degraded: GpuSet,
}

/// The shards of one GPU, as Slurm has them in an entry of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The GPUs of the entry. Slurm has one in each; what has more is not understood.
    pub gpus: u64,
    /// How many shards there are.
    pub all: u64,
    /// How many are in use.
    pub used: u64,
    /// Whether the GPU is of the type that the job asks for.
    pub is_type: bool,
}

/// A GPU with enough shards left, in the order of preference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Part {
    /// It is degraded, and to be given last.
    pub degraded: bool,
    /// Nobody shares it yet.
    pub idle: bool,
    /// Of one that is shared, the shards that are left before this job; of an idle one, how many GPUs of the node
    /// are idle, so that whole nodes stay whole.
    pub left: u64,
    /// The GPU.
    pub gpu: GresGpu,
}

impl NodeState {
    /// The best GPU for so many shards; `None`: no GPU has as many left.
    pub fn best(&self, entries: impl Iterator<Item = Entry>, count: u64) -> Option<Part> {
        if self.devices > MAX_GPUS || self.shard_devices != self.devices {
            return None;
        }
        let taken = u64::from((self.allocated | self.shared).count_ones());
        let idle = (self.devices as u64).saturating_sub(taken);
        entries
            .filter_map(|entry| self.part(entry, idle, count))
            .min()
    }

    fn part(&self, entry: Entry, idle: u64, count: u64) -> Option<Part> {
        let left = entry.all.saturating_sub(entry.used);
        let usable = entry.gpus.count_ones() == 1
            && entry.gpus & self.allocated == 0
            && left >= count
            && entry.is_type;
        let gpu = GresGpu::new(entry.gpus.trailing_zeros() as usize)?;
        usable.then_some(Part {
            degraded: gpu.is_in(self.degraded),
            idle: entry.used == 0,
            left: if entry.used == 0 { idle } else { left },
            gpu,
        })
    }
}

/// A node with a GPU that has enough shards left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its index.
    pub node: usize,
    /// Whether the job names the node: it needs all that it names.
    pub named: bool,
    /// Slurm's weight of the node.
    pub weight: u64,
    /// The node lacks what the job has need of beside a GPU: it comes after others of its weight.
    pub short: bool,
    /// The GPU.
    pub part: Part,
}

/// How many nodes a job needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// Nodes in all.
    pub nodes: usize,
    /// Nodes that it names.
    pub named: usize,
}

/// The nodes of one decision, the best first once they are [ranked](Candidates::rank). The room is kept.
#[derive(Clone, Default, Debug)]
pub struct Candidates {
    all: Vec<Candidate>,
}

/// Which candidates are offered, one set after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempts {
    named: usize,
    others: usize,
    /// How many sets there are, at least one.
    pub count: usize,
}

impl Candidates {
    /// Another decision begins.
    pub fn clear(&mut self) {
        self.all.clear();
    }

    /// Adds a node.
    pub fn push(&mut self, candidate: Candidate) {
        self.all.push(candidate);
    }

    /// Puts the best first: named ones, then by Slurm's weight, then by the GPU, where one that is degraded comes last, before it those of nodes that are short.
    pub fn rank(&mut self) {
        self.all.sort_unstable_by_key(|one| {
            let Candidate { node, part, .. } = *one;
            let last = (part.degraded, one.short);
            (!one.named, one.weight, last, part, node)
        });
    }

    /// What is offered, in at most `most` sets beside the first; `None`: they are too few, or not those that the job names.
    /// After [`Candidates::rank`].
    pub fn attempts(&self, needs: Needs, most: usize) -> Option<Attempts> {
        let named = self.all.iter().filter(|one| one.named).count();
        if self.all.len() < needs.nodes || named > needs.nodes || named != needs.named {
            return None;
        }
        let others = needs.nodes - named;
        let more = match others {
            0 => 0,
            _ => most.min(self.all.len() - needs.nodes),
        };
        Some(Attempts {
            named,
            others,
            count: 1 + more,
        })
    }

    /// The nodes of one set, which is below [`Attempts::count`], and the GPU of each.
    pub fn offered(
        &self,
        attempts: Attempts,
        nth: usize,
    ) -> impl Iterator<Item = (usize, GresGpu)> + '_ {
        let from = attempts.named + nth;
        let (named, others) = (
            &self.all[..attempts.named],
            &self.all[from..from + attempts.others],
        );
        named
            .iter()
            .chain(others)
            .map(|one| (one.node, one.part.gpu))
    }
}
