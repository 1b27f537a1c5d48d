//! A good set of actions when there are too many to try all.
//!
//! In each domain the node that takes least to free comes first, until there are enough of them.
//! Jobs that find no place are preempted instead, if they may be; at last whatever turns out not
//! to be needed is dropped, and preemptions become moves where these are cheaper and fit.

use super::exact::plan;
use super::fit::{Found, Places, places};
use super::{Kind, Method, Plan, Problem};

/// Jobs of a node that are tried in all combinations.
const MOST: usize = 10;

/// The cheapest of the plans for each domain.
pub fn solve(problem: &Problem<'_>, steps: u32) -> Option<Plan> {
    let mut best: Option<Plan> = None;
    // Jobs by node, so that a node finds its own.
    let mut jobs_on: Vec<Vec<usize>> = vec![Vec::new(); problem.free.len()];
    for (at, job) in problem.jobs.iter().enumerate() {
        for &(node, _) in &job.shares {
            if let Some(list) = jobs_on.get_mut(node as usize) {
                list.push(at);
            }
        }
    }
    for nodes in problem.domains(problem.gang.level) {
        let Some(kinds) = free_domain(problem, &nodes, &jobs_on) else {
            continue;
        };
        let Some((kinds, places)) = settle(problem, kinds, steps) else {
            continue;
        };
        let (kinds, places) = improve(problem, kinds, places, steps);
        let found = plan(problem, &kinds, places, Method::Bounded);
        if best
            .as_ref()
            .is_none_or(|best| found.cost.total < best.cost.total)
        {
            best = Some(found);
        }
    }
    best
}

/// Actions after which enough nodes of a domain are free for the gang.
fn free_domain(
    problem: &Problem<'_>,
    nodes: &[usize],
    jobs_on: &[Vec<usize>],
) -> Option<Vec<Option<Kind>>> {
    let gang = &problem.gang;
    let nodes: Vec<usize> = nodes
        .iter()
        .copied()
        .filter(|&node| problem.allows(gang.class, node))
        .collect();
    let mut kinds = vec![None; problem.jobs.len()];
    loop {
        let free = problem.freed(&kinds);
        let able = nodes.iter().filter(|&&node| free[node] >= gang.gpus);
        if able.count() >= gang.nodes as usize {
            return Some(kinds);
        }
        let lacking = nodes.iter().filter(|&&node| free[node] < gang.gpus);
        let options = lacking.filter_map(|&node| {
            let missing = gang.gpus - free[node];
            let (cost, set) = free_node(problem, &kinds, &jobs_on[node], node as u32, missing)?;
            Some((cost, node, set))
        });
        let (_, _, set) = options.min_by_key(|(cost, node, _)| (*cost, *node))?;
        for job in set {
            kinds[job] = problem.cheapest(&problem.jobs[job]).map(|(_, kind)| kind);
        }
    }
}

/// The cheapest jobs of a node that hold `missing` GPUs there together.
fn free_node(
    problem: &Problem<'_>,
    kinds: &[Option<Kind>],
    jobs: &[usize],
    node: u32,
    missing: u32,
) -> Option<(u64, Vec<usize>)> {
    let mut options: Vec<(u64, u32, usize)> = jobs
        .iter()
        .filter(|&&job| kinds[job].is_none())
        .filter_map(|&job| {
            let of = &problem.jobs[job];
            let held = of.shares.iter().find(|share| share.0 == node)?.1;
            Some((problem.cheapest(of)?.0, held, job))
        })
        .collect();
    options.sort_unstable();
    options.truncate(MOST);
    let sets = 1u32..1 << options.len();
    let chosen = |set: u32| (0..options.len()).filter(move |at| set >> at & 1 == 1);
    let enough = sets.filter(|&set| chosen(set).map(|at| options[at].1).sum::<u32>() >= missing);
    let cost = |set: u32| chosen(set).fold(0u64, |sum, at| sum.saturating_add(options[at].0));
    let best = enough.min_by_key(|&set| (cost(set), set.count_ones(), set))?;
    Some((cost(best), chosen(best).map(|at| options[at].2).collect()))
}

/// Finds places; jobs that would have to move and find none are preempted, if they may be.
fn settle(
    problem: &Problem<'_>,
    mut kinds: Vec<Option<Kind>>,
    steps: u32,
) -> Option<(Vec<Option<Kind>>, Places)> {
    loop {
        if let Found::Yes(found) = places(problem, &kinds, steps) {
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
    mut kinds: Vec<Option<Kind>>,
    mut found: Places,
    steps: u32,
) -> (Vec<Option<Kind>>, Places) {
    let mut done: Vec<usize> = (0..kinds.len())
        .filter(|&job| kinds[job].is_some())
        .collect();
    let cost = |kinds: &[Option<Kind>], job: usize| {
        kinds[job].map_or(0, |kind| problem.cost(&problem.jobs[job], kind).total)
    };
    done.sort_by_key(|&job| (u64::MAX - cost(&kinds, job), job));
    for job in done {
        let before = kinds[job];
        let cheaper = problem.cheapest(&problem.jobs[job]).map(|(_, kind)| kind);
        for other in [None, cheaper] {
            if other == kinds[job] {
                continue;
            }
            kinds[job] = other;
            match places(problem, &kinds, steps) {
                Found::Yes(places) => {
                    found = places;
                    break;
                }
                _ => kinds[job] = before,
            }
        }
    }
    (kinds, found)
}
