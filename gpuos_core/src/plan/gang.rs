//! Jobs on several nodes: the domain, the nodes in it and their GPUs.
//!
//! The narrowest level that has a domain with room for the whole job is taken; the level `any`
//! is one domain with all nodes. Among the domains of that level the best is, in this order:
//! near the named jobs (or away from them) by an affinity rule; the fewest nodes (the most, for a
//! request with a share per node and a range of nodes); the highest ring of the worst node; the
//! fewest domains of the narrowest level spanned; the least usability lost; the least room left
//! over; the wider domain with the least room left over; the lowest domain. `pack` puts the room
//! left over before the usability, `spread` does the same with the most room.
//!
//! Which nodes inside the domain: see [`super::select`].

use super::Planner;
use super::fabric::{FabricIndex, Span};
use super::gpus::MILLI;
use super::job::{Job, Rule, View};
use super::links::UNITS_PER_GBPS;
use super::types::{Choice, NodeChoice};
use crate::gpuset::GpuSet;
use crate::model::NO_DOMAIN;

/// A node that has room for a part of the job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// Node index.
    pub node: u32,
    /// Units that it has room for.
    pub units: u32,
    /// Units that it is given.
    pub give: u32,
    /// Free GPUs.
    pub free: GpuSet,
    /// Ring of the share that it would be given.
    pub ring: u32,
    /// Usability lost by that share.
    pub lost: u32,
    /// Rank by the affinity rule, lower first.
    pub distance: u32,
}

/// Added to the rank of nodes to avoid; more than any rank by affinity.
const AVOID: u32 = 1 << 16;

/// Rank of a domain, lower first.
type Key = [u32; 8];

/// Lists kept between calls.
#[derive(Debug)]
pub struct Scratch {
    /// By node: what it offers; `units` = 0 for none.
    pub offers: Vec<Entry>,
    /// Whether a node is in a domain that was offered already.
    covered: Vec<bool>,
    /// By level and domain: units of room.
    room: Vec<Vec<u32>>,
    /// Domains with room, and the room that stays over in each.
    options: Vec<(Key, Span, u32)>,
    /// Nodes of the domain at hand that must be part, and the others.
    pub must: Vec<Entry>,
    pub others: Vec<Entry>,
    /// Those of the others that are in question, and their ranks.
    pub work: Vec<Entry>,
    pub rank: Vec<(u32, u32)>,
    /// Whether a node is in `picked`, and how many of a domain are, by level.
    pub taken: Vec<bool>,
    pub held: Vec<Vec<u32>>,
    /// The nodes chosen in it.
    pub picked: Vec<Entry>,
    /// By level: children of a domain while nodes are chosen in it.
    pub runs: Vec<Vec<super::select::Run>>,
    /// By narrowest domain: the call that counted it last.
    seen: Vec<u32>,
    stamp: u32,
}

impl Scratch {
    pub fn new(fabric: &FabricIndex, nodes: usize) -> Scratch {
        let entries = || Vec::with_capacity(nodes);
        let most = (0..=fabric.levels).map(|level| fabric.spans(level).len());
        Scratch {
            offers: vec![Entry::default(); nodes],
            covered: vec![false; nodes],
            room: fabric.ids.iter().map(|&ids| vec![0; ids]).collect(),
            options: Vec::with_capacity(most.max().unwrap_or(0)),
            must: entries(),
            others: entries(),
            work: entries(),
            rank: Vec::with_capacity(nodes),
            taken: vec![false; nodes],
            held: fabric.ids.iter().map(|&ids| vec![0; ids]).collect(),
            picked: entries(),
            runs: (0..fabric.levels)
                .map(|level| Vec::with_capacity(fabric.spans(level).len() + 1))
                .collect(),
            seen: vec![0; fabric.ids[0]],
            stamp: 0,
        }
    }
}

impl Planner {
    /// Puts choice number `skip` on domains of the levels `from..=to` into `self.choice`; else
    /// takes the number of choices off `skip`. After the domains of a level come those with room
    /// left over once more, with other nodes. With `within`, all nodes lie in one domain of
    /// that level. Domains that contain one with room at a level asked before give nothing new
    /// and are left out, also across calls with ascending `from`.
    pub(super) fn gang(
        &mut self,
        view: View,
        job: &Job,
        from: usize,
        to: usize,
        within: Option<usize>,
        skip: &mut u32,
    ) -> bool {
        let offered = self.offers(view, job, within);
        if from == 0 {
            self.gang.covered.fill(false);
        }
        for level in from..=to {
            self.gang.options.clear();
            for at in 0..self.fabric.spans(level).len() {
                let span = self.fabric.spans(level)[at];
                if self.covered(level, span) || !self.gather(job, level, span) {
                    continue;
                }
                if let Some(left) = self.select(job, level) {
                    let key = self.key(job, level, span, left);
                    self.gang.options.push((key, span, left));
                }
            }
            let found = self.gang.options.len() as u32;
            for &(_, span, _) in &self.gang.options {
                for &node in self.fabric.nodes(level, span) {
                    self.gang.covered[node as usize] = true;
                }
            }
            for again in [false, true] {
                if again {
                    self.gang.options.retain(|&(_, _, left)| left > 0);
                }
                let count = self.gang.options.len() as u32;
                if *skip >= count {
                    *skip -= count;
                } else {
                    let nth = self.gang.options.select_nth_unstable(*skip as usize);
                    let span = nth.1.1;
                    self.gather(job, level, span);
                    self.select(job, level);
                    if again {
                        self.avoid_picked(job, level, span);
                    }
                    self.settle(job, offered, found);
                    return true;
                }
            }
        }
        false
    }

    /// Chooses again in the domain, with as few of the nodes in `picked` as possible.
    fn avoid_picked(&mut self, job: &Job, level: usize, span: Span) {
        for entry in &self.gang.picked {
            self.gang.offers[entry.node as usize].distance += AVOID;
        }
        self.gather(job, level, span);
        self.select(job, level);
    }

    /// Finds out what each node offers; returns how many offer something.
    pub(super) fn offers(&mut self, view: View, job: &Job, within: Option<usize>) -> u32 {
        for room in &mut self.gang.room {
            room.fill(0);
        }
        let mut offered = 0;
        for at in 0..self.fabric.all().len() {
            let node = self.fabric.all()[at];
            let state = view.node(node, self.all_gpus(node));
            let inside = within.is_none_or(|level| self.fabric.domain(level, node) != NO_DOMAIN);
            let units = if inside { job.room(&state) } else { 0 };
            let mut entry = Entry {
                node,
                units,
                free: state.free,
                distance: job.distance(&state),
                ..Entry::default()
            };
            if units > 0 {
                offered += 1;
                if job.units.is_none() {
                    self.price(job, &mut entry, 1);
                }
                for level in 0..=self.fabric.levels {
                    let domain = self.fabric.domain(level, node);
                    if domain != NO_DOMAIN {
                        self.gang.room[level][domain as usize] += units;
                    }
                }
            }
            self.gang.offers[node as usize] = entry;
        }
        offered
    }

    /// Ring and usability lost when the node is given so many units; returns the GPUs.
    pub(super) fn price(&mut self, job: &Job, entry: &mut Entry, units: u32) -> GpuSet {
        let count = (units * job.unit) as usize;
        let table = &mut self.tables[self.type_of[entry.node as usize] as usize];
        let pick = table.best(entry.free, count, false).unwrap_or_default();
        entry.ring = pick.ring;
        entry.lost = match job.whole {
            true => table.usable(entry.free),
            false => pick.lost,
        };
        pick.set
    }

    /// Whether part of the domain was offered at a narrower level.
    fn covered(&self, level: usize, span: Span) -> bool {
        let mut nodes = self.fabric.nodes(level, span).iter();
        nodes.any(|&node| {
            self.gang.covered[node as usize] && self.gang.offers[node as usize].units > 0
        })
    }

    /// Collects the offers of a domain; false when a node that must be part offers nothing there.
    pub(super) fn gather(&mut self, job: &Job, level: usize, span: Span) -> bool {
        let scratch = &mut self.gang;
        scratch.must.clear();
        scratch.others.clear();
        for &node in self.fabric.nodes(level, span) {
            let entry = scratch.offers[node as usize];
            if entry.units == 0 {
                continue;
            }
            if job.required.binary_search(&node).is_ok() {
                scratch.must.push(entry);
            } else {
                scratch.others.push(entry);
            }
        }
        scratch.must.len() == job.required.len()
    }

    /// Ranks the domain by what is in `picked`.
    fn key(&mut self, job: &Job, level: usize, span: Span, left: u32) -> Key {
        let scratch = &mut self.gang;
        let nodes = scratch.picked.len() as u32;
        let sum = |of: fn(&Entry) -> u32| {
            scratch
                .picked
                .iter()
                .fold(0u32, |acc, entry| acc.saturating_add(of(entry)))
        };
        let lost = sum(|entry| entry.lost);
        // Mean, so that more nodes do not count as farther away.
        let distance = sum(|entry| entry.distance) / nodes.max(1);
        let ring = scratch.picked.iter().map(|entry| entry.ring).min();
        scratch.stamp += 1;
        let mut spanned = 0;
        for entry in &scratch.picked {
            let domain = self.fabric.domain(0, entry.node) as usize;
            match scratch.seen.get_mut(domain) {
                Some(seen) if *seen == scratch.stamp => {}
                Some(seen) => {
                    *seen = scratch.stamp;
                    spanned += 1;
                }
                None => spanned += 1,
            }
        }
        let outer = if level < self.fabric.levels {
            let node = scratch.picked[0].node;
            match self.fabric.domain(level + 1, node) {
                NO_DOMAIN => 0,
                domain => scratch.room[level + 1][domain as usize],
            }
        } else {
            0
        };
        let [first, second, outer] = match job.rule {
            Rule::Pack => [left, lost, outer],
            Rule::Spread => [u32::MAX - left, lost, u32::MAX - outer],
            _ => [lost, left, outer],
        };
        [
            distance,
            if job.units.is_some() {
                nodes
            } else {
                u32::MAX - nodes
            },
            u32::MAX - ring.unwrap_or(0),
            spanned,
            first,
            second,
            outer,
            span.domain,
        ]
    }

    /// Turns `picked` into the choice.
    fn settle(&mut self, job: &Job, offered: u32, found: u32) {
        let mut nodes = std::mem::take(&mut self.choice.nodes);
        nodes.clear();
        let mut lost = 0;
        let mut bus = u32::MAX;
        let mut nic = u32::MAX;
        for at in 0..self.gang.picked.len() {
            let mut entry = self.gang.picked[at];
            let give = entry.give;
            let mut set = self.price(job, &mut entry, give);
            if job.whole {
                set = entry.free;
                entry.ring = self.tables[self.type_of[entry.node as usize] as usize].ring(set);
            }
            lost += entry.lost;
            if set.len() > 1 {
                bus = bus.min(entry.ring);
            }
            nic = nic.min(self.nic(entry.node, set));
            nodes.push(NodeChoice {
                node: entry.node,
                gpus: if job.leave { GpuSet::EMPTY } else { set },
            });
        }
        nodes.sort_unstable_by_key(|choice| choice.node);
        let (level, domain) = self.fabric.common(nodes.iter().map(|choice| choice.node));
        let mut reached = level as u32 + 2;
        let mut domain = domain;
        if nodes.len() == 1 {
            (reached, domain) = (1, None);
        } else {
            let known = self
                .cluster
                .fabric
                .levels
                .get(level)
                .map_or(0.0, |l| l.gbps);
            let link = if known > 0.0 {
                (known * UNITS_PER_GBPS) as u32
            } else {
                nic
            };
            if link > 0 {
                bus = bus.min(link);
            }
        }
        self.choice = Choice {
            nodes,
            reached,
            domain,
            bus_gbps: if bus == u32::MAX {
                0.0
            } else {
                bus as f32 / UNITS_PER_GBPS
            },
            usability_lost: lost as f32 / MILLI as f32,
            feasible_nodes: offered,
            feasible_domains: found,
        };
    }
}
