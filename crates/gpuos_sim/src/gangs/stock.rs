//! Models of Slurm's own choice: nodes first, then the GPUs with the lowest indices.
//!
//! They follow what `select/cons_tres` of the releases 22.05 to 26.05 does for jobs that ask for
//! a number of nodes and GPUs on each, with nodes of one weight and a CPU share that goes with
//! the GPUs, so that the CPUs a node can give stand in the same proportion as its free GPUs.

use gpuos_model::cluster::{Cluster, NO_DOMAIN};
use gpuos_placement::plan::NodeChoice;

use super::policy::{Ask, FreeCapacity, Policy, take};

/// Slurm without topology plugin (`topology/flat`, once `topology/default`).
///
/// The usable nodes form runs of neighbours. The run that suffices with the least CPUs is taken;
/// when none suffices, the one with the most, and so on for the rest. Inside a run the nodes
/// follow in order, but a single node, or the last one of a job, is the one with the least CPUs.
#[derive(Debug)]
pub struct StockFlat;

/// A run of usable nodes.
#[derive(Clone, Copy)]
struct Run {
    first: usize,
    end: usize,
    cpus: usize,
}

impl Policy for StockFlat {
    fn place(&mut self, room: FreeCapacity<'_>, ask: Ask, _close: bool) -> Option<Vec<NodeChoice>> {
        let mut runs: Vec<Run> = Vec::new();
        let mut open = false;
        let mut usable = 0;
        for node in 0..room.free.len() {
            let cpus = room.free(node).len();
            let fits = cpus >= ask.per_node as usize;
            match runs.last_mut() {
                Some(run) if open && fits => {
                    run.end = node + 1;
                    run.cpus += cpus;
                }
                _ if fits => runs.push(Run {
                    first: node,
                    end: node + 1,
                    cpus,
                }),
                _ => {}
            }
            open = fits;
            usable += usize::from(fits);
        }
        let mut missing = ask.nodes as usize;
        if usable < missing || missing == 0 {
            return None;
        }
        let mut chosen = Vec::with_capacity(missing);
        while missing > 0 {
            let run = runs.swap_remove(best_run(&runs, missing));
            let mut nodes = run.first..run.end;
            if missing == 1 {
                // The first of those with the least CPUs.
                let node = nodes.min_by_key(|&node| room.free(node).len());
                chosen.extend(node.map(|node| node as u32));
                break;
            }
            let taken = missing.min(nodes.len());
            chosen.extend(nodes.by_ref().take(taken).map(|node| node as u32));
            missing -= taken;
        }
        Some(take(room, ask, chosen.into_iter()))
    }
}

/// Index of the run that Slurm turns to next. Its comparison walks the runs from the lowest
/// node up and lets one that does not suffice displace one that does when it has more CPUs.
fn best_run(runs: &[Run], missing: usize) -> usize {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    // Runs that are used up were swapped out of place.
    order.sort_unstable_by_key(|&at| runs[at].first);
    let mut best: Option<(usize, bool)> = None;
    for at in order {
        let run = runs[at];
        let suffices = run.end - run.first >= missing;
        let better = match best {
            None => true,
            Some((known, known_suffices)) => {
                let known = runs[known].cpus;
                match suffices {
                    true => !known_suffices || run.cpus < known,
                    false => run.cpus > known,
                }
            }
        };
        if better {
            best = Some((at, suffices));
        }
    }
    best.map_or(0, |(at, _)| at)
}

/// Slurm with `topology/tree`, a switch for each domain of each level.
///
/// The leaf switch that suffices with the fewest usable nodes is taken; when none suffices, the
/// switches above are compared in the same way, and under the same switch the leaf with the most
/// usable nodes comes first; then the next leaf, near the ones taken, until the job is full. The
/// nodes of a leaf follow in order, whatever is free on them.
#[derive(Debug)]
pub struct StockTree {
    /// By level: switch of each node; the last level is one switch over all.
    switch_of: Vec<Vec<u32>>,
    /// By leaf: its nodes.
    leaves: Vec<Vec<u32>>,
    /// By level and leaf: the switch above.
    above: Vec<Vec<u32>>,
    /// By level and switch: usable nodes, kept between calls.
    usable: Vec<Vec<usize>>,
    /// By leaf: sum of the hops to the leaves taken.
    hops: Vec<usize>,
}

impl StockTree {
    /// Reads the tree from a cluster's fabric.
    pub fn new(cluster: &Cluster) -> StockTree {
        let nodes = cluster.nodes.len();
        let mut switch_of: Vec<Vec<u32>> = cluster
            .fabric
            .levels
            .iter()
            .map(|level| level.domain_of.clone())
            .filter(|of| of.len() == nodes && !of.contains(&NO_DOMAIN))
            .collect();
        switch_of.push(vec![0; nodes]);
        let count = |of: &[u32]| of.iter().max().map_or(0, |&most| most as usize + 1);
        let mut leaves = vec![Vec::new(); count(&switch_of[0])];
        for node in 0..nodes {
            leaves[switch_of[0][node] as usize].push(node as u32);
        }
        let above = switch_of
            .iter()
            .map(|of| {
                let first = |leaf: &Vec<u32>| leaf.first().map_or(0, |&node| of[node as usize]);
                leaves.iter().map(first).collect()
            })
            .collect();
        StockTree {
            usable: switch_of.iter().map(|of| vec![0; count(of)]).collect(),
            hops: vec![0; leaves.len()],
            switch_of,
            leaves,
            above,
        }
    }

    /// Usable nodes under the switch of that level over a leaf.
    fn count(&self, level: usize, leaf: usize) -> usize {
        self.usable[level][self.above[level][leaf] as usize]
    }

    /// Whether leaf `a` is the better fit than leaf `b`, and whether `a`, or the switch above it
    /// that was looked at last, suffices.
    fn compare(&self, a: usize, b: usize, missing: usize) -> (std::cmp::Ordering, bool) {
        let mut level = 0;
        loop {
            let (of_a, of_b) = (self.count(level, a), self.count(level, b));
            let order = match (of_a >= missing, of_b >= missing) {
                (true, true) => Some(of_b.cmp(&of_a)),
                (true, false) => Some(std::cmp::Ordering::Greater),
                (false, true) => Some(std::cmp::Ordering::Less),
                (false, false) => None,
            };
            if let Some(order) = order {
                return (order, of_a >= missing);
            }
            let up = level + 1;
            if up == self.above.len() || self.above[up][a] == self.above[up][b] {
                return (of_a.cmp(&of_b), false);
            }
            level = up;
        }
    }

    fn best_leaf(&self, missing: usize) -> Option<usize> {
        let mut best: Option<usize> = None;
        for leaf in 0..self.leaves.len() {
            if self.count(0, leaf) == 0 {
                continue;
            }
            let Some(known) = best else {
                best = Some(leaf);
                continue;
            };
            let (order, suffices) = self.compare(leaf, known, missing);
            let (hops, hops_known) = (self.hops[leaf], self.hops[known]);
            if hops < hops_known && suffices || hops == hops_known && order.is_gt() {
                best = Some(leaf);
            }
        }
        best
    }

    /// Takes a leaf's nodes off all counts, and adds the way to it.
    fn used(&mut self, leaf: usize, taken: usize) {
        for level in 0..self.usable.len() {
            let switch = self.above[level][leaf] as usize;
            self.usable[level][switch] -= taken;
        }
        self.usable[0][leaf] = 0;
        for other in 0..self.leaves.len() {
            let apart = (0..self.above.len())
                .position(|level| self.above[level][other] == self.above[level][leaf]);
            self.hops[other] += apart.unwrap_or(self.above.len());
        }
    }
}

impl Policy for StockTree {
    fn place(&mut self, room: FreeCapacity<'_>, ask: Ask, _close: bool) -> Option<Vec<NodeChoice>> {
        for counts in &mut self.usable {
            counts.fill(0);
        }
        self.hops.fill(0);
        let mut missing = ask.nodes as usize;
        let mut usable = 0;
        for node in 0..room.free.len() {
            if room.free(node).len() >= ask.per_node as usize {
                usable += 1;
                for (counts, of) in self.usable.iter_mut().zip(&self.switch_of) {
                    counts[of[node] as usize] += 1;
                }
            }
        }
        if usable < missing || missing == 0 {
            return None;
        }
        let mut chosen = Vec::with_capacity(missing);
        while missing > 0 {
            let leaf = self.best_leaf(missing)?;
            let fits = |node: &u32| room.free(*node as usize).len() >= ask.per_node as usize;
            let before = chosen.len();
            let nodes = self.leaves[leaf].iter().copied().filter(fits);
            chosen.extend(nodes.take(missing));
            let taken = chosen.len() - before;
            missing -= taken;
            self.used(leaf, taken);
        }
        Some(take(room, ask, chosen.into_iter()))
    }
}
