//! Whether the gang and all moved jobs find places once some jobs are gone.
use gpuos_model::cluster::NO_DOMAIN;

use super::{Domains, Gang, Kind, Problem};

/// Places for a set of actions.
pub struct Places {
    /// The gang's nodes, ascending.
    pub gang: Vec<u32>,
    /// Nodes and GPUs of each moved job, by index of the job.
    pub moved: Vec<(usize, Vec<(u32, u32)>)>,
}

/// What came of a search for places.
pub enum FitResult {
    /// There they are.
    Yes(Places),
    /// There are none.
    No,
    /// The steps were used up before that was known.
    Unknown,
}

/// Whether the gang would fit if nothing had to be moved anywhere: a cheap test that must hold.
pub fn could_fit(problem: &Problem<'_>, domains: &Domains, kinds: &[Option<Kind>]) -> bool {
    let free = problem.freed(kinds);
    let gang = &problem.gang;
    domains.at(gang.level).iter().any(|nodes| {
        let able = nodes
            .iter()
            .filter(|&&node| able(problem, gang, &free, node));
        able.count() >= gang.nodes as usize
    })
}

fn able(problem: &Problem<'_>, gang: &Gang, free: &[u32], node: usize) -> bool {
    free[node] >= gang.gpus && problem.allows(gang.class, node)
}

/// Looks for places.
pub fn places(
    problem: &Problem<'_>,
    domains: &Domains,
    kinds: &[Option<Kind>],
    steps: u32,
) -> FitResult {
    let mut movers: Vec<usize> = (0..problem.jobs.len())
        .filter(|&job| kinds[job] == Some(Kind::Move))
        .collect();
    // The hardest to place come first.
    movers.sort_by_key(|&job| (u64::MAX - problem.jobs[job].gpus(), job));
    let mut search = Search {
        problem,
        domains,
        free: problem.freed(kinds),
        movers,
        steps,
        gang: Vec::new(),
        moved: Vec::new(),
    };
    for nodes in domains.at(problem.gang.level) {
        let mut able: Vec<usize> = nodes
            .iter()
            .copied()
            .filter(|&node| able(problem, &problem.gang, &search.free, node))
            .collect();
        if able.len() < problem.gang.nodes as usize {
            continue;
        }
        // The fullest first: they are of least use to anybody else.
        able.sort_by_key(|&node| (search.free[node], node));
        if search.gang(&able, problem.gang.nodes) {
            search.gang.sort_unstable();
            return FitResult::Yes(Places {
                gang: search.gang,
                moved: search.moved,
            });
        }
        if search.steps == 0 {
            return FitResult::Unknown;
        }
    }
    FitResult::No
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    domains: &'a Domains,
    free: Vec<u32>,
    movers: Vec<usize>,
    steps: u32,
    gang: Vec<u32>,
    moved: Vec<(usize, Vec<(u32, u32)>)>,
}

impl Search<'_> {
    /// Counts a step; `false` when there are none left.
    fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_sub(1);
        self.steps > 0
    }

    /// Whether two nodes are the same to everybody who still needs a place.
    fn alike(&self, a: usize, b: usize) -> bool {
        let levels = 0..self.problem.cluster.fabric.levels.len();
        let domain = |node, level| self.problem.domain(Some(level), node);
        let classes = &self.problem.classes;
        self.free[a] == self.free[b]
            && levels
                .into_iter()
                .all(|level| domain(a, level) == domain(b, level) && domain(a, level) != NO_DOMAIN)
            && classes.iter().all(|class| class.get(a) == class.get(b))
    }

    /// Takes `wanted` of the nodes for the gang, and then places for the moved jobs.
    fn gang(&mut self, able: &[usize], wanted: u32) -> bool {
        if wanted == 0 {
            return self.movers(0);
        }
        if able.len() < wanted as usize {
            return false;
        }
        for at in 0..=able.len() - wanted as usize {
            // After a node that did not do, one that is just like it will not do either.
            if at > 0 && self.alike(able[at - 1], able[at]) {
                continue;
            }
            if !self.step() {
                return false;
            }
            let node = able[at];
            self.free[node] -= self.problem.gang.gpus;
            self.gang.push(node as u32);
            if self.gang(&able[at + 1..], wanted - 1) {
                return true;
            }
            self.gang.pop();
            self.free[node] += self.problem.gang.gpus;
        }
        false
    }

    /// Places for the moved jobs from this one on.
    fn movers(&mut self, at: usize) -> bool {
        let Some(&index) = self.movers.get(at) else {
            return true;
        };
        let problem = self.problem;
        let job = &problem.jobs[index];
        for (nodes, shares) in self
            .domains
            .at(job.level)
            .iter()
            .flat_map(|nodes| job.splits().map(move |shares| (nodes, shares)))
        {
            let mut nodes: Vec<usize> = nodes
                .iter()
                .copied()
                .filter(|&node| problem.allows(job.class, node))
                .collect();
            nodes.sort_by_key(|&node| (self.free[node], node));
            let mut taken = Vec::new();
            if self.shares(at, index, &shares, &nodes, &mut taken) {
                return true;
            }
            if self.steps == 0 {
                return false;
            }
        }
        false
    }

    fn shares(
        &mut self,
        at: usize,
        index: usize,
        shares: &[u32],
        nodes: &[usize],
        taken: &mut Vec<(u32, u32)>,
    ) -> bool {
        let Some((&share, rest)) = shares.split_first() else {
            self.moved.push((index, taken.clone()));
            if self.movers(at + 1) {
                return true;
            }
            self.moved.pop();
            return false;
        };
        let mut last: Option<usize> = None;
        for &node in nodes {
            let used = taken.iter().any(|&(other, _)| other as usize == node);
            if used || self.free[node] < share {
                continue;
            }
            if last.is_some_and(|last| self.alike(last, node)) {
                continue;
            }
            if !self.step() {
                return false;
            }
            self.free[node] -= share;
            taken.push((node as u32, share));
            if self.shares(at, index, rest, nodes, taken) {
                return true;
            }
            taken.pop();
            self.free[node] += share;
            last = Some(node);
        }
        false
    }
}
