//! The rank of a node for a job on one node: what its pattern offers, as figures to compare.
use super::fabric::FabricIndex;
use super::gpus::Pick;
use super::index::{Index, Pattern};
use super::job::{Job, Rule};
use super::pattern_figures::Figures;
use super::state::State;
use super::types::Criterion;
use super::{Linked, bits};

/// Rank of a node before the fabric is looked at, lower first: distance, cost, links, and the order
/// by the job's rule.
pub type Key = [u32; 7];

/// The nodes of a pattern that a pick holds for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    All,
    /// Those in a domain of the level.
    Inside(usize),
    /// Those in none.
    Outside(usize),
}

impl Side {
    /// Whether the node at a position is on this side.
    pub fn holds(self, fabric: &FabricIndex, at: u32) -> bool {
        match self {
            Side::All => true,
            Side::Inside(level) => bits::has(fabric.inside(level), at),
            Side::Outside(level) => !bits::has(fabric.inside(level), at),
        }
    }
}

/// The nodes of a pattern on one side, word by word.
pub fn nodes_of<'a>(
    index: &'a Index,
    fabric: &'a FabricIndex,
    slot: u32,
    side: Side,
) -> impl Iterator<Item = u64> + 'a {
    let nodes = index.nodes(slot).iter().enumerate();
    nodes.map(move |(word, &nodes)| match side {
        Side::All => nodes,
        Side::Inside(level) => nodes & fabric.inside(level)[word],
        Side::Outside(level) => nodes & !fabric.inside(level)[word],
    })
}

/// Leaves only the nodes of the field that are best by an affinity rule; says whether any were
/// taken out.
#[cold]
#[inline(never)]
pub fn narrow(job: &Job, state: &State, field: &mut [u64]) -> bool {
    let mut best = u32::MAX;
    let of = |at: u32| job.distance(state.node(at).affinity);
    for (word, (&nodes, &marked)) in field.iter().zip(&state.marked).enumerate() {
        if nodes & !marked != 0 {
            best = best.min(job.distance(0));
        }
        best = bits::each(word, nodes & marked)
            .map(of)
            .fold(best, u32::min);
    }
    let mut narrowed = false;
    for (word, (nodes, &marked)) in field.iter_mut().zip(&state.marked).enumerate() {
        let mut keep = if best == job.distance(0) {
            *nodes & !marked
        } else {
            0
        };
        for at in bits::each(word, *nodes & marked).filter(|&at| of(at) == best) {
            keep |= 1 << (at % 64);
        }
        narrowed |= keep != *nodes;
        *nodes = keep;
    }
    narrowed
}

/// The best GPUs of a pattern for `count` of the job's GPUs, and the nodes that this holds for.
pub fn pick(
    tables: &mut [super::gpus::GpuTable],
    pattern: &Pattern,
    count: usize,
    job: &Job,
    linked: Linked,
) -> Option<(Pick, Side)> {
    let free = pattern.free;
    if free.len() < count {
        return None;
    }
    let table = &mut tables[pattern.type_of as usize];
    let mut best = |linked| table.best(free, count, linked, job.worth);
    let (mut pick, side) = match linked {
        Linked::Ignore => (best(false)?, Side::All),
        Linked::Must(at) | Linked::MustNot(at) => {
            let joined = match job.leave {
                // Where the scheduler chooses the GPUs, all that it could choose must be joined.
                true => table
                    .linked(pattern.present)
                    .then(|| table.best(free, count, false, job.worth))
                    .flatten(),
                false => best(true),
            };
            match (linked, joined, at) {
                (Linked::Must(_), Some(pick), _) => (pick, Side::All),
                (Linked::Must(_), None, None) => return None,
                (Linked::Must(_), None, Some(level)) => (
                    table.best(free, count, false, job.worth)?,
                    Side::Inside(level),
                ),
                (_, Some(_), _) => return None,
                (_, None, at) => (
                    table.best(free, count, false, job.worth)?,
                    at.map_or(Side::All, Side::Outside),
                ),
            }
        }
    };
    if job.whole {
        pick.lost = table.usable(free, job.worth);
    }
    Some((pick, side))
}

/// What [`pick`] finds, as figures to compare.
#[inline(never)]
pub fn wished(
    tables: &mut [super::gpus::GpuTable],
    pattern: &Pattern,
    count: usize,
    job: &Job,
    linked: Linked,
) -> Option<(Figures, Side)> {
    let (pick, side) = pick(tables, pattern, count, job, linked)?;
    let figures = Figures {
        ring: pick.ring,
        total: pick.total,
        lost: pick.lost,
        penalty: pattern.penalty,
        free: pattern.free.len() as u16,
    };
    Some((figures, side))
}

/// The rank of the nodes of a pattern, by what they offer to the job.
pub fn key(job: &Job, pattern: &Pattern, pick: &Pick, distance: u32) -> Key {
    if job.rule == Rule::FirstFit {
        return [0; 7];
    }
    let mut order = job.order(pattern.penalty, pick.lost, pattern.free.len() as u32);
    if job.learned {
        // Nodes of a pattern differ by their CPUs and memory: they are compared one by one.
        order = [order[0], 0, 0];
    }
    let [a, b, c] = order;
    let links = [u32::MAX - pick.ring, u32::MAX - pick.total];
    let cost = job.cost(pattern.penalty);
    [distance, cost, links[0], links[1], a, b, c]
}

/// What tells two different ranks apart.
pub fn criterion(job: &Job, a: &Key, b: &Key) -> Criterion {
    let full = matches!(job.rule, Rule::Pack | Rule::Spread);
    match a.iter().zip(b).position(|(a, b)| a != b) {
        Some(0) => Criterion::Affinity,
        Some(1) => Criterion::Cost,
        Some(2) => Criterion::Bandwidth,
        Some(3) => Criterion::Links,
        Some(4) if a[4] >> 4 == b[4] >> 4 => Criterion::Fetch,
        Some(4) if a[4] >> 12 == b[4] >> 12 => Criterion::Cost,
        Some(4) => Criterion::Penalty,
        Some(5) if job.learned => Criterion::Mix,
        Some(5) if full => Criterion::Fit,
        Some(5) => Criterion::Usability,
        Some(_) if full => Criterion::Usability,
        Some(_) => Criterion::Fit,
        None => Criterion::Index,
    }
}
