//! Which nodes with placements a job with slices is offered, and in which order.
use gpuos_model::gpu_index::{GresGpu, NvmlIndex, NvmlSet, PoolGpu, PoolSet};
use gpuos_model::gpuset::GpuSet;

use super::pool::Pick;

/// GPUs of a node's pool that are out of service. The node says so of the GPUs of a pool by NVML's index, of those that are also in
/// GRES `gpu` by their number there: `gres_of`.
pub fn out_of_service(
    pool: NvmlSet,
    pool_out: NvmlSet,
    gres_out: GpuSet,
    gres_of: impl Fn(NvmlIndex) -> Option<GresGpu>,
) -> PoolSet {
    let is_out = |nvml: NvmlIndex| {
        pool_out.contains(nvml) || gres_of(nvml).is_some_and(|gres| gres.is_in(gres_out))
    };
    let out = pool.iter().enumerate().filter(|(_, nvml)| is_out(*nvml));
    out.filter_map(|(nth, _)| PoolGpu::new(nth)).collect()
}

/// A node on which a job's instances have placements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its index.
    pub node: usize,
    /// Whether the job names the node: it needs all that it names.
    pub named: bool,
    /// When the placements are free; 0 = now.
    pub at: i64,
    /// Slurm's weight of the node.
    pub weight: u64,
    /// The placements.
    pub pick: Pick,
}

/// How many nodes a job needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// The fewest.
    pub min: usize,
    /// Those that it would like.
    pub wanted: usize,
    /// Nodes that it names.
    pub named: usize,
}

/// The nodes of one decision, the best first once they are [ranked](Candidates::rank). The room is kept.
#[derive(Clone, Default, Debug)]
pub struct Candidates {
    all: Vec<Candidate>,
    /// How many of them have room now.
    now: usize,
}

impl Candidates {
    /// Another decision begins.
    pub fn clear(&mut self) {
        self.all.clear();
        self.now = 0;
    }

    /// Adds a node that has room now.
    pub fn push(&mut self, candidate: Candidate) {
        self.all.push(candidate);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many of them the job names.
    pub fn named(&self) -> usize {
        self.all.iter().filter(|one| one.named).count()
    }

    /// Puts the best first: named ones, then those that are free first, then by Slurm's weight and by what others lose.
    pub fn rank(&mut self) {
        (self.all)
            .sort_unstable_by_key(|one| one.pick.order(one.named, one.at, one.weight, one.node));
    }

    /// Whether they are enough, and have all that the job names.
    pub fn serve(&self, needs: Needs) -> bool {
        self.all.len() >= needs.min && self.named() == needs.named
    }

    /// The `tried`th set that is offered to a job that could start now, and whether it is the last one, with all that have room.
    /// After at most `most` sets comes the last one. After [`Candidates::rank`].
    pub fn offered(
        &self,
        needs: Needs,
        tried: usize,
        most: usize,
    ) -> (impl Iterator<Item = &Candidate>, bool) {
        let count = self.all.len();
        let named = self.named();
        // Those that are named, and the next best of the others.
        let others = needs.wanted.min(count).saturating_sub(named);
        let from = named + tried;
        let last = tried >= most || from + others > count || others == 0;
        let sets = match last {
            true => (&self.all[..], &[][..]),
            false => (&self.all[..named], &self.all[from..from + others]),
        };
        (sets.0.iter().chain(sets.1), last)
    }

    /// From here on nodes are added that have room later. They may be asked for those that have room now.
    pub fn begin_later(&mut self) {
        self.now = self.all.len();
        self.all.sort_unstable_by_key(|one| one.node);
    }

    /// Whether a node has room now. After [`Candidates::begin_later`].
    pub fn fits_now(&self, node: usize) -> bool {
        let now = &self.all[..self.now];
        now.binary_search_by_key(&node, |one| one.node).is_ok()
    }

    /// The two sets that are offered for a start later: the fewest nodes, and all. After [`Candidates::rank`].
    pub fn offered_later(&self, needs: Needs) -> [&[Candidate]; 2] {
        let all = self.all.len();
        let fewest = needs.min.min(all).max(self.named());
        [&self.all[..fewest], &self.all[..]]
    }
}

/// What running jobs give back on a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Released {
    /// The node's index.
    pub node: usize,
    /// When.
    pub at: i64,
    /// The slices.
    pub bits: u64,
}

/// Of what is given back, in order, that of one node.
pub fn releases_of(all: &[Released], node: usize) -> impl Iterator<Item = (i64, u64)> + '_ {
    let from = all.partition_point(|one| one.node < node);
    let own = all[from..].iter().take_while(move |one| one.node == node);
    own.map(|one| (one.at, one.bits))
}
