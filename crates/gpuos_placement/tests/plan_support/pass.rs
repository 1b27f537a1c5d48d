//! Where a job goes, by a plain pass over all nodes: lists, sorts, and nothing kept.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpuos_model::cluster::{Cluster, NO_DOMAIN};
use gpuos_placement::plan::{MOST_SPARED, NodeState, Placement};

use super::brute::Brute;

/// A node with room for `count` GPUs, and its figures.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    pub node: u32,
    pub set: u64,
    distance: u64,
    ring: u64,
    total: u64,
    /// Penalty, then what the rule says.
    order: [u64; 3],
    lost: u64,
    /// What rules say, what it is worth, what is to be fetched.
    parts: [u64; 3],
    /// What the node costs, where that counts before bandwidth.
    cost: u64,
}

pub struct Pass<'a> {
    pub cluster: &'a Cluster,
    pub states: &'a [NodeState],
    pub rule: &'a Placement,
    /// By node: which brute force answers for its type.
    pub kind: &'a [usize],
    pub cost_first: bool,
    /// When the job would end.
    pub until: u32,
}

impl Pass<'_> {
    fn domain(&self, level: usize, node: u32) -> u32 {
        let levels = &self.cluster.fabric.levels;
        levels.get(level).map_or(0, |l| l.domain_of[node as usize])
    }

    /// Nodes with room for a share of `count` GPUs.
    pub fn fits(&self, brutes: &mut [Brute], count: u32) -> Vec<Fit> {
        let mut fits = Vec::new();
        for (node, state) in self.states.iter().enumerate() {
            let brute = &mut brutes[self.kind[node]];
            let free = state.free.and(state.present);
            let Some(set) = brute.best(free.0, count, false) else {
                continue;
            };
            if !state.candidate {
                continue;
            }
            let lost = brute
                .usable(free.0)
                .saturating_sub(brute.usable(free.0 & !set));
            let (full, penalty) = (free.len() as u64, u64::from(state.against()));
            let affinity = u64::from(state.affinity);
            fits.push(Fit {
                node: node as u32,
                set,
                distance: match self.rule {
                    Placement::Affinity(_) => u64::from(u16::MAX) - affinity,
                    Placement::AntiAffinity(_) => affinity,
                    _ => 0,
                },
                ring: brute.rings[&set],
                total: brute.total(set),
                order: match self.rule {
                    Placement::Pack => [penalty, full, lost],
                    Placement::Spread => [penalty, u64::MAX - full, lost],
                    Placement::FirstFit => [0; 3],
                    _ => [penalty, lost, full],
                },
                lost,
                parts: [state.rules(), state.cost(), MOST_SPARED - state.spares()].map(u64::from),
                cost: match (self.cost_first, self.rule) {
                    (false, _) | (_, Placement::FirstFit) => 0,
                    _ => u64::from(state.cost()),
                },
            });
        }
        fits
    }

    /// The places of a job on one node, best first.
    pub fn singles(&self, fits: &[Fit]) -> Vec<(u32, u64)> {
        let whole = |node: u32| -> Vec<i64> {
            let counts = (0..self.cluster.fabric.levels.len()).map(|level| {
                let domain = self.domain(level, node);
                let same = |other: &usize| {
                    let s = &self.states[*other];
                    let free = s.free.and(s.present);
                    let idle = s.candidate && !free.is_empty() && free == s.present;
                    idle && self.domain(level, *other as u32) == domain
                };
                match domain {
                    NO_DOMAIN => 0,
                    _ => (0..self.states.len()).filter(same).count() as i64,
                }
            });
            match self.rule {
                Placement::Spread => counts.map(|count| -count).collect(),
                Placement::FirstFit => Vec::new(),
                _ => counts.collect(),
            }
        };
        // Four hours are 16 quarters; each step is twice as long as the one before.
        let stay = |node: u32| {
            let state = &self.states[node as usize];
            let broken = state.free.and(state.present) != state.present;
            let known = self.until > 0 && state.until > 0 && broken;
            match self.rule {
                Placement::Backfill if known => {
                    let over = self.until.saturating_sub(state.until) / 16;
                    (0..).find(|step| over < 1 << step).unwrap_or(32)
                }
                _ => 0u32,
            }
        };
        let mut ranked: Vec<_> = fits
            .iter()
            .map(|fit| {
                let links = match self.rule {
                    Placement::FirstFit => (Reverse(0), Reverse(0)),
                    _ => (Reverse(fit.ring), Reverse(fit.total)),
                };
                (
                    (
                        fit.distance,
                        fit.cost,
                        links,
                        fit.order,
                        whole(fit.node),
                        stay(fit.node),
                        fit.node,
                    ),
                    fit.set,
                )
            })
            .collect();
        ranked.sort();
        ranked.into_iter().map(|(key, set)| (key.6, set)).collect()
    }

    /// The best place of a gang with one share on each of `wanted` nodes: level and nodes.
    pub fn gang(&self, fits: &[Fit], wanted: usize) -> Option<(usize, Vec<u32>)> {
        let first = matches!(self.rule, Placement::FirstFit);
        for level in 0..=self.cluster.fabric.levels.len() {
            let mut best: Option<(Vec<u64>, Vec<u32>)> = None;
            for (domain, inside) in self.split(level, fits) {
                if domain == NO_DOMAIN || inside.len() < wanted {
                    continue;
                }
                let mut picked = Vec::new();
                self.choose(level, &inside, wanted, &mut picked);
                let cells = |p: &[Fit]| {
                    let mut cells: Vec<_> = p.iter().map(|f| self.domain(0, f.node)).collect();
                    cells.sort_unstable();
                    cells.dedup_by(|a, b| a == b && *a != NO_DOMAIN);
                    cells.len() as u64
                };
                let left = (inside.len() - wanted) as u64;
                let outer = match self.domain(level + 1, picked[0].node) {
                    _ if level == self.cluster.fabric.levels.len() => 0,
                    NO_DOMAIN => 0,
                    outer => {
                        let same = |f: &&Fit| self.domain(level + 1, f.node) == outer;
                        fits.iter().filter(same).count() as u64
                    }
                };
                let sum = |of: fn(&Fit) -> u64| picked.iter().map(of).sum::<u64>();
                let lost = sum(|f| f.lost);
                let rule = match self.rule {
                    Placement::Pack => [left, lost, outer],
                    Placement::Spread => [u64::MAX - left, lost, u64::MAX - outer],
                    _ => [lost, left, outer],
                };
                let ring = picked.iter().map(|f| f.ring).min().unwrap();
                let mut key = vec![
                    sum(|f| f.distance) / wanted as u64,
                    picked.iter().map(|f| f.cost).max().unwrap(),
                    u64::MAX - ring,
                    cells(&picked),
                    sum(|f| f.parts[0]),
                    sum(|f| f.parts[1]),
                    sum(|f| f.parts[2]),
                ];
                key.extend(rule);
                if first {
                    key.fill(0);
                }
                key.push(u64::from(domain));
                let mut nodes: Vec<u32> = picked.iter().map(|f| f.node).collect();
                nodes.sort_unstable();
                if best.as_ref().is_none_or(|(known, _)| key < *known) {
                    best = Some((key, nodes));
                }
            }
            if let Some((_, nodes)) = best {
                return Some((level, nodes));
            }
        }
        None
    }

    fn split(&self, level: usize, fits: &[Fit]) -> BTreeMap<u32, Vec<Fit>> {
        let mut parts: BTreeMap<u32, Vec<Fit>> = BTreeMap::new();
        for fit in fits {
            let part = parts.entry(self.domain(level, fit.node)).or_default();
            part.push(*fit);
        }
        parts
    }

    /// Nodes of one domain: fast enough ones, then few narrower domains, then the best.
    fn choose(&self, level: usize, inside: &[Fit], wanted: usize, picked: &mut Vec<Fit>) {
        if matches!(self.rule, Placement::FirstFit) {
            picked.extend(&inside[..wanted]);
            return;
        }
        let mut inside = inside.to_vec();
        let named = matches!(
            self.rule,
            Placement::Affinity(_) | Placement::AntiAffinity(_)
        );
        if !named {
            let mut costs: Vec<u64> = inside.iter().map(|f| f.cost).collect();
            costs.sort_unstable();
            inside.retain(|f| f.cost <= costs[wanted - 1]);
        }
        let mut ranks: Vec<_> = inside
            .iter()
            .map(|f| (f.distance, Reverse(f.ring)))
            .collect();
        ranks.sort_unstable();
        let worst = ranks[..wanted]
            .iter()
            .map(|(_, ring)| ring.0)
            .min()
            .unwrap();
        let fast: Vec<Fit> = inside.iter().filter(|f| f.ring >= worst).copied().collect();
        self.take(level, fast, wanted, picked);
    }

    fn take(&self, level: usize, mut nodes: Vec<Fit>, wanted: usize, picked: &mut Vec<Fit>) {
        if level == 0 || wanted == nodes.len() {
            nodes.sort_unstable_by_key(|f| (f.distance, f.order, f.node));
            picked.extend(&nodes[..wanted]);
            return;
        }
        let mut parts: Vec<_> = self.split(level - 1, &nodes).into_iter().collect();
        let mut missing = wanted;
        while missing > 0 {
            let rank = |(domain, part): &(u32, Vec<Fit>)| {
                let suffices = part.len() >= missing;
                let size = if suffices {
                    part.len()
                } else {
                    usize::MAX - part.len()
                };
                let fetches: u64 = part.iter().map(|f| f.parts[2]).sum();
                (*domain == NO_DOMAIN, !suffices, size, fetches, *domain)
            };
            let at = (0..parts.len()).min_by_key(|&at| rank(&parts[at])).unwrap();
            let (_, part) = parts.remove(at);
            let here = part.len().min(missing);
            self.take(level - 1, part, here, picked);
            missing -= here;
        }
    }
}
