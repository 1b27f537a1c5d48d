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
            let state = view.node(node, self.all_gpus(node));
            if job.required.iter().any(|&required| required != node) {
                continue;
            }
            let table = &mut self.tables[self.type_of[node as usize] as usize];
            let fits = |&count: &u32| match (linked, job.leave) {
                (false, _) => true,
                // The scheduler chooses: whatever it takes must be linked.
                (true, true) => table.linked(state.present),
                (true, false) => table.best(state.free, count as usize, true).is_some(),
            };
            let have = (1..=job.usable(&state)).rev().find(fits).unwrap_or(0);
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
            let offers = |n: &&u32| self.gang.offers[**n as usize].units > 0;
            let count = nodes.iter().filter(offers).count() as u32;
            let most = self.most_units(job, nodes);
            let (unit, have, need) = match job.units {
                Some(units) if count >= job.min => {
                    (Unit::Gpus, most * job.unit, units.saturating_mul(job.unit))
                }
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
        let offered = |node: &u32| self.gang.offers[*node as usize].units;
        let named = job.required.iter().filter(|n| offered(n) > 0).count() as u32;
        let feasible = self.fabric.all().iter().filter(|n| offered(n) > 0).count() as u32;
        let (feasible_nodes, needed_nodes) = match job.units {
            _ if named < job.required.len() as u32 => (named, job.required.len() as u32),
            None => (feasible, job.min),
            Some(units) => (feasible, job.min.max(self.fewest(job, units))),
        };
        let free_gpus = match job.units {
            Some(_) => self.most_units(job, self.fabric.all()) * job.unit,
            None => {
                let all = self.fabric.all().iter();
                let states = all.map(|&n| view.node(n, self.all_gpus(n)));
                states
                    .filter(|state| state.candidate)
                    .map(|state| state.free.len() as u32)
                    .sum()
            }
        };
        Wait::Capacity {
            feasible_nodes,
            needed_nodes,
            free_gpus,
            needed_gpus: job.unit.saturating_mul(job.units.unwrap_or(job.min)),
        }
    }

    /// Units that the nodes offer on as many of them as the job may have, the named ones included.
    fn most_units(&self, job: &Job, nodes: &[u32]) -> u32 {
        let offered = |node: &u32| self.gang.offers[*node as usize].units;
        let others = nodes.iter().filter(|node| !job.required.contains(node));
        let mut others: Vec<u32> = others.map(offered).collect();
        others.sort_unstable_by(|a, b| b.cmp(a));
        let more = job.max as usize - job.required.len();
        let named: u32 = job.required.iter().map(offered).sum();
        named + others.iter().take(more).sum::<u32>()
    }

    /// Nodes needed for so many units if the largest ones were free.
    fn fewest(&self, job: &Job, units: u32) -> u32 {
        let most = self.types.iter().map(|t| t.gpus as u32 / job.unit).max();
        units.div_ceil(most.unwrap_or(0).max(1))
    }
}
