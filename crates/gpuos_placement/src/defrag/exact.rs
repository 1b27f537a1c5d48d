//! All sets of actions, from the cheapest on.
//!
//! Options are sorted by cost; from a set whose last option is the n-th come two: with the n-th
//! and the next one, and with the next one instead. That makes every set once, and none before a
//! cheaper one (Lawler's scheme for the k best subsets, Management Science 18(7), 1972).
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::fit::{FitResult, Places, could_fit, places};
use super::{Action, Domains, Impossible, Kind, Limits, Method, Plan, Problem};

/// Nodes and jobs that are looked at in all sets together: on a large cluster fewer sets are tried.
const WORK: u32 = 50_000_000;

/// One thing that may be done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Choice {
    cost: u64,
    /// Counted down from the highest job id.
    younger: Reverse<u32>,
    job: usize,
    kind: Kind,
}

/// The cheapest set, or the good one if that costs no more or nothing cheaper was found in time.
/// No plan costs less than `least`.
pub fn solve(
    problem: &Problem<'_>,
    domains: &Domains,
    limits: Limits,
    good: Option<Plan>,
    least: u64,
) -> Result<Plan, Impossible> {
    let most = good.as_ref().map_or(u64::MAX, |plan| plan.cost.total);
    if most <= least
        && let Some(good) = good
    {
        return Ok(proved(good));
    }
    let mut known = true;
    let mut kinds = vec![None; problem.jobs.len()];
    if let Some(plan) = attempt(problem, domains, &kinds, limits.steps, &mut known) {
        return Ok(plan);
    }
    let mut choices = Vec::new();
    for (job, of) in problem.jobs.iter().enumerate() {
        for (may, kind) in [(of.preemptable, Kind::Preempt), (of.movable, Kind::Move)] {
            if may {
                choices.push(Choice {
                    cost: problem.cost(of, kind).total,
                    younger: Reverse(of.id),
                    job,
                    kind,
                });
            }
        }
    }
    choices.sort_unstable();
    // By cost, then by the number of jobs.
    let mut heap: BinaryHeap<Reverse<(u64, Vec<usize>)>> = BinaryHeap::new();
    if let Some(first) = choices.first() {
        heap.push(Reverse((first.cost, vec![0])));
    }
    let most_sets = limits
        .sets
        .min(WORK / (1 + problem.free.len() + problem.jobs.len()) as u32);
    let mut sets = 0;
    while let Some(Reverse((cost, set))) = heap.pop() {
        if cost >= most {
            // Whatever follows costs no less than what is found already.
            break;
        }
        sets += 1;
        if sets > most_sets {
            // All that cost less did not work.
            let bound = if known { cost.max(least) } else { least };
            return bounded(good, bound, sets);
        }
        let Some(&last) = set.last() else { continue };
        if last + 1 < choices.len() {
            let next = choices[last + 1].cost;
            let mut more = set.clone();
            more.push(last + 1);
            heap.push(Reverse((cost.saturating_add(next), more)));
            let mut other = set.clone();
            other.pop();
            other.push(last + 1);
            let rest = cost - choices[last].cost;
            heap.push(Reverse((rest.saturating_add(next), other)));
        }
        kinds.fill(None);
        let mut twice = false;
        for &at in &set {
            let place = &mut kinds[choices[at].job];
            twice |= place.is_some();
            *place = Some(choices[at].kind);
        }
        if twice {
            continue;
        }
        if let Some(plan) = attempt(problem, domains, &kinds, limits.steps, &mut known) {
            return if known {
                Ok(Plan {
                    examined: sets,
                    ..plan
                })
            } else {
                bounded(Some(plan), least, sets)
            };
        }
    }
    match (known, good) {
        (true, None) => Err(Impossible::DoesNotFit),
        (true, Some(good)) => Ok(Plan {
            examined: sets,
            ..proved(good)
        }),
        (false, good) => bounded(good, least, sets),
    }
}

fn proved(good: Plan) -> Plan {
    Plan {
        method: Method::Exact,
        bound: good.cost.total,
        ..good
    }
}

fn bounded(good: Option<Plan>, bound: u64, looked: u32) -> Result<Plan, Impossible> {
    let plan = good.ok_or(Impossible::NotFound)?;
    if plan.cost.total <= bound {
        return Ok(Plan {
            examined: looked,
            ..proved(plan)
        });
    }
    Ok(Plan {
        method: Method::Bounded,
        bound,
        examined: looked,
        ..plan
    })
}

/// The plan of one set, if it works; `known` becomes false when that could not be found out.
fn attempt(
    problem: &Problem<'_>,
    domains: &Domains,
    kinds: &[Option<Kind>],
    steps: u32,
    known: &mut bool,
) -> Option<Plan> {
    if !could_fit(problem, domains, kinds) {
        return None;
    }
    match places(problem, domains, kinds, steps) {
        FitResult::Yes(places) => Some(plan(problem, kinds, places, Method::Exact)),
        FitResult::No => None,
        FitResult::Unknown => {
            *known = false;
            None
        }
    }
}

/// The plan that a set of actions and its places make.
pub fn plan(problem: &Problem<'_>, kinds: &[Option<Kind>], places: Places, method: Method) -> Plan {
    let action = |(job, kind): (usize, &Option<Kind>)| {
        let action = match (*kind)? {
            Kind::Preempt => Action::Preempt,
            Kind::Move => {
                let place = places.moved.iter().find(|(mover, _)| *mover == job)?;
                Action::Move(place.1.clone())
            }
        };
        Some((job, action))
    };
    let cost = problem.sum(kinds);
    Plan {
        actions: kinds.iter().enumerate().filter_map(action).collect(),
        cost,
        gang: places.gang,
        method,
        bound: cost.total,
        examined: 0,
    }
}
