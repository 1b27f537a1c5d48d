//! Sets of nodes that lie close together, and the one with the most bandwidth.

use super::bandwidth::{Promises, Scratch};
use super::torus::Boxes;
use super::{NONE, Net};
use crate::gpuset::GpuSet;
use crate::model::NO_DOMAIN;

/// Sets that [`Net::best_set`] looks at one by one before it takes a short cut.
const MAX_SETS: u64 = 4096;

/// Rounds of exchanges, and exchanges tried in all, in the short cut.
const MAX_ROUNDS: usize = 8;
const MAX_EXCHANGES: usize = 8192;

/// Compact sets of nodes, one after another, and the working space of the search for them.
#[derive(Clone, Debug, Default)]
pub struct Compact {
    nodes: Vec<u32>,
    ends: Vec<u32>,
    boxes: Boxes,
    /// Free nodes, domain after domain.
    free: Vec<u32>,
    /// Domains with room: what would stay over, level, range of `free`.
    options: Vec<(u32, u32, u32, u32)>,
    /// By level: ranges of `free` to choose from.
    runs: Vec<Vec<(u32, u32)>>,
    gang: Vec<(u32, GpuSet)>,
}

impl Compact {
    /// Number of sets found.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether none was found.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A set: nodes in the order in which they were taken.
    pub fn set(&self, nth: usize) -> &[u32] {
        let from = if nth == 0 { 0 } else { self.ends[nth - 1] };
        &self.nodes[from as usize..self.ends[nth] as usize]
    }
}

impl Net {
    /// Of `count` choices the one with the most bandwidth beside the promises: its number and its
    /// bandwidth; the first of equals. `choice` puts the nodes of a choice into the list, which is
    /// empty, and says whether there is such a choice; the first that is missing ends the search.
    pub fn refine(
        &self,
        promises: &Promises,
        scratch: &mut Scratch,
        gang: &mut Vec<(u32, GpuSet)>,
        count: usize,
        mut choice: impl FnMut(usize, &mut Vec<(u32, GpuSet)>) -> bool,
    ) -> Option<(usize, u32)> {
        let mut best: Option<(usize, u32)> = None;
        for nth in 0..count {
            gang.clear();
            if !choice(nth, gang) {
                break;
            }
            let units = self.bandwidth(promises, scratch, gang);
            if best.is_none_or(|(_, most)| units > most) {
                best = Some((nth, units));
            }
        }
        best
    }

    /// Finds up to `most` compact sets of `need` nodes among those that are free. On a torus first
    /// boxes with the shortest sides; then, on every fabric, domains from the narrow to the wide,
    /// those first that leave the least over; last the fewest domains that together have room. In a
    /// domain, the smallest inner domain with room is taken, or else the largest ones whole.
    pub fn compact(
        &self,
        work: &mut Compact,
        need: usize,
        most: usize,
        free: impl Fn(u32) -> bool,
    ) {
        work.nodes.clear();
        work.ends.clear();
        work.free.clear();
        work.free
            .extend(self.nested.iter().copied().filter(|&n| free(n)));
        if need == 0 || need > work.free.len() || most == 0 {
            return;
        }
        for ways in &self.islands {
            if let Some(torus) = &ways.torus {
                let from = work.ends.len();
                let (nodes, ends) = (&mut work.nodes, &mut work.ends);
                let left = most.saturating_sub(from).div_ceil(2);
                torus.boxes(&mut work.boxes, need, &free, left, nodes, ends);
                self.trim(work, from, need);
            }
        }
        self.domains(work, need);
        let any = (
            0,
            self.fabric.levels.len() as u32,
            0,
            work.free.len() as u32,
        );
        work.options.push(any);
        let mut at = 0;
        while at < work.options.len() && work.ends.len() < most {
            let (_, level, from, to) = work.options[at];
            at += 1;
            self.take(work, level as usize, (from, to), need);
            work.ends.push(work.nodes.len() as u32);
        }
    }

    /// Shortens boxes to the nodes needed: the first ones on the walk from neighbour to neighbour.
    fn trim(&self, work: &mut Compact, first: usize, need: usize) {
        let mut from = if first == 0 {
            0
        } else {
            work.ends[first - 1] as usize
        };
        let mut write = from;
        for end in &mut work.ends[first..] {
            let to = *end as usize;
            work.nodes[from..to].sort_unstable_by_key(|&n| self.rank[n as usize]);
            work.nodes.copy_within(from..from + need, write);
            write += need;
            from = to;
            *end = write as u32;
        }
        work.nodes.truncate(write);
    }

    /// Domains with room that hold none with room: by level, then by what stays over.
    fn domains(&self, work: &mut Compact, need: usize) {
        work.options.clear();
        for at in 0..self.fabric.levels.len() {
            let domain = |node: u32| self.domain(at, node);
            let mut from = 0;
            while from < work.free.len() {
                let id = domain(work.free[from]);
                let same = work.free[from..].iter().take_while(|&&n| domain(n) == id);
                let to = from + same.count();
                let narrower = |o: &&(u32, u32, u32, u32)| {
                    o.1 < at as u32 && o.2 >= from as u32 && o.3 <= to as u32
                };
                if id != NO_DOMAIN
                    && to - from >= need
                    && !work.options.iter().any(|o| narrower(&o))
                {
                    let left = (to - from - need) as u32;
                    work.options.push((left, at as u32, from as u32, to as u32));
                }
                from = to;
            }
        }
        work.options
            .sort_unstable_by_key(|&(left, level, from, _)| (level, left, from));
    }

    fn domain(&self, level: usize, node: u32) -> u32 {
        let of = &self.fabric.levels[level].domain_of;
        of.get(node as usize).copied().unwrap_or(NO_DOMAIN)
    }

    /// Takes `need` nodes of a range, which lies in one domain of `level`.
    fn take(&self, work: &mut Compact, level: usize, range: (u32, u32), need: usize) {
        if level == 0 || need == (range.1 - range.0) as usize {
            let from = range.0 as usize;
            let Compact { nodes, free, .. } = work;
            nodes.extend_from_slice(&free[from..from + need]);
            return;
        }
        if work.runs.len() < level {
            work.runs.resize(level, Vec::new());
        }
        let mut runs = std::mem::take(&mut work.runs[level - 1]);
        runs.clear();
        let mut from = range.0;
        while from < range.1 {
            let id = self.domain(level - 1, work.free[from as usize]);
            let rest = &work.free[from as usize..range.1 as usize];
            let same = rest
                .iter()
                .take_while(|&&n| self.domain(level - 1, n) == id);
            let to = from + same.count() as u32;
            runs.push((from, to));
            from = to;
        }
        let mut left = need;
        while left > 0 {
            let room = |run: &(u32, u32)| (run.1 - run.0) as usize;
            let enough = runs.iter().enumerate().filter(|(_, run)| room(run) >= left);
            let tightest = enough.min_by_key(|(at, run)| (room(run), *at));
            let largest = || {
                let all = runs.iter().enumerate();
                all.max_by_key(|(at, run)| (room(run), usize::MAX - at))
            };
            let Some((at, &run)) = tightest.or_else(largest) else {
                break;
            };
            let part = left.min(room(&run));
            self.take(work, level - 1, run, part);
            left -= part;
            runs.swap_remove(at);
            runs.sort_unstable();
        }
        work.runs[level - 1] = runs;
    }

    /// The set of `need` of these nodes with the most bandwidth beside the promises, and that
    /// bandwidth; the first of equals. Up to a few thousand sets are looked at one by one, which is
    /// exact; with more, compact sets and sets grown leaf by leaf are improved by exchanging nodes
    /// one for one, which can miss the best. `None` when there are fewer nodes.
    pub fn best_set(
        &self,
        promises: &Promises,
        scratch: &mut Scratch,
        work: &mut Compact,
        nodes: &[(u32, GpuSet)],
        need: usize,
    ) -> Option<(u32, Vec<(u32, GpuSet)>)> {
        if need == 0 || need > nodes.len() {
            return None;
        }
        if sets(nodes.len(), need) <= MAX_SETS {
            return Some(self.every_set(promises, scratch, nodes, need));
        }
        let mut place = vec![NONE; self.nodes()];
        for (nth, &(node, _)) in nodes.iter().enumerate() {
            if let Some(place) = place.get_mut(node as usize) {
                *place = nth as u32;
            }
        }
        self.compact(work, need, 32, |node| place[node as usize] != NONE);
        let mut gang = std::mem::take(&mut work.gang);
        let mut best: (u32, Vec<usize>) = (0, Vec::new());
        let mut offer = |set: &[usize], units: u32| {
            if best.1.is_empty() || units > best.0 {
                best = (units, set.to_vec());
            }
        };
        for nth in 0..work.len() {
            let set = work.set(nth).iter().map(|&n| place[n as usize] as usize);
            let set: Vec<usize> = set.collect();
            let units = self.of_set(promises, scratch, &mut gang, nodes, &set);
            offer(&set, units);
        }
        self.grow(promises, scratch, &mut gang, nodes, need, &mut offer);
        let (units, mut set) = best;
        let units = self.exchange(promises, scratch, &mut gang, nodes, &mut set, units);
        set.sort_unstable();
        work.gang = gang;
        Some((units, set.into_iter().map(|nth| nodes[nth]).collect()))
    }

    fn of_set(
        &self,
        promises: &Promises,
        scratch: &mut Scratch,
        gang: &mut Vec<(u32, GpuSet)>,
        nodes: &[(u32, GpuSet)],
        set: &[usize],
    ) -> u32 {
        gang.clear();
        gang.extend(set.iter().map(|&at| nodes[at]));
        self.bandwidth(promises, scratch, gang)
    }

    /// Sets that start with the nodes of one leaf and take in, leaf after leaf, the nodes of the one
    /// that leaves the most bandwidth; of a leaf the nodes first whose links are promised least.
    fn grow(
        &self,
        promises: &Promises,
        scratch: &mut Scratch,
        gang: &mut Vec<(u32, GpuSet)>,
        nodes: &[(u32, GpuSet)],
        need: usize,
        offer: &mut impl FnMut(&[usize], u32),
    ) {
        let leaf = |at: usize| match self.fabric.levels.is_empty() {
            true => NO_DOMAIN,
            false => self.domain(0, nodes[at].0),
        };
        let taken = |at: usize| {
            let ports = self.ports(nodes[at].0).iter();
            ports
                .map(|port| promises.on(port.link).0)
                .max()
                .unwrap_or(0)
        };
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        // A node in no leaf is a leaf by itself.
        let alone = |at: usize| if leaf(at) == NO_DOMAIN { at } else { 0 };
        order.sort_by_cached_key(|&at| (leaf(at), alone(at), taken(at), at));
        let leaves: Vec<&[usize]> = order
            .chunk_by(|&a, &b| leaf(a) != NO_DOMAIN && leaf(a) == leaf(b))
            .collect();
        let mut tries = MAX_EXCHANGES;
        let mut set = Vec::with_capacity(need);
        // The first leaf is taken whole, or in parts, for its links upwards may carry less.
        for (seed, part) in (0..leaves.len()).flat_map(|seed| [1, 2, 4].map(|part| (seed, part))) {
            let mut used = vec![false; leaves.len()];
            used[seed] = true;
            set.clear();
            let first = leaves[seed].len().div_ceil(part).min(need);
            set.extend_from_slice(&leaves[seed][..first]);
            while set.len() < need && tries > 0 {
                let mut best: Option<(u32, usize, usize)> = None;
                for at in (0..leaves.len()).filter(|&at| !used[at]) {
                    tries = tries.saturating_sub(1);
                    let room = leaves[at].len().min(need - set.len());
                    set.extend_from_slice(&leaves[at][..room]);
                    let units = self.of_set(promises, scratch, gang, nodes, &set);
                    set.truncate(set.len() - room);
                    let better = |&(most, wide, _): &(u32, usize, usize)| {
                        units > most || units == most && room > wide
                    };
                    if best.as_ref().is_none_or(better) {
                        best = Some((units, room, at));
                    }
                }
                let Some((_, room, at)) = best else { break };
                used[at] = true;
                set.extend_from_slice(&leaves[at][..room]);
            }
            if set.len() == need {
                let units = self.of_set(promises, scratch, gang, nodes, &set);
                offer(&set, units);
            }
        }
    }

    fn every_set(
        &self,
        promises: &Promises,
        scratch: &mut Scratch,
        nodes: &[(u32, GpuSet)],
        need: usize,
    ) -> (u32, Vec<(u32, GpuSet)>) {
        let mut set: Vec<usize> = (0..need).collect();
        let mut best = (0, Vec::new());
        let mut gang = Vec::with_capacity(need);
        loop {
            gang.clear();
            gang.extend(set.iter().map(|&at| nodes[at]));
            let units = self.bandwidth(promises, scratch, &gang);
            if best.1.is_empty() || units > best.0 {
                best = (units, gang.clone());
            }
            // The next set in lexical order.
            let Some(at) = (0..need)
                .rev()
                .find(|&at| set[at] + need - at < nodes.len())
            else {
                return best;
            };
            set[at] += 1;
            for next in at + 1..need {
                set[next] = set[next - 1] + 1;
            }
        }
    }

    /// Exchanges one node for another as long as that gains bandwidth.
    fn exchange(
        &self,
        promises: &Promises,
        scratch: &mut Scratch,
        gang: &mut Vec<(u32, GpuSet)>,
        nodes: &[(u32, GpuSet)],
        set: &mut [usize],
        mut units: u32,
    ) -> u32 {
        let mut inside = vec![false; nodes.len()];
        set.iter().for_each(|&at| inside[at] = true);
        let mut left = MAX_EXCHANGES;
        for _ in 0..MAX_ROUNDS {
            let mut best = (units, 0, 0);
            for out in 0..set.len() {
                for other in (0..nodes.len()).filter(|&at| !inside[at]) {
                    if left == 0 {
                        break;
                    }
                    left -= 1;
                    gang.clear();
                    gang.extend(set.iter().map(|&at| nodes[at]));
                    gang[out] = nodes[other];
                    let units = self.bandwidth(promises, scratch, gang);
                    if units > best.0 {
                        best = (units, out, other);
                    }
                }
            }
            if best.0 == units {
                break;
            }
            let (gain, out, other) = best;
            inside[set[out]] = false;
            inside[other] = true;
            set[out] = other;
            units = gain;
        }
        units
    }
}

/// Number of sets of `need` out of `count`, cut off above [`MAX_SETS`].
fn sets(count: usize, need: usize) -> u64 {
    let mut sets = 1u64;
    for at in 0..need.min(count - need) as u64 {
        sets = sets * (count as u64 - at) / (at + 1);
        if sets > MAX_SETS {
            return sets;
        }
    }
    sets
}
