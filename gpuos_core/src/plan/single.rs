//! Jobs on one node: the node and its GPUs together.
//!
//! The best place is, in this order: near the named jobs (or away from them) by an affinity rule;
//! the GPU set with the highest ring, then total bandwidth; the least usability lost; the fullest
//! node; in the fabric, the domain with the fewest nodes that are wholly free, from the narrowest
//! level to the widest, so that whole leaves stay free; the lowest node index. `pack` puts the
//! fullest node before the usability, `spread` the emptiest, and turns the order of domains round.

use std::cmp::Ordering;

use super::fabric::FabricIndex;
use super::gpus::{MILLI, Pick};
use super::job::{Job, Rule, View};
use super::links::{UNITS_PER_GBPS, nic_units};
use super::types::{Choice, NodeChoice, NodeState};
use super::{Linked, Planner};
use crate::gpuset::GpuSet;
use crate::model::{NO_DOMAIN, NodeType};

/// A node that has room, with its rank before the fabric is looked at: lower is better.
#[derive(Clone, Copy, Debug)]
struct Room {
    key: [u32; 5],
    node: u32,
}

/// Lists kept between calls.
#[derive(Debug)]
pub struct Scratch {
    rooms: Vec<Room>,
    /// By level and domain: nodes that are wholly free.
    whole: Vec<Vec<u32>>,
}

impl Scratch {
    pub fn new(fabric: &FabricIndex, nodes: usize) -> Scratch {
        Scratch {
            rooms: Vec::with_capacity(nodes),
            whole: fabric.ids.iter().map(|&ids| vec![0; ids]).collect(),
        }
    }

    /// Order of two nodes by their domains: fewest wholly free nodes first.
    fn by_place(&self, fabric: &FabricIndex, a: u32, b: u32) -> Ordering {
        let whole = |level: usize, node| match fabric.domain(level, node) {
            NO_DOMAIN => 0,
            domain => self.whole[level][domain as usize],
        };
        (0..fabric.levels)
            .map(|level| whole(level, a).cmp(&whole(level, b)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

impl Planner {
    /// Puts choice number `skip` on one node into `self.choice`; else takes the number of
    /// choices off `skip`.
    pub(super) fn one(&mut self, view: View, job: &Job, linked: Linked, skip: &mut u32) -> bool {
        let Ok(count) = usize::try_from(job.gpus_on_one()) else {
            return false;
        };
        let (offered, found) = self.rooms(view, job, count, linked, *skip == 0);
        if *skip >= found {
            *skip -= found;
            return false;
        }
        let nth = std::mem::take(skip) as usize;
        let mut rooms = std::mem::take(&mut self.single.rooms);
        let order = |a: &Room, b: &Room| {
            let place = || match job.rule {
                Rule::Spread => self.single.by_place(&self.fabric, b.node, a.node),
                _ => self.single.by_place(&self.fabric, a.node, b.node),
            };
            a.key.cmp(&b.key).then_with(place).then(a.node.cmp(&b.node))
        };
        let best = match nth {
            0 => rooms.iter().min_by(|a, b| order(a, b)).copied(),
            _ => Some(*rooms.select_nth_unstable_by(nth, order).1),
        };
        self.single.rooms = rooms;
        let node = best.map(|room| room.node);
        node.is_some_and(|node| self.settle_one(view, job, count, linked, node, (offered, found)))
    }

    /// Ranks the nodes with room for the whole job, or only the `foremost`: those with the best
    /// key. Returns how many nodes have room for a part of the job, and how many for all of it.
    fn rooms(
        &mut self,
        view: View,
        job: &Job,
        count: usize,
        linked: Linked,
        foremost: bool,
    ) -> (u32, u32) {
        let levels = self.fabric.levels;
        for counts in &mut self.single.whole {
            counts.fill(0);
        }
        self.single.rooms.clear();
        let (mut offered, mut found) = (0, 0);
        // Many nodes are alike: the last answer often holds for the next node too.
        let mut last: Option<(u16, GpuSet, Pick)> = None;
        for at in 0..self.fabric.all().len() {
            let node = self.fabric.all()[at];
            let state = view.node(node, self.all_gpus(node));
            if state.candidate && state.free == state.present && !state.free.is_empty() {
                for level in 0..levels {
                    let domain = self.fabric.domain(level, node);
                    if domain != NO_DOMAIN {
                        self.single.whole[level][domain as usize] += 1;
                    }
                }
            }
            let room = job.room(&state);
            offered += u32::from(room > 0);
            if room < job.units.unwrap_or(1) || job.required.iter().any(|&r| r != node) {
                continue;
            }
            let type_of = self.type_of[node as usize];
            let pick = match last {
                Some((of, free, pick)) if of == type_of && free == state.free => pick,
                _ => match self.pick(node, &state, count, job, linked) {
                    Some(pick) => pick,
                    None => continue,
                },
            };
            if linked == Linked::Ignore {
                last = Some((type_of, state.free, pick));
            }
            found += 1;
            let [first, second] = job.order(pick.lost, state.free.len() as u32);
            let key = [
                job.distance(&state),
                u32::MAX - pick.ring,
                u32::MAX - pick.total,
                first,
                second,
            ];
            let rooms = &mut self.single.rooms;
            match rooms.first().map(|best| key.cmp(&best.key)) {
                Some(Ordering::Greater) if foremost => continue,
                Some(Ordering::Less) if foremost => rooms.clear(),
                _ => {}
            }
            rooms.push(Room { key, node });
        }
        (offered, found)
    }

    /// Makes the node the choice.
    fn settle_one(
        &mut self,
        view: View,
        job: &Job,
        count: usize,
        linked: Linked,
        node: u32,
        (offered, found): (u32, u32),
    ) -> bool {
        let state = view.node(node, self.all_gpus(node));
        let Some(pick) = self.pick(node, &state, count, job, linked) else {
            return false;
        };
        let table = &self.tables[self.type_of[node as usize] as usize];
        let (set, bus) = match job.whole {
            true => (state.free, table.ring(state.free)),
            false => (pick.set, pick.ring),
        };
        // Where the scheduler chooses the GPUs, any may be taken.
        let joined = table.linked(if job.leave { state.present } else { set });
        let must = matches!(linked, Linked::Must(_));
        let (reached, domain) = match linked {
            _ if joined && (set.len() > 1 || must) => (0, None),
            // Joined by the fabric's NVLink domain, though not by the matrix of the node.
            Linked::Must(Some(level)) => (level as u32 + 2, Some(self.fabric.domain(level, node))),
            _ => (1, None),
        };
        let mut nodes = std::mem::take(&mut self.choice.nodes);
        nodes.clear();
        nodes.push(NodeChoice {
            node,
            gpus: if job.leave { GpuSet::EMPTY } else { set },
        });
        self.choice = Choice {
            nodes,
            reached,
            domain,
            bus_gbps: bus as f32 / UNITS_PER_GBPS,
            usability_lost: pick.lost as f32 / MILLI as f32,
            feasible_nodes: offered,
            feasible_domains: found,
        };
        true
    }

    /// The best GPUs of a node for `count` of the job's GPUs, and what taking them costs.
    pub(super) fn pick(
        &mut self,
        node: u32,
        state: &NodeState,
        count: usize,
        job: &Job,
        linked: Linked,
    ) -> Option<Pick> {
        let free = state.free;
        let table = &mut self.tables[self.type_of[node as usize] as usize];
        let fabric = &self.fabric;
        let domain =
            |at: Option<usize>| at.is_some_and(|level| fabric.domain(level, node) != NO_DOMAIN);
        // Where the scheduler chooses the GPUs, all that it could choose must be joined.
        let mut joined = || match job.leave {
            true if !table.linked(state.present) => None,
            true => table.best(free, count, false),
            false => table.best(free, count, true),
        };
        let pick = match linked {
            Linked::Ignore => table.best(free, count, false),
            Linked::Must(at) => match joined() {
                None if domain(at) => table.best(free, count, false),
                pick => pick,
            },
            Linked::MustNot(at) => match joined() {
                None if !domain(at) => table.best(free, count, false),
                _ => None,
            },
        };
        let mut pick = pick?;
        if job.whole {
            pick.lost = table.usable(free);
        }
        Some(pick)
    }

    /// Type of a node that has one: all nodes in the fabric's order do.
    pub(super) fn node_type(&self, node: u32) -> &NodeType {
        &self.types[self.type_of[node as usize] as usize]
    }

    /// All GPUs of a node that has a type.
    pub(super) fn all_gpus(&self, node: u32) -> GpuSet {
        self.tables[self.type_of[node as usize] as usize].all
    }

    /// Bandwidth towards the network per GPU, in hundredths of GB/s; 0 = unknown.
    pub(super) fn nic(&self, node: u32, set: GpuSet) -> u32 {
        nic_units(self.node_type(node), set)
    }
}
