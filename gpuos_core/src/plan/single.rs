//! Jobs on one node: the node and its GPUs together.
//!
//! The best place is, in this order: near the named jobs (or away from them) by an affinity rule;
//! the GPU set with the highest ring, then total bandwidth; the least usability lost; the fullest
//! node; in the fabric, the domain with the fewest nodes that are wholly free, from the narrowest
//! level to the widest, so that whole leaves stay free; the lowest node index. `pack` puts the
//! fullest node before the usability, `spread` the emptiest, and turns the order of domains round.

use std::cmp::Ordering;

use super::fabric::FabricIndex;
use super::gpus::Pick;
use super::job::{Job, Rule, View};
use super::links::{UNITS_PER_GBPS, nic_units};
use super::types::{Choice, NodeChoice, NodeState};
use super::{Linked, Planner};
use crate::gpuset::GpuSet;
use crate::model::{NO_DOMAIN, NodeType};

/// A node that has room, with its rank.
#[derive(Clone, Copy, Debug)]
struct Option1 {
    key: [u32; 5],
    node: u32,
    pick: Pick,
}

/// Room for the candidates, kept between calls.
#[derive(Debug)]
pub struct Scratch {
    options: Vec<Option1>,
    /// By level and domain: nodes that are wholly free.
    whole: Vec<Vec<u32>>,
}

impl Scratch {
    pub fn new(fabric: &FabricIndex, nodes: usize) -> Scratch {
        Scratch {
            options: Vec::with_capacity(nodes),
            whole: fabric.ids.iter().map(|&ids| vec![0; ids]).collect(),
        }
    }
}

impl Planner {
    /// Puts choice number `skip` on one node into `self.choice`; else takes the number of
    /// choices off `skip`.
    pub(super) fn one(&mut self, view: View, job: &Job, linked: Linked, skip: &mut u32) -> bool {
        let gpus = job.gpus_on_one();
        let Ok(count) = usize::try_from(gpus) else {
            return false;
        };
        let levels = self.fabric.levels;
        for counts in &mut self.single.whole {
            counts.fill(0);
        }
        self.single.options.clear();
        let mut offered = 0;
        for at in 0..self.fabric.all().len() {
            let node = self.fabric.all()[at];
            let state = view.node(node, self.node_type(node));
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
            let Some(pick) = self.pick(node, &state, count, job, linked) else {
                continue;
            };
            let [first, second] = job.order(pick.lost, state.free.len() as u32);
            self.single.options.push(Option1 {
                key: [
                    job.distance(&state),
                    u32::MAX - pick.ring,
                    u32::MAX - pick.total,
                    first,
                    second,
                ],
                node,
                pick,
            });
        }
        let found = self.single.options.len();
        let nth = *skip as usize;
        if nth >= found {
            *skip -= found as u32;
            return false;
        }
        let fabric = &self.fabric;
        let whole = &self.single.whole;
        let order = |a: &Option1, b: &Option1| {
            let place = || {
                let by_domain = |level| {
                    let count = |n| match fabric.domain(level, n) {
                        NO_DOMAIN => 0,
                        domain => whole[level][domain as usize],
                    };
                    count(a.node).cmp(&count(b.node))
                };
                let place = (0..levels).map(by_domain).find(|o| o.is_ne());
                match place.unwrap_or(Ordering::Equal) {
                    order if job.rule == Rule::Spread => order.reverse(),
                    order => order,
                }
            };
            a.key.cmp(&b.key).then_with(place).then(a.node.cmp(&b.node))
        };
        let best = if nth == 0 {
            self.single.options.iter().copied().min_by(order)
        } else {
            let (_, option, _) = self.single.options.select_nth_unstable_by(nth, order);
            Some(*option)
        };
        let Some(best) = best else {
            return false;
        };
        let state = view.node(best.node, self.node_type(best.node));
        let table = &self.tables[self.type_of[best.node as usize] as usize];
        let (set, bus) = if job.whole {
            (state.free, table.ring(state.free))
        } else {
            (best.pick.set, best.pick.ring)
        };
        let joined = match (job.whole, job.leave) {
            (false, true) => table.linked(state.present),
            _ => table.linked(set),
        };
        let close = joined && (set.len() > 1 || matches!(linked, Linked::Must(_)));
        self.choice.nodes.clear();
        self.choice.nodes.push(NodeChoice {
            node: best.node,
            gpus: if job.leave { GpuSet::EMPTY } else { set },
        });
        self.choice = Choice {
            nodes: std::mem::take(&mut self.choice.nodes),
            reached: if close { 0 } else { 1 },
            domain: None,
            bus_gbps: bus as f32 / UNITS_PER_GBPS,
            usability_lost: best.pick.lost as f32 / super::gpus::MILLI as f32,
            feasible_nodes: offered,
            feasible_domains: found as u32,
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

    /// Bandwidth towards the network per GPU, in hundredths of GB/s; 0 = unknown.
    pub(super) fn nic(&self, node: u32, set: GpuSet) -> u32 {
        nic_units(self.node_type(node), set)
    }
}
