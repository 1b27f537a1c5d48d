//! The same GPUs, and so the same adapters, on each node of a gang that takes a part of each.
//!
//! On a rail-optimised fabric an adapter reaches the adapters of its own rail over one leaf switch,
//! and those of others over the spine. Where nodes would do as well with the GPUs that others take,
//! they take these: of the sets of GPUs whose links are the best that a node can give, the one
//! that most nodes can give; of equals the one that loses the least usability, then the smallest
//! as a binary number. Alignment is bandwidth, so it counts before usability. Nodes that cannot
//! give that set keep their own.
use gpuos_model::gpuset::GpuSet;

use super::Planner;
use super::gpus::{Pick, for_each_subset};
use super::job::Job;

/// Nodes with more GPUs are left as they are: the sets would be too many to look at.
const MOST_GPUS: usize = 8;

/// The GPUs that most of the chosen nodes give with the best links that each of them has.
/// `None` when that makes no difference: nodes without several adapters, whole nodes, unequal
/// shares, nodes of several types, or no two nodes with a set in common.
pub(super) fn aligned(planner: &mut Planner, job: &Job) -> Option<GpuSet> {
    let picked = &planner.gang.picked;
    let [first, others @ ..] = picked.as_slice() else {
        return None;
    };
    let type_of = |at: u32| planner.type_of[planner.fabric.node(at) as usize];
    let kind = type_of(first.at);
    let gpus = (first.give * job.unit) as usize;
    let table = &planner.tables[usize::from(kind)];
    let alike = |other: &super::gang::Entry| other.give == first.give && type_of(other.at) == kind;
    if others.is_empty()
        || job.leave
        || table.gpus > MOST_GPUS
        || gpus >= table.gpus
        || planner.types[usize::from(kind)].nics.len() < 2
        || !others.iter().all(alike)
    {
        return None;
    }
    // How many nodes have which set of free GPUs.
    let mut nodes = [0u32; 1 << MOST_GPUS];
    for entry in picked {
        nodes[planner.state.now.free(entry.at).0 as usize] += 1;
    }
    let mut counts = [(0u32, 0u64); 1 << MOST_GPUS];
    for (free, &count) in nodes.iter().enumerate().filter(|(_, count)| **count > 0) {
        let free = GpuSet(free as u64);
        let table = &mut planner.tables[usize::from(kind)];
        let Some(own) = table.best(free, gpus, false, job.worth) else {
            continue;
        };
        for_each_subset(free, gpus, |set| {
            let figures = table.figures(free, set, job.worth);
            if equal_links(&figures, &own) {
                let (with, lost) = &mut counts[set.0 as usize];
                *with += count;
                *lost += u64::from(count) * u64::from(figures.lost);
            }
        });
    }
    let sets = counts.iter().enumerate().filter(|(_, (with, _))| *with > 1);
    let best = sets.min_by_key(|(set, (with, lost))| (u32::MAX - with, *lost, *set));
    best.map(|(set, _)| GpuSet(set as u64))
}

/// What a node gives: the aligned set where it can, else its own best.
pub(super) fn align(
    planner: &Planner,
    job: &Job,
    at: u32,
    own: Pick,
    aligned: Option<GpuSet>,
) -> Pick {
    let free = planner.state.now.free(at);
    let Some(set) = aligned.filter(|set| set.minus(free).is_empty()) else {
        return own;
    };
    let table = &planner.tables[usize::from(planner.type_of[planner.fabric.node(at) as usize])];
    let figures = table.figures(free, set, job.worth);
    match equal_links(&figures, &own) {
        true => figures,
        false => own,
    }
}

/// Whether two sets have equally good links.
fn equal_links(a: &Pick, b: &Pick) -> bool {
    (a.ring, a.total) == (b.ring, b.total)
}
