//! Where a job could start once the running jobs are gone: for the scheduler's forecast.
use gpuos_model::cluster::NO_DOMAIN;
use gpuos_model::gpuset::GpuSet;

use super::job::{Assume, Job};
use super::types::{Choice, Criterion, NodeChoice, NodeState, Request};
use super::{Planner, Reach, bits, capacity, gang};

/// A place that would hold the job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Free GPUs there now, counted down from the highest number: most come first.
    busy: u32,
    /// Whether it is a domain of the fabric: nodes come before it.
    fabric: bool,
    /// Domain, or node.
    index: u32,
    /// Number of the domain among the spans of its level, or the position of the node.
    at: u32,
    /// GPUs that may be used there; empty = all.
    gpus: GpuSet,
}

/// See [`Planner::future`].
pub(super) fn future<'p>(
    planner: &'p mut Planner,
    state: &[NodeState],
    request: &Request,
    n: u32,
) -> Option<&'p Choice> {
    planner.sync(state);
    foresee(planner, request, None, n)
}

/// See [`Planner::foresee`].
pub(super) fn foresee<'p>(
    planner: &'p mut Planner,
    request: &Request,
    candidates: Option<&[u64]>,
    n: u32,
) -> Option<&'p Choice> {
    let job = Job::new(request, planner.cluster.nodes.len()).ok()?;
    let reach = match planner.wish(request).ok()? {
        Some((reach, true)) => reach,
        _ => Reach::Any,
    };
    planner.candidates(candidates);
    let mut places = std::mem::take(&mut planner.future);
    places.clear();
    // One node is within any domain of the fabric.
    let on_one = job.max == 1 && matches!(reach, Reach::Fabric(_));
    let level = match reach {
        Reach::Fabric(level) if !on_one => Some(level),
        Reach::NvLink(level) if job.max > 1 => level,
        Reach::Any | Reach::Fabric(_) => Some(planner.fabric.levels),
        Reach::Node | Reach::NvLink(_) => None,
    };
    if matches!(reach, Reach::Node | Reach::NvLink(_)) && job.min == 1 {
        future_nodes(planner, &job, reach, &mut places);
    }
    if let Some(level) = level {
        future_domains(planner, &job, level, &mut places);
    }
    let found = places.len() as u32;
    let place = (n < found).then(|| *places.select_nth_unstable(n as usize).1);
    planner.future = places;
    let place = place?;
    planner.choice.nodes.clear();
    let (mut reached, mut domain) = (1, None);
    if let Some(level) = level.filter(|_| place.fabric) {
        let span = planner.fabric.spans(level)[place.at as usize];
        reached = level as u32 + 2;
        domain = (level < planner.fabric.levels).then_some(span.domain);
        for at in span.start..span.end {
            if bits::has(&planner.capacity.fit, at) {
                planner.choice.nodes.push(NodeChoice {
                    node: planner.fabric.node(at),
                    gpus: GpuSet::EMPTY,
                });
            }
        }
        planner
            .choice
            .nodes
            .sort_unstable_by_key(|choice| choice.node);
    } else {
        if matches!(reach, Reach::NvLink(_)) {
            reached = 0;
        }
        planner.choice.nodes.push(NodeChoice {
            node: planner.fabric.node(place.at),
            gpus: place.gpus,
        });
    }
    planner.choice.reached = reached;
    planner.choice.domain = domain;
    planner.choice.bus_gbps = 0.0;
    planner.choice.usability_lost = 0.0;
    planner.choice.feasible_nodes = planner.choice.nodes.len() as u32;
    planner.choice.feasible_domains = found;
    planner.choice.decided = Criterion::default();
    Some(&planner.choice)
}

fn future_nodes(planner: &mut Planner, job: &Job, reach: Reach, places: &mut Vec<Place>) {
    let count = job.gpus_on_one();
    for at in 0..planner.fabric.len() {
        let node = planner.fabric.node(at);
        let state = planner.state.assumed(Assume::Idle, at);
        if job.capacity(&state) < job.units.unwrap_or(1)
            || job.required.iter().any(|&required| required != node)
        {
            continue;
        }
        let free = planner.state.now.free(at);
        let mut add = |allowed: GpuSet| {
            places.push(Place {
                busy: u32::MAX - free.and(allowed).len() as u32,
                fabric: false,
                index: node,
                at,
                gpus: if allowed == state.present {
                    GpuSet::EMPTY
                } else {
                    allowed
                },
            });
        };
        let Reach::NvLink(_) = reach else {
            add(state.present);
            continue;
        };
        let table = &planner.tables[planner.type_of[node as usize] as usize];
        if table.linked(state.present) || count == 1 && !job.leave {
            add(state.present);
        }
        if table.linked(state.present) || count == 1 || job.leave {
            continue;
        }
        for at in 0..table.islands.len() {
            let allowed = table.islands[at].and(state.present);
            // GPUs out of service can leave one island inside another, or two the same.
            let covered = table.islands.iter().enumerate().any(|(index, other)| {
                let other = other.and(state.present);
                let larger = other.len() > allowed.len() || index < at;
                index != at && larger && allowed.minus(other).is_empty()
            });
            if allowed.len() as u64 >= count && !covered {
                add(allowed);
            }
        }
    }
}

fn future_domains(planner: &mut Planner, job: &Job, level: usize, places: &mut Vec<Place>) {
    capacity::offers(planner, Assume::Idle, job);
    if level < planner.fabric.levels {
        capacity::confine(planner, level);
    }
    for (number, span) in planner.fabric.spans(level).iter().enumerate() {
        if span.domain == NO_DOMAIN || gang::remaining_capacity(planner, job, span).is_none() {
            continue;
        }
        let (now, candidates) = (&planner.state.now, planner.state.candidates());
        // A node with three free GPUs is counted three times.
        let with = |gpus| bits::count_both(now.least(gpus), candidates, span.start, span.end);
        let free: u32 = (1..=planner.capacity.gpus()).map(with).sum();
        places.push(Place {
            busy: u32::MAX - free,
            fabric: true,
            index: span.domain,
            at: number as u32,
            gpus: GpuSet::EMPTY,
        });
    }
}
