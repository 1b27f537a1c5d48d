//! Why a job has to wait, with the numbers.
use gpuos_model::cluster::NO_DOMAIN;

use super::fabric::Span;
use super::gang::Count;
use super::job::{Assume, Job};
use super::never::Never;
use super::types::{Unit, Wait};
use super::{Planner, Reach, bits, capacity};

/// The domain that comes nearest to having room.
struct Nearest {
    domain: String,
    unit: Unit,
    have: u32,
    need: u32,
}

/// The reason why [`Planner::search`] found no choice number `skip`.
pub(super) fn why(
    planner: &mut Planner,
    job: &Job,
    wish: Option<(Reach, bool)>,
    skip: u32,
) -> Wait {
    let required = wish.filter(|(_, required)| *required);
    let could = |planner: &mut Planner| match (required, job.required) {
        // Only the number of nodes matters, and that is kept.
        (None, []) => could_fit(planner, job),
        _ => planner.fits(Assume::Empty, job, required),
    };
    if skip == 0 && !could(planner) {
        return Wait::Never {
            why: never(planner, job, required),
        };
    }
    match required {
        Some((reach, _)) if planner.fits(Assume::Now, job, None) => {
            let nearest = nearest(planner, Assume::Now, job, reach);
            Wait::Level {
                level: level_name(planner, reach),
                best_domain: nearest.domain,
                unit: nearest.unit,
                have: nearest.have,
                need: nearest.need,
            }
        }
        _ => capacity(planner, job),
    }
}

/// Whether a job that names no node and requires no level could run if nothing else did.
fn could_fit(planner: &Planner, job: &Job) -> bool {
    let index = &planner.state.empty;
    let Some(units) = job.units else {
        return index.count(u64::from(job.unit)) >= job.min;
    };
    if job.min == 1 && index.count(job.gpus_on_one()) > 0 {
        return true;
    }
    let mut count = Count::default();
    let mut more = 0;
    for size in (1..=planner.capacity.gpus() as u32 / job.unit).rev() {
        let nodes = index.count(u64::from(size * job.unit));
        count.by_capacity[size as usize] = nodes - more;
        count.capacity += (nodes - more) * size;
        more = nodes;
    }
    count.nodes = more;
    job.sharing(&count, units).is_some()
}

fn level_name(planner: &Planner, reach: Reach) -> String {
    match reach {
        Reach::NvLink(_) => "nvlink".into(),
        Reach::Node => "node".into(),
        Reach::Any => "any".into(),
        Reach::Fabric(level) => planner.cluster.fabric.levels[level].name.clone(),
    }
}

fn never(planner: &mut Planner, job: &Job, required: Option<(Reach, bool)>) -> Never {
    let Some((reach, _)) = required.filter(|_| planner.fits(Assume::Empty, job, None)) else {
        return never_anywhere(planner, job);
    };
    let level = level_name(planner, reach);
    if job.min > 1 && matches!(reach, Reach::Node | Reach::NvLink(None)) {
        return Never::InsideNode {
            nodes: job.min,
            level,
        };
    }
    if let Reach::NvLink(Some(at)) | Reach::Fabric(at) = reach {
        let domain = |&node: &u32| planner.fabric.domain(at, node);
        let first = job.required.first().map(domain);
        let one = |node| first == Some(domain(node)) && first != Some(NO_DOMAIN);
        if !job.required.iter().all(one) {
            return Never::Apart { level };
        }
    }
    let nearest = nearest(planner, Assume::Empty, job, reach);
    Never::Domain {
        unit: nearest.unit,
        need: nearest.need,
        have: nearest.have,
        domain: nearest.domain,
        level,
    }
}

fn never_anywhere(planner: &mut Planner, job: &Job) -> Never {
    let Nearest {
        unit, have, need, ..
    } = nearest_domain(planner, Assume::Empty, job, planner.fabric.levels);
    let mut named = job.required.iter();
    if let Some(&node) = named.find(|&&node| !offered(planner, node)) {
        let name = planner.cluster.nodes[node as usize].name.clone();
        return Never::Node { name };
    }
    let nodes = (job.min, job.max);
    match unit {
        Unit::Gpus => Never::Gpus { need, have, nodes },
        Unit::Nodes => Never::Nodes {
            gpus: job.unit,
            have,
            nodes,
        },
    }
}

fn nearest(planner: &mut Planner, assume: Assume, job: &Job, reach: Reach) -> Nearest {
    let fabric = match reach {
        Reach::Fabric(level) | Reach::NvLink(Some(level)) if job.max > 1 => Some(level),
        _ => None,
    };
    match fabric {
        Some(level) => nearest_domain(planner, assume, job, level),
        None => nearest_node(planner, assume, job, matches!(reach, Reach::NvLink(_))),
    }
}

fn nearest_node(planner: &mut Planner, assume: Assume, job: &Job, linked: bool) -> Nearest {
    let mut best = Nearest {
        domain: String::new(),
        unit: Unit::Gpus,
        have: 0,
        need: job.gpus_on_one().min(u64::from(u32::MAX)) as u32,
    };
    for at in 0..planner.fabric.len() {
        let state = planner.state.assumed(assume, at);
        let node = planner.fabric.node(at);
        let most = job.usable(&state);
        if most <= best.have || job.required.iter().any(|&required| required != node) {
            continue;
        }
        let table = &mut planner.tables[planner.type_of[node as usize] as usize];
        let fits = |&count: &u32| match (linked, job.leave) {
            (false, _) => true,
            // The scheduler chooses: whatever it takes must be linked.
            (true, true) => table.linked(state.present),
            (true, false) => {
                let count = count as usize;
                table.best(state.free, count, true, job.worth).is_some()
            }
        };
        let have = (1..=most).rev().find(fits).unwrap_or(0);
        if have > best.have {
            best.have = have;
            best.domain = planner.cluster.nodes[node as usize].name.clone();
        }
    }
    best
}

fn nearest_domain(planner: &mut Planner, assume: Assume, job: &Job, level: usize) -> Nearest {
    capacity::offers(planner, assume, job);
    if level < planner.fabric.levels {
        capacity::confine(planner, level);
    }
    let mut best = Nearest {
        domain: String::new(),
        unit: Unit::Nodes,
        have: 0,
        need: job.min,
    };
    // Nearest by the part of what is needed that it has, then the lowest domain.
    let mut most_part = None;
    for at in 0..planner.fabric.spans(level).len() {
        let span = planner.fabric.spans(level)[at];
        let holds = |&node: &u32| planner.fabric.domain(level, node) == span.domain;
        if span.domain == NO_DOMAIN || !job.required.iter().all(holds) {
            continue;
        }
        let count = bits::count(&planner.capacity.fit, span.start, span.end);
        let (unit, have, need) = match job.units {
            Some(units) if count >= job.min => (
                Unit::Gpus,
                most_units(planner, job, &span) * job.unit,
                units.saturating_mul(job.unit),
            ),
            _ => (Unit::Nodes, count, job.min),
        };
        let part = u64::from(have) * 1000 / u64::from(need.max(1));
        let part = Some((part, u32::MAX - span.domain));
        if part <= most_part {
            continue;
        }
        most_part = part;
        let names = planner.cluster.fabric.levels.get(level).map(|l| &l.domains);
        let name = names.and_then(|names| names.get(span.domain as usize));
        best.domain.clear();
        best.domain.push_str(name.map_or("", String::as_str));
        (best.unit, best.have, best.need) = (unit, have, need);
    }
    best
}

fn capacity(planner: &mut Planner, job: &Job) -> Wait {
    capacity::offers(planner, Assume::Now, job);
    let named = job
        .required
        .iter()
        .filter(|&&n| offered(planner, n))
        .count() as u32;
    let (feasible_nodes, needed_nodes) = match job.units {
        _ if named < job.required.len() as u32 => (named, job.required.len() as u32),
        None => (planner.capacity.offered, job.min),
        Some(units) => (
            planner.capacity.offered,
            job.min.max(fewest(planner, job, units)),
        ),
    };
    let any = planner.fabric.spans(planner.fabric.levels).first().copied();
    let free_gpus = match (job.units, any) {
        (_, None) => 0,
        (Some(_), Some(any)) => most_units(planner, job, &any) * job.unit,
        (None, Some(_)) => {
            let candidates = planner.state.candidates();
            // A node with three free GPUs is counted three times.
            let with = |gpus| bits::count_both_all(planner.state.now.least(gpus), candidates);
            (1..=planner.capacity.gpus()).map(with).sum()
        }
    };
    Wait::Capacity {
        feasible_nodes,
        needed_nodes,
        free_gpus,
        needed_gpus: job.unit.saturating_mul(job.units.unwrap_or(job.min)),
    }
}

/// Whether a node has room for a part of the job.
fn offered(planner: &Planner, node: u32) -> bool {
    let place = planner.fabric.place(node);
    place.is_some_and(|at| bits::has(&planner.capacity.fit, at))
}

/// Units that the nodes of a span offer on as many of them as the job may have, the named ones
/// included, wherever they are.
fn most_units(planner: &Planner, job: &Job, span: &Span) -> u32 {
    let named = |&&node: &&u32| {
        planner
            .fabric
            .place(node)
            .filter(|_| offered(planner, node))
    };
    let held = |at: u32| capacity::units_at(planner, job, at);
    let mut units = 0;
    let mut more = job.max - job.required.len() as u32;
    for size in (1..=planner.capacity.most).rev() {
        let all = bits::count(planner.capacity.exactly(size), span.start, span.end);
        let of_size = job.required.iter().filter_map(|node| named(&node));
        let of_size = of_size.filter(|&at| held(at) == size).count() as u32;
        let others = all.saturating_sub(of_size).min(more);
        units += size * (others + of_size);
        more -= others;
    }
    units
}

/// Nodes needed for so many units if the largest ones were free.
fn fewest(planner: &Planner, job: &Job, units: u32) -> u32 {
    let most = planner.types.iter().map(|t| t.gpus as u32 / job.unit).max();
    units.div_ceil(most.unwrap_or(0).max(1))
}
