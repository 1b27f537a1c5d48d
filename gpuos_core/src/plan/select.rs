//! Which nodes inside a domain.
//!
//! A request with a share per node takes the nodes whose worst ring is as high as possible; among
//! these, the fewest domains of each narrower level, from the widest to the narrowest: the largest
//! ones whole, and for the rest the smallest one that suffices; in the last one the nodes with the
//! least usability lost, then the fullest, then the lowest index.
//!
//! A request with units over all nodes takes the fewest nodes that have room for all units.
//! Usually these give all that they have but one node, the best that has room for the rest. When
//! the job wants more nodes than that, the units are shared out evenly.

use std::ops::RangeInclusive;

use super::Planner;
use super::gang::Entry;
use super::job::{Job, Rule};
use crate::gpuset::MAX_GPUS;
use crate::model::NO_DOMAIN;

/// Nodes of one child of a domain: a range of the candidates.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    start: usize,
    len: usize,
    /// Nodes of it that are chosen already.
    used: usize,
    /// Whether these nodes are in no domain of the level.
    stray: bool,
}

impl Planner {
    /// Chooses nodes among `must` and `others` of the domain at hand and leaves them in `picked`;
    /// returns how much room stays over (nodes, or units), or `None` when there is not enough.
    pub(super) fn select(&mut self, job: &Job, level: usize) -> Option<u32> {
        self.forget_picked();
        match job.units {
            None => self.select_shares(job, level),
            Some(units) => self.select_units(job, level, units),
        }
    }

    fn select_shares(&mut self, job: &Job, level: usize) -> Option<u32> {
        let must = self.gang.must.len();
        let have = must + self.gang.others.len();
        if have < job.min as usize {
            return None;
        }
        let nodes = match job.rule {
            Rule::Pack => job.min as usize,
            _ => have.min(job.max as usize),
        };
        for at in 0..must {
            self.choose(self.gang.must[at], 1);
        }
        self.place(job, level, nodes - must, 1, 1..=1);
        Some((have - nodes) as u32)
    }

    fn select_units(&mut self, job: &Job, level: usize, units: u32) -> Option<u32> {
        let must = self.gang.must.len() as u32;
        let have = must + self.gang.others.len() as u32;
        let held: u32 = self.gang.must.iter().map(|entry| entry.units).sum();
        let mut by_room = [0u32; MAX_GPUS + 1];
        let mut room = held;
        for entry in &self.gang.others {
            by_room[entry.units as usize] += 1;
            room += entry.units;
        }
        if room < units || units < must {
            return None;
        }
        // The fewest nodes: the required ones, then the roomiest.
        let mut missing = units.saturating_sub(held);
        let mut fewest = must;
        // Room of the smallest of these, and how many of them have just that.
        let (mut smallest, mut equal) = (0, 0);
        for size in (1..=MAX_GPUS as u32).rev() {
            let need = missing.div_ceil(size).min(by_room[size as usize]);
            if need > 0 {
                (smallest, equal) = (size, need);
                fewest += need;
                missing = missing.saturating_sub(need * size);
            }
        }
        let nodes = fewest.max(job.min);
        if nodes > job.max || nodes > have || nodes > units {
            return None;
        }
        for at in 0..self.gang.must.len() {
            let entry = self.gang.must[at];
            self.choose(entry, entry.units);
        }
        if nodes > fewest || fewest == must {
            self.share_evenly(job, level, units, nodes);
        } else {
            self.fill(job, level, units, smallest, equal);
        }
        for at in 0..self.gang.picked.len() {
            let mut entry = self.gang.picked[at];
            let give = entry.give;
            self.price(job, &mut entry, give);
            self.gang.picked[at] = entry;
        }
        Some(room - units)
    }

    /// All nodes with more room than `smallest` give everything, and `equal` nodes give
    /// `smallest` each, but for the last one, which gives the rest.
    fn fill(&mut self, job: &Job, level: usize, units: u32, smallest: u32, equal: u32) {
        for at in 0..self.gang.others.len() {
            let entry = self.gang.others[at];
            if entry.units > smallest {
                self.choose(entry, entry.units);
            }
        }
        let given: u32 = self.gang.picked.iter().map(|entry| entry.give).sum();
        let rest = units - given - (equal - 1) * smallest;
        if rest == smallest {
            self.place(job, level, equal as usize, smallest, smallest..=smallest);
            return;
        }
        self.place(
            job,
            level,
            equal as usize - 1,
            smallest,
            smallest..=smallest,
        );
        self.place(job, level, 1, rest, rest..=MAX_GPUS as u32);
    }

    /// `nodes` nodes give equal parts, as far as they have room for them.
    fn share_evenly(&mut self, job: &Job, level: usize, units: u32, nodes: u32) {
        let more = nodes as usize - self.gang.picked.len();
        let share = units.div_ceil(nodes);
        let able = |entry: &&Entry| entry.units >= share;
        let held: u32 = self
            .gang
            .must
            .iter()
            .map(|entry| entry.units.min(share))
            .sum();
        let enough = self.gang.others.iter().filter(able).count() >= more
            && held + more as u32 * share >= units;
        if enough {
            self.place(job, level, more, share, share..=MAX_GPUS as u32);
        } else {
            self.gang
                .others
                .sort_unstable_by_key(|entry| (u32::MAX - entry.units, entry.distance, entry.node));
            for at in 0..more {
                self.choose(self.gang.others[at], 0);
            }
        }
        // From the node with the least room: an equal part of what is left, or all it has.
        let picked = &mut self.gang.picked;
        picked.sort_unstable_by_key(|entry| (entry.units, entry.node));
        let mut missing = units;
        let mut left = nodes;
        for entry in picked {
            entry.give = entry.units.min(missing.div_ceil(left));
            missing -= entry.give;
            left -= 1;
        }
    }

    fn choose(&mut self, entry: Entry, give: u32) {
        self.gang.taken[entry.node as usize] = true;
        for level in 0..self.fabric.levels {
            let domain = self.fabric.domain(level, entry.node);
            if domain != NO_DOMAIN {
                self.gang.held[level][domain as usize] += 1;
            }
        }
        self.gang.picked.push(Entry { give, ..entry });
    }

    fn forget_picked(&mut self) {
        for entry in self.gang.picked.drain(..) {
            self.gang.taken[entry.node as usize] = false;
            for level in 0..self.fabric.levels {
                let domain = self.fabric.domain(level, entry.node);
                if domain != NO_DOMAIN {
                    self.gang.held[level][domain as usize] -= 1;
                }
            }
        }
    }

    /// Chooses `wanted` more nodes of those that have `room`, for a share of `give` units each.
    fn place(
        &mut self,
        job: &Job,
        level: usize,
        wanted: usize,
        give: u32,
        room: RangeInclusive<u32>,
    ) {
        self.gang.work.clear();
        let mut rings = (u32::MAX, 0);
        for at in 0..self.gang.others.len() {
            let mut entry = self.gang.others[at];
            if self.gang.taken[entry.node as usize] || !room.contains(&entry.units) {
                continue;
            }
            if job.units.is_some() {
                self.price(job, &mut entry, give);
            }
            entry.give = give;
            rings = (rings.0.min(entry.ring), rings.1.max(entry.ring));
            self.gang.work.push(entry);
        }
        if wanted == 0 || self.gang.work.len() < wanted {
            return;
        }
        if rings.0 != rings.1 {
            // The worst ring can be no better than that of the last one wanted.
            let list = &mut self.gang.rank;
            list.clear();
            list.extend(
                self.gang
                    .work
                    .iter()
                    .map(|entry| (entry.distance, u32::MAX - entry.ring)),
            );
            list.select_nth_unstable(wanted - 1);
            let worst = list[..wanted].iter().map(|&(_, rank)| rank).max();
            let worst = u32::MAX - worst.unwrap_or(u32::MAX);
            self.gang.work.retain(|entry| entry.ring >= worst);
        }
        let end = self.gang.work.len();
        self.take(job, level, 0, end, wanted);
    }

    /// Takes `wanted` nodes of `work[start..end]`, which are the candidates in one domain of the
    /// level, in the order of its children.
    fn take(&mut self, job: &Job, level: usize, start: usize, end: usize, wanted: usize) {
        if level == 0 || wanted == end - start {
            self.take_best(job, start, end, wanted);
            return;
        }
        let inner = level - 1;
        let mut runs = std::mem::take(&mut self.gang.runs[inner]);
        self.split(inner, start, end, &mut runs);
        let mut missing = wanted;
        while missing > 0 {
            // A child that holds chosen nodes already, then the smallest that suffices, then the
            // largest; nodes in no domain of that level come last.
            let rank = |run: &Run| {
                let suffices = run.len >= missing;
                let size = if suffices {
                    run.len
                } else {
                    usize::MAX - run.len
                };
                (run.stray, usize::MAX - run.used, !suffices, size)
            };
            let Some(at) = (0..runs.len())
                .filter(|&at| runs[at].len > 0)
                .min_by_key(|&at| rank(&runs[at]))
            else {
                break;
            };
            let run = runs[at];
            let part = run.len.min(missing);
            self.take(job, inner, run.start, run.start + run.len, part);
            runs[at].len = 0;
            missing -= part;
        }
        self.gang.runs[inner] = runs;
    }

    fn take_best(&mut self, job: &Job, start: usize, end: usize, wanted: usize) {
        let rank = |entry: &Entry| {
            let order = job.order(entry.lost, entry.free.len() as u32);
            (entry.distance, order, entry.node)
        };
        if wanted < end - start {
            self.gang.work[start..end].select_nth_unstable_by_key(wanted - 1, rank);
        }
        for at in start..start + wanted {
            let entry = self.gang.work[at];
            self.choose(entry, entry.give);
        }
    }

    /// Cuts `work[start..end]` into its children at a level.
    fn split(&self, level: usize, start: usize, end: usize, runs: &mut Vec<Run>) {
        runs.clear();
        let mut last = None;
        for at in start..end {
            let domain = self.fabric.domain(level, self.gang.work[at].node);
            if last != Some(domain) {
                let held = self.gang.held[level].get(domain as usize);
                runs.push(Run {
                    start: at,
                    len: 0,
                    used: held.map_or(0, |&held| held as usize),
                    stray: domain == NO_DOMAIN,
                });
                last = Some(domain);
            }
            if let Some(run) = runs.last_mut() {
                run.len += 1;
            }
        }
    }
}
