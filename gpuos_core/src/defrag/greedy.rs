//! A good set of actions when there are too many to try all.
//!
//! For each domain: each node has some cheap ways to free enough of it, and the gang needs so many
//! nodes. Combinations are tried from the cheapest on, as far as [`WORK`] goes; in the first one for
//! which all moved jobs find places, whatever turns out not to be needed is dropped, and preemptions
//! become moves where these are cheaper and fit. Where no combination works, jobs that find no place
//! are preempted instead. At last jobs that are preempted for want of a place are moved after all if
//! one more job, for less than that saves, makes way for them.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::exact::plan;
use super::fit::{Found, Places, places};
use super::{Action, Domains, Kind, Method, Plan, Problem};

/// Jobs of a node that are tried in all combinations.
const MOST_JOBS: usize = 8;
/// Ways to free a node that are kept.
const WAYS: usize = 12;
/// Combinations that are tried in one domain: fewer of them where each takes longer.
const TRIED: [usize; 2] = [48, 2000];
/// Nodes and jobs that are looked at in the combinations of one domain, and in making way.
const WORK: usize = 100_000;
/// Domains that are looked at, those with the cheapest combinations first.
const MOST_DOMAINS: usize = 48;
/// Nodes that may take the place of another one.
const SPARE: usize = 4;

/// What is done to free a node, and its cost.
type Way = (u64, Vec<(usize, Kind)>);

/// The nodes of a domain that the gang may use, each with its ways, the cheapest first.
struct Domain {
    nodes: Vec<Vec<Way>>,
    cheapest: u64,
}

/// The cheapest of the plans for the most promising domains.
pub fn solve(problem: &Problem<'_>, domains: &Domains, steps: u32) -> Option<Plan> {
    // Jobs by node, so that a node finds its own.
    let mut jobs_on: Vec<Vec<(usize, u32)>> = vec![Vec::new(); problem.free.len()];
    for (at, job) in problem.jobs.iter().enumerate() {
        for &(node, gpus) in &job.shares {
            if let Some(list) = jobs_on.get_mut(node as usize) {
                list.push((at, gpus));
            }
        }
    }
    let all = domains.at(problem.gang.level).iter();
    let mut all: Vec<Domain> = all
        .filter_map(|nodes| Domain::new(problem, nodes, &jobs_on))
        .collect();
    all.sort_by_key(|domain| domain.cheapest);
    all.truncate(MOST_DOMAINS);
    let mut best: Option<Plan> = None;
    for domain in &all {
        let most = best.as_ref().map_or(u64::MAX, |plan| plan.cost.total);
        let Some((kinds, found)) = domain.search(problem, domains, steps, most) else {
            continue;
        };
        let (kinds, found) = improve(problem, domains, kinds, found, steps);
        let found = plan(problem, &kinds, found, Method::Bounded);
        if found.cost.total < most {
            best = Some(found);
        }
    }
    best.map(|best| make_way(problem, domains, best, steps))
}

impl Domain {
    fn new(
        problem: &Problem<'_>,
        nodes: &[usize],
        jobs_on: &[Vec<(usize, u32)>],
    ) -> Option<Domain> {
        let usable = nodes
            .iter()
            .filter(|&&node| problem.allows(problem.gang.class, node));
        let mut nodes: Vec<Vec<Way>> = usable
            .map(|&node| ways(problem, node, &jobs_on[node]))
            .filter(|ways| !ways.is_empty())
            .collect();
        // Stable: of equally cheap nodes the first one.
        nodes.sort_by_key(|ways| ways[0].0);
        let needed = problem.gang.nodes as usize;
        (nodes.len() >= needed).then(|| Domain {
            cheapest: nodes[..needed]
                .iter()
                .fold(0, |sum, ways| ways[0].0.saturating_add(sum)),
            nodes,
        })
    }

    /// The first combination, from the cheapest on, after which everybody finds a place.
    fn search(
        &self,
        problem: &Problem<'_>,
        domains: &Domains,
        steps: u32,
        most: u64,
    ) -> Option<(Vec<Option<Kind>>, Places)> {
        let needed = problem.gang.nodes as usize;
        // A combination: which node, and which of its ways.
        let first: Vec<(usize, usize)> = (0..needed).map(|node| (node, 0)).collect();
        let mut heap = BinaryHeap::from([Reverse((self.cost(problem, &first), first.clone()))]);
        let mut seen = BTreeSet::from([first.clone()]);
        let [least, most_tried] = TRIED;
        for _ in 0..affordable(problem).clamp(least, most_tried) {
            let Some(Reverse((cost, set))) = heap.pop() else {
                break;
            };
            if cost >= most {
                return None;
            }
            if let Some(kinds) = self.kinds(problem, &set)
                && let Found::Yes(found) = places(problem, domains, &kinds, steps)
            {
                return Some((kinds, found));
            }
            for next in self.next(&set) {
                if seen.insert(next.clone()) {
                    heap.push(Reverse((self.cost(problem, &next), next)));
                }
            }
        }
        settle(problem, domains, self.kinds(problem, &first)?, steps)
    }

    /// The combinations that differ in one node: its next way, or one of the next best nodes.
    fn next(&self, set: &[(usize, usize)]) -> Vec<Vec<(usize, usize)>> {
        let mut all = Vec::new();
        let unused = (0..self.nodes.len()).filter(|node| set.iter().all(|(used, _)| used != node));
        let unused: Vec<usize> = unused.take(SPARE).collect();
        for (at, &(node, way)) in set.iter().enumerate() {
            let mut with = |one: (usize, usize)| {
                let mut next = set.to_vec();
                next[at] = one;
                next.sort_unstable();
                all.push(next);
            };
            if way + 1 < self.nodes[node].len() {
                with((node, way + 1));
            }
            unused.iter().for_each(|&other| with((other, 0)));
        }
        all
    }

    /// The actions of a combination; `None` when it would do two things with one job.
    fn kinds(&self, problem: &Problem<'_>, set: &[(usize, usize)]) -> Option<Vec<Option<Kind>>> {
        let mut kinds = vec![None; problem.jobs.len()];
        for &(node, way) in set {
            for &(job, kind) in &self.nodes[node][way].1 {
                if kinds[job].is_some_and(|other| other != kind) {
                    return None;
                }
                kinds[job] = Some(kind);
            }
        }
        Some(kinds)
    }

    /// What a combination costs: a job that stands on several nodes counts once.
    fn cost(&self, problem: &Problem<'_>, set: &[(usize, usize)]) -> u64 {
        let ways = set.iter().map(|&(node, way)| &self.nodes[node][way].1);
        let actions: BTreeSet<(usize, Kind)> = ways.flatten().copied().collect();
        let costs = actions
            .into_iter()
            .map(|(job, kind)| problem.cost(&problem.jobs[job], kind).total);
        costs.fold(0, u64::saturating_add)
    }
}

/// The cheapest ways to free enough of a node; one that only preempts is always among them.
fn ways(problem: &Problem<'_>, node: usize, jobs: &[(usize, u32)]) -> Vec<Way> {
    let missing = problem.gang.gpus.saturating_sub(problem.free[node]);
    if missing == 0 {
        return vec![(0, Vec::new())];
    }
    let mut jobs: Vec<(u64, u32, usize)> = jobs
        .iter()
        .filter_map(|&(job, held)| Some((problem.cheapest(&problem.jobs[job])?.0, held, job)))
        .collect();
    jobs.sort_unstable();
    jobs.truncate(MOST_JOBS);
    let mut ways = Vec::new();
    for set in 1u32..1 << jobs.len() {
        let members = (0..jobs.len())
            .filter(|at| set >> at & 1 == 1)
            .map(|at| jobs[at]);
        let held: u32 = members.clone().map(|(_, held, _)| held).sum();
        // No more than needed.
        if held < missing || members.clone().any(|(_, one, _)| held - one >= missing) {
            continue;
        }
        let mut partial: Vec<Way> = vec![(0, Vec::new())];
        for (_, _, job) in members {
            let of = &problem.jobs[job];
            let kinds = [(of.preemptable, Kind::Preempt), (of.movable, Kind::Move)];
            let kinds = kinds.into_iter().filter(|(may, _)| *may);
            let with = |(cost, done): &Way, kind| {
                let cost = cost.saturating_add(problem.cost(of, kind).total);
                (cost, [&done[..], &[(job, kind)]].concat())
            };
            let extended = kinds.flat_map(|(_, kind)| partial.iter().map(move |way| (way, kind)));
            partial = extended.map(|(way, kind)| with(way, kind)).collect();
        }
        ways.append(&mut partial);
    }
    ways.sort_unstable();
    let only_preempts = |way: &Way| way.1.iter().all(|(_, kind)| *kind == Kind::Preempt);
    let last = ways
        .iter()
        .skip(WAYS)
        .find(|way| only_preempts(way))
        .cloned();
    ways.truncate(WAYS);
    if !ways.iter().any(only_preempts) {
        ways.extend(last);
    }
    ways
}

/// Finds places; jobs that would have to move and find none are preempted, if they may be.
fn settle(
    problem: &Problem<'_>,
    domains: &Domains,
    mut kinds: Vec<Option<Kind>>,
    steps: u32,
) -> Option<(Vec<Option<Kind>>, Places)> {
    loop {
        if let Found::Yes(found) = places(problem, domains, &kinds, steps) {
            return Some((kinds, found));
        }
        // The one that loses least by it.
        let movers = (0..kinds.len()).filter(|&job| kinds[job] == Some(Kind::Move));
        let job = movers
            .filter(|&job| problem.jobs[job].preemptable)
            .min_by_key(|&job| (problem.cost(&problem.jobs[job], Kind::Preempt).total, job))?;
        kinds[job] = Some(Kind::Preempt);
    }
}

/// Drops what is not needed, the most expensive first, and moves instead of preempting.
fn improve(
    problem: &Problem<'_>,
    domains: &Domains,
    mut kinds: Vec<Option<Kind>>,
    mut found: Places,
    steps: u32,
) -> (Vec<Option<Kind>>, Places) {
    let done = (0..kinds.len()).filter(|&job| kinds[job].is_some());
    let mut done: Vec<usize> = done.collect();
    let cost = |kinds: &[Option<Kind>], job: usize| {
        kinds[job].map_or(0, |kind| problem.cost(&problem.jobs[job], kind).total)
    };
    done.sort_by_key(|&job| (u64::MAX - cost(&kinds, job), job));
    for job in done {
        let before = kinds[job];
        let cheaper = problem.cheapest(&problem.jobs[job]).map(|(_, kind)| kind);
        for other in [None, cheaper] {
            if other == before {
                continue;
            }
            kinds[job] = other;
            if let Found::Yes(places) = places(problem, domains, &kinds, steps) {
                found = places;
                break;
            }
            kinds[job] = before;
        }
    }
    (kinds, found)
}

/// How many sets of actions may be tried.
fn affordable(problem: &Problem<'_>) -> usize {
    WORK / (1 + problem.free.len() + problem.jobs.len())
}

/// Moves jobs that would be preempted, if that and one more action together cost less.
fn make_way(problem: &Problem<'_>, domains: &Domains, best: Plan, steps: u32) -> Plan {
    let cost = |job: usize, kind| problem.cost(&problem.jobs[job], kind).total;
    let mut kinds = vec![None; problem.jobs.len()];
    for (job, action) in &best.actions {
        kinds[*job] = Some(match action {
            Action::Preempt => Kind::Preempt,
            Action::Move(_) => Kind::Move,
        });
    }
    let all = problem.jobs.iter().enumerate();
    let cheap = all.filter_map(|(at, job)| Some((problem.cheapest(job)?, at)));
    let mut cheap: Vec<((u64, Kind), usize)> = cheap.collect();
    cheap.sort_unstable();
    let preempted = (0..kinds.len()).filter(|&job| kinds[job] == Some(Kind::Preempt));
    let mut preempted: Vec<usize> = preempted.filter(|&job| problem.jobs[job].movable).collect();
    preempted.sort_by_key(|&job| (Reverse(cost(job, Kind::Preempt)), job));
    let mut tries = affordable(problem);
    let mut found = None;
    for job in preempted {
        let saved = cost(job, Kind::Preempt).saturating_sub(cost(job, Kind::Move));
        kinds[job] = Some(Kind::Move);
        let mut way = None;
        for &((cost, kind), other) in &cheap {
            if cost >= saved || tries == 0 {
                break;
            }
            if kinds[other].is_some() {
                continue;
            }
            tries -= 1;
            kinds[other] = Some(kind);
            if let Found::Yes(places) = places(problem, domains, &kinds, steps) {
                way = Some(places);
                break;
            }
            kinds[other] = None;
        }
        match way {
            Some(places) => found = Some(places),
            None => kinds[job] = Some(Kind::Preempt),
        }
    }
    match found {
        Some(found) => plan(problem, &kinds, found, Method::Bounded),
        None => best,
    }
}
