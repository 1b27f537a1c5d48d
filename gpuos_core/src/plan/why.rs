//! Why a job has to wait, with the numbers.

use super::job::{Assume, Job, View};
use super::types::{Unit, Wait};
use super::{Planner, Reach};
use crate::model::NO_DOMAIN;

/// The domain that comes nearest to having room.
struct Nearest {
    domain: String,
    unit: Unit,
    have: u32,
    need: u32,
}

impl Planner {
    /// The reason why [`Planner::search`] found no choice number `skip`.
    pub(super) fn why(
        &mut self,
        view: View,
        job: &Job,
        wish: Option<(Reach, bool)>,
        skip: u32,
    ) -> Wait {
        let required = wish.filter(|(_, required)| *required);
        let empty = View {
            assume: Assume::Empty,
            ..view
        };
        if skip == 0 && !self.search(empty, job, required, 0) {
            return Wait::Never {
                why: self.never(empty, job, required),
            };
        }
        match required {
            Some((reach, _)) if self.search(view, job, None, 0) => {
                let nearest = self.nearest(view, job, reach);
                Wait::Level {
                    level: self.level_name(reach),
                    best_domain: nearest.domain,
                    unit: nearest.unit,
                    have: nearest.have,
                    need: nearest.need,
                }
            }
            _ => self.capacity(view, job),
        }
    }

    fn level_name(&self, reach: Reach) -> String {
        match reach {
            Reach::NvLink(_) => "nvlink".into(),
            Reach::Node => "node".into(),
            Reach::Any => "any".into(),
            Reach::Fabric(level) => self.cluster.fabric.levels[level].name.clone(),
        }
    }

    fn never(&mut self, empty: View, job: &Job, required: Option<(Reach, bool)>) -> String {
        let Some((reach, _)) = required.filter(|_| self.search(empty, job, None, 0)) else {
            return self.never_anywhere(empty, job);
        };
        let level = self.level_name(reach);
        if job.min > 1 && matches!(reach, Reach::Node | Reach::NvLink(None)) {
            return format!(
                "{} nodes cannot lie within one domain of the level {level}",
                job.min
            );
        }
        if let Reach::NvLink(Some(at)) | Reach::Fabric(at) = reach {
            let domain = |&node: &u32| self.fabric.domain(at, node);
            let first = job.required.first().map(domain);
            let one = |node| first == Some(domain(node)) && first != Some(NO_DOMAIN);
            if !job.required.iter().all(one) {
                return format!(
                    "the nodes that the job names do not lie within one domain of the level {level}"
                );
            }
        }
        let nearest = self.nearest(empty, job, reach);
        let what = match nearest.unit {
            Unit::Nodes => "nodes",
            Unit::Gpus => "GPUs",
        };
        format!(
            "the job needs {} {what} within one domain of the level {level}; the largest ({}) has {}",
            nearest.need, nearest.domain, nearest.have
        )
    }

    fn never_anywhere(&mut self, empty: View, job: &Job) -> String {
        let Nearest {
            unit, have, need, ..
        } = self.nearest_domain(empty, job, self.fabric.levels);
        let mut named = job.required.iter();
        if let Some(&node) = named.find(|&&n| self.gang.offers[n as usize].units == 0) {
            return format!(
                "the job names node {}, which has no room for its GPUs even when it is idle",
                self.cluster.nodes[node as usize].name
            );
        }
        let on = match (job.min, job.max) {
            (1, 1) => "1 node".to_string(),
            (min, max) if min == max => format!("{min} nodes"),
            (min, max) => format!("{min} to {max} nodes"),
        };
        match unit {
            Unit::Gpus => format!(
                "the job needs {need} GPUs on {on}; the cluster has room for {have} on so many nodes"
            ),
            Unit::Nodes => format!(
                "the job needs {on} with {} GPUs each; {have} nodes of the cluster have so many in service",
                job.unit
            ),
        }
    }

    fn nearest(&mut self, view: View, job: &Job, reach: Reach) -> Nearest {
        let fabric = match reach {
            Reach::Fabric(level) | Reach::NvLink(Some(level)) if job.max > 1 => Some(level),
            _ => None,
        };
        match fabric {
            Some(level) => self.nearest_domain(view, job, level),
            None => self.nearest_node(view, job, matches!(reach, Reach::NvLink(_))),
        }
    }

    fn nearest_node(&mut self, view: View, job: &Job, linked: bool) -> Nearest {
        let mut best = Nearest {
            domain: String::new(),
            unit: Unit::Gpus,
            have: 0,
            need: job.gpus_on_one().min(u64::from(u32::MAX)) as u32,
        };
        for at in 0..self.fabric.all().len() {
            let node = self.fabric.all()[at];
            let state = view.node(node, self.node_type(node));
            if !state.candidate {
                continue;
            }
            let table = &mut self.tables[self.type_of[node as usize] as usize];
            let fits = |count: &usize| !linked || table.best(state.free, *count, true).is_some();
            let have = (1..=state.free.len()).rev().find(fits).unwrap_or(0) as u32;
            if have > best.have {
                best.have = have;
                best.domain = self.cluster.nodes[node as usize].name.clone();
            }
        }
        best
    }

    fn nearest_domain(&mut self, view: View, job: &Job, level: usize) -> Nearest {
        self.offers(view, job, (level < self.fabric.levels).then_some(level));
        let mut best: Option<Nearest> = None;
        for at in 0..self.fabric.spans(level).len() {
            let span = self.fabric.spans(level)[at];
            let holds = |&node: &u32| self.fabric.domain(level, node) == span.domain;
            if !job.required.iter().all(holds) {
                continue;
            }
            let nodes = self.fabric.nodes(level, span);
            let rooms = nodes.iter().map(|&n| self.gang.offers[n as usize].units);
            let mut rooms: Vec<u32> = rooms.filter(|&units| units > 0).collect();
            rooms.sort_unstable_by(|a, b| b.cmp(a));
            let count = rooms.len() as u32;
            let most: u32 = rooms.iter().take(job.max as usize).sum();
            let (unit, have, need) = match job.units {
                Some(units) if count >= job.min => (Unit::Gpus, most * job.unit, units * job.unit),
                _ => (Unit::Nodes, count, job.min),
            };
            // Nearest by the part of what is needed that it has.
            let ratio = |n: &Nearest| u64::from(n.have) * 1000 / u64::from(n.need.max(1));
            let names = self.cluster.fabric.levels.get(level).map(|l| &l.domains);
            let name = names.and_then(|names| names.get(span.domain as usize));
            let here = Nearest {
                domain: name.cloned().unwrap_or_default(),
                unit,
                have,
                need,
            };
            if best.as_ref().is_none_or(|best| ratio(&here) > ratio(best)) {
                best = Some(here);
            }
        }
        best.unwrap_or(Nearest {
            domain: String::new(),
            unit: Unit::Nodes,
            have: 0,
            need: job.min,
        })
    }

    fn capacity(&mut self, view: View, job: &Job) -> Wait {
        self.offers(view, job, None);
        let mut free_gpus = 0;
        let mut room = 0;
        for &node in self.fabric.all() {
            let state = view.node(node, self.node_type(node));
            if state.candidate {
                free_gpus += state.free.len() as u32;
            }
            room += self.gang.offers[node as usize].units;
        }
        let offers = |least: u32| {
            let all = self.fabric.all().iter();
            all.filter(|&&n| self.gang.offers[n as usize].units >= least.max(1))
                .count() as u32
        };
        let named = job.required.iter();
        let named = named.filter(|&&n| self.gang.offers[n as usize].units > 0);
        let named = named.count() as u32;
        // The first of these that is short: the named nodes, room in all, room on few nodes.
        let (feasible_nodes, needed_nodes) = match job.units {
            _ if named < job.required.len() as u32 => (named, job.required.len() as u32),
            None => (offers(1), job.min),
            Some(units) if room < units => (offers(1), job.min.max(self.fewest(job, units))),
            Some(units) => match offers(1) {
                few if few < job.min => (few, job.min),
                _ => (offers(units.div_ceil(job.max)), job.max),
            },
        };
        Wait::Capacity {
            feasible_nodes,
            needed_nodes,
            free_gpus,
            needed_gpus: job.unit.saturating_mul(job.units.unwrap_or(job.min)),
        }
    }

    /// Nodes needed for so many units if the largest ones were free.
    fn fewest(&self, job: &Job, units: u32) -> u32 {
        let most = self.types.iter().map(|t| t.gpus as u32 / job.unit).max();
        units.div_ceil(most.unwrap_or(0).max(1))
    }
}
