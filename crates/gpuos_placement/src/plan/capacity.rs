//! Which nodes have room for how much of the job at hand, and how good each pattern is for a
//! share of it.
use std::ops::Range;

use super::Planner;
use super::bits;
use super::gpus::Pick;
use super::job::{Assume, Job};
use super::pattern_figures::fill;
use super::types::NodeState;

/// How good a pattern is for a share of the job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figure {
    /// Ring of the best GPUs.
    pub ring: u32,
    /// Usability lost.
    pub lost: u32,
    /// See [`Job::order`].
    pub order: [u32; 3],
}

/// All patterns for a share of some number of GPUs.
#[derive(Debug, Default)]
pub struct Ranks {
    stamp: u64,
    /// By slot; meaningful for the slots in `order`.
    pub figures: Vec<Figure>,
    /// Patterns with room for the share, best first by [`Figure::order`].
    pub order: Vec<u32>,
    /// The different rings, highest first.
    pub rings: Vec<u32>,
}

/// Lists of the decision at hand, kept between calls.
#[derive(Debug)]
pub struct Capacity {
    /// Counts the questions asked, so that old ranks are known as such.
    stamp: u64,
    /// What was assumed in the question at hand.
    pub assume: Assume,
    words: usize,
    /// By number of units: the nodes with room for exactly so many.
    units: Vec<u64>,
    /// The highest number of units that a node can have.
    pub most: u32,
    /// The nodes with room for any, and how many they are.
    pub fit: Vec<u64>,
    pub offered: u32,
    /// By number of GPUs of a share.
    ranks: Vec<Ranks>,
}

impl Capacity {
    /// Room for questions about so many positions with up to so many GPUs each.
    pub fn new(positions: usize, gpus: usize) -> Capacity {
        let words = bits::words_for(positions);
        Capacity {
            stamp: 0,
            assume: Assume::Now,
            words,
            units: vec![0; (gpus + 1) * words],
            most: 0,
            fit: vec![0; words],
            offered: 0,
            ranks: (0..=gpus).map(|_| Ranks::default()).collect(),
        }
    }

    /// Makes room for so many patterns.
    pub fn reserve(&mut self, slots: usize) {
        for ranks in &mut self.ranks {
            if ranks.figures.len() < slots {
                let slots = slots.next_power_of_two().max(16);
                ranks.figures.resize(slots, Figure::default());
                ranks.order.reserve(slots - ranks.order.len());
                ranks.rings.reserve(slots - ranks.rings.len());
            }
        }
    }

    /// Most GPUs that a node has.
    pub fn gpus(&self) -> usize {
        self.ranks.len() - 1
    }

    /// The nodes with room for exactly so many units; `units` from 1 to [`Capacity::most`].
    pub fn exactly(&self, units: u32) -> &[u64] {
        &self.units[units as usize * self.words..][..self.words]
    }

    /// The ranks for a share of so many GPUs, which [`rank`] has made.
    pub fn ranks(&self, gpus: u32) -> &Ranks {
        &self.ranks[gpus as usize]
    }

    /// Takes the positions outside of a set away.
    pub fn confine(&mut self, to: &[u64]) {
        for units in 1..=self.most as usize {
            let set = &mut self.units[units * self.words..][..self.words];
            set.iter_mut().zip(to).for_each(|(word, to)| *word &= to);
        }
        self.fit
            .iter_mut()
            .zip(to)
            .for_each(|(word, to)| *word &= to);
        self.offered = bits::count_all(&self.fit);
    }
}

/// Finds out how much of the job each node has room for under an assumption.
pub(super) fn offers(planner: &mut Planner, assume: Assume, job: &Job) {
    ask(planner, assume, job);
    offers_in(planner, job, 0..planner.capacity.words);
    planner.capacity.offered = bits::count_all(&planner.capacity.fit);
}

/// Begins with a question about a job.
pub(super) fn ask(planner: &mut Planner, assume: Assume, job: &Job) {
    let room = &mut planner.capacity;
    let gpus = room.ranks.len() as u32 - 1;
    room.stamp += 1;
    room.assume = assume;
    room.most = match job.units {
        Some(_) => gpus / job.unit,
        None => u32::from(job.unit <= gpus),
    };
}

/// The same for some words of the positions, after [`ask`].
pub(super) fn offers_in(planner: &mut Planner, job: &Job, words: Range<usize>) {
    let (room, state) = (&mut planner.capacity, &planner.state);
    let assume = room.assume;
    room.fit[words.clone()].fill(0);
    let index = state.index(assume);
    for units in 1..=room.most {
        let least = index.least((units * job.unit) as usize);
        let more = (job.units.is_some() && units < room.most)
            .then(|| index.least(((units + 1) * job.unit) as usize));
        let set = &mut room.units[units as usize * room.words..][..room.words];
        for word in words.clone() {
            let mut nodes = least[word] & state.allowed(assume, word);
            if let Some(more) = more {
                nodes &= !more[word];
            }
            if job.whole {
                nodes &= index.whole()[word];
            }
            set[word] = nodes;
            room.fit[word] |= nodes;
        }
    }
    let bare = job.cpus_per_node == 0 && job.cpus_per_gpu == 0 && job.memory_mib == 0;
    if assume == Assume::Now && !bare {
        withhold(planner, job, words);
    }
}

/// Takes back what CPUs or memory do not suffice for.
fn withhold(planner: &mut Planner, job: &Job, words: Range<usize>) {
    let (room, state) = (&mut planner.capacity, &planner.state);
    // More than any share of the job can need.
    let with_gpus = job.cpus_per_gpu.saturating_mul(match job.units {
        Some(_) => room.ranks.len() as u32 - 1,
        None => job.unit,
    });
    let need = job.cpus_per_node.max(with_gpus);
    for word in words {
        let (cpus, memory) = state.floor[word];
        if room.fit[word] == 0 || cpus >= need && memory >= job.memory_mib {
            continue;
        }
        for at in bits::each(word, room.fit[word]) {
            let node = state.node(at);
            let had = match job.units {
                Some(_) => node.free.len() as u32 / job.unit,
                None => 1,
            };
            let has = job.capacity(node);
            if has == had {
                continue;
            }
            bits::set_member(&mut room.units[had as usize * room.words..], at, false);
            if has > 0 {
                bits::set_member(&mut room.units[has as usize * room.words..], at, true);
            } else {
                bits::set_member(&mut room.fit, at, false);
            }
        }
    }
}

/// Leaves only nodes that are in a domain of the level.
pub(super) fn confine(planner: &mut Planner, level: usize) {
    planner.capacity.confine(planner.fabric.inside(level));
}

/// Units that the node at a position has room for.
pub(super) fn units_at(planner: &Planner, job: &Job, at: u32) -> u32 {
    match bits::has(&planner.capacity.fit, at) {
        true => job.capacity(&NodeState {
            candidate: true,
            ..planner.state.assumed(planner.capacity.assume, at)
        }),
        false => 0,
    }
}

/// Units of room in a range of positions.
pub(super) fn units_within(planner: &Planner, start: u32, end: u32) -> u32 {
    (1..=planner.capacity.most)
        .map(|units| units * bits::count(planner.capacity.exactly(units), start, end))
        .sum()
}

/// Sees to it that the patterns are ranked for a share of so many GPUs.
pub(super) fn rank(planner: &mut Planner, job: &Job, gpus: u32) {
    let (room, state) = (&mut planner.capacity, &planner.state);
    let stamp = room.stamp;
    let ranks = &mut room.ranks[gpus as usize];
    if ranks.stamp == stamp {
        return;
    }
    ranks.stamp = stamp;
    ranks.order.clear();
    ranks.rings.clear();
    let index = state.index(room.assume);
    // Those of the empty cluster are asked for rarely.
    let now = room.assume == Assume::Now;
    let known = planner.figures.of(gpus as usize, job.worth);
    for &slot in index.active() {
        let pattern = index.pattern(slot);
        let table = &mut planner.tables[pattern.type_of as usize];
        let (ring, lost) = if now {
            let known = &mut known[slot as usize];
            if known.free == 0 {
                *known = fill(table, pattern, gpus as usize, job.worth);
            }
            if u32::from(known.free) < gpus {
                continue;
            }
            (known.ring, known.lost)
        } else {
            match table.best(pattern.free, gpus as usize, false, job.worth) {
                Some(Pick { ring, lost, .. }) => (ring, lost),
                None => continue,
            }
        };
        let lost = match job.whole {
            true => table.usable(pattern.free, job.worth),
            false => lost,
        };
        ranks.figures[slot as usize] = Figure {
            ring,
            lost,
            order: job.order(pattern.penalty, lost, pattern.free.len() as u32),
        };
        ranks.order.push(slot);
        if !ranks.rings.contains(&ring) {
            ranks.rings.push(ring);
        }
    }
    let figures = &ranks.figures;
    ranks
        .order
        .sort_unstable_by_key(|&slot| figures[slot as usize].order);
    ranks.rings.sort_unstable_by(|a, b| b.cmp(a));
}

/// The best GPUs for `gpus` of the job's GPUs on the node at a position, and what taking them
/// costs. Call it for nodes with so many free GPUs only.
pub(super) fn price(planner: &mut Planner, job: &Job, at: u32, gpus: u32) -> Pick {
    let free = planner.state.index(planner.capacity.assume).free(at);
    let table = &mut planner.tables[planner.type_of[planner.fabric.node(at) as usize] as usize];
    let pick = table.best(free, gpus as usize, false, job.worth);
    let mut pick = pick.unwrap_or_default();
    if job.whole {
        pick.lost = table.usable(free, job.worth);
    }
    pick
}
