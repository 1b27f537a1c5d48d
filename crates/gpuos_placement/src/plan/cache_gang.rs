//! Jobs on several nodes by what is kept: the rank of every domain of a level, and the best of them.
//!
//! The order is that of [`super::gang`]. The rank of a domain hangs on the nodes in it, but for the
//! room in the domain around it: that is added where the domains inside one are joined, and among
//! these makes no difference.
use gpuos_model::cluster::NO_DOMAIN;

use super::cache::{DecisionCache, Ranks, changed};
use super::fabric::FabricIndex;
use super::gang::{AROUND, Key, Sums, TOUCHED, criterion, key, outermost};
use super::job::{Assume, Job, Rule};
use super::tree::TreeNode;
use super::types::Criterion;
use super::{Levels, Planner, bits, capacity, gang, leaf, select};

/// The rank of no domain.
const NONE: Key = [u32::MAX; 11];

/// What a knot has: one domain of the level, or several.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// Domains with room for the job.
    count: u32,
    /// The best of them by its number among the spans of the level, its rank, and the next one.
    span: u32,
    best: Key,
    next: Key,
    /// Units of room, and nodes with any, in domains or not.
    capacity: u32,
    nodes: u32,
}

impl Default for Layer {
    fn default() -> Layer {
        Layer {
            count: 0,
            span: 0,
            best: NONE,
            next: NONE,
            capacity: 0,
            nodes: 0,
        }
    }
}

/// [`super::gang::gang`] for the best choice, where the job and the decision are of a kind that ranks are
/// kept for. `false`: they are not, or there is no place.
#[cold]
#[inline(never)]
pub(super) fn gang_cached(planner: &mut Planner, job: &Job, levels: Levels) -> bool {
    let near = matches!(job.rule, Rule::Affinity | Rule::AntiAffinity);
    let plain = !near && job.required.is_empty() && job.unit as usize <= planner.capacity.gpus();
    if !plain || !planner.state.unrestricted() {
        return false;
    }
    let Some(mut kept) = planner.decision_cache.take() else {
        return false;
    };
    // Where some nodes are in no domain of the level, these would have to be left out.
    let full = kept.full[levels.to] && levels.within.is_none_or(|level| kept.full[level]);
    let table = if full { kept.gang(job) } else { None };
    let done = table.is_some_and(|table| best_domain(planner, &mut kept, table, job, levels));
    planner.decision_cache = Some(kept);
    done
}

fn best_domain(
    planner: &mut Planner,
    kept: &mut DecisionCache,
    table: usize,
    job: &Job,
    levels: Levels,
) -> bool {
    capacity::ask(planner, Assume::Now, job);
    planner.gang.avoiding = false;
    planner.gang.last = None;
    let mut found = None;
    for level in levels.from..=levels.to {
        if !gang::wide_enough(planner, job, level) {
            continue;
        }
        let here = refresh(planner, kept, table, job, level);
        if here.count > 0 {
            found = Some((level, here));
            break;
        }
    }
    let Some((mut level, mut domains)) = found else {
        return false;
    };
    // See `Planner::fewer_islands`.
    if planner.fabric.islands && level > 0 && job.rule != Rule::FirstFit {
        let most = match levels.wished {
            wished if wished < level => levels.to,
            wished => wished.min(levels.to),
        };
        for wider in level + 1..=most {
            let here = refresh(planner, kept, table, job, wider);
            if here.count > 0 && here.best[TOUCHED] < domains.best[TOUCHED] {
                (level, domains) = (wider, here);
            }
        }
    }
    if planner.gang.last != Some((level, domains.span)) {
        refresh_span(planner, job, level, domains.span as usize);
        select::select(planner, job, level, domains.span);
    }
    planner.capacity.offered = domains.nodes;
    let decided = match domains.count {
        1 => Criterion::Only,
        _ => criterion(job.rule, &domains.best, &domains.next),
    };
    gang::finish_choice(planner, job, domains.count, decided);
    true
}

/// Brings the ranks of a form at a level up to date; returns what the whole cluster has.
fn refresh(
    planner: &mut Planner,
    kept: &mut DecisionCache,
    table: usize,
    job: &Job,
    level: usize,
) -> Layer {
    let DecisionCache {
        tree, dirty, gangs, ..
    } = kept;
    let Ranks {
        version,
        by_node: by_knot,
    } = &mut gangs.ranks(table)[level];
    let (first, root) = (tree.first(level), tree.len() - 1);
    match changed(&planner.state, *version) {
        Some(changed) => {
            for &at in changed {
                let span = span_around(&planner.fabric, at, level);
                bits::set_member(dirty, tree.of_span(level, span), true);
            }
            let mut from = first as u32;
            while let Some(number) = tree.climb(dirty, from) {
                let knot = tree.node(number as usize);
                let kids = tree.kids(knot);
                by_knot[number as usize - first] = match knot.span(level) {
                    Some(span) => domain(planner, job, level, span),
                    None => join(&planner.fabric, job, level, knot, kids, by_knot, first),
                };
                if number as usize == root {
                    bits::set_member(dirty, number, false);
                    break;
                }
                from = number + 1;
            }
        }
        None => {
            for number in first..=root {
                let knot = tree.node(number);
                if knot.below(level) {
                    continue;
                }
                let kids = tree.kids(knot);
                by_knot[number - first] = match knot.span(level) {
                    Some(span) => domain(planner, job, level, span),
                    None => join(&planner.fabric, job, level, knot, kids, by_knot, first),
                };
            }
        }
    }
    *version = Some(planner.state.version());
    by_knot[root - first]
}

/// Finds out what room there is in a span.
fn refresh_span(planner: &mut Planner, job: &Job, level: usize, number: usize) {
    let span = planner.fabric.spans(level)[number];
    let words = span.start as usize / 64..span.end.div_ceil(64) as usize;
    capacity::offers_in(planner, job, words);
}

/// What one domain of a level has.
fn domain(planner: &mut Planner, job: &Job, level: usize, number: usize) -> Layer {
    refresh_span(planner, job, level, number);
    let span = planner.fabric.spans(level)[number];
    let nodes = bits::count(&planner.capacity.fit, span.start, span.end);
    let mut layer = Layer {
        capacity: match job.units {
            None => nodes,
            Some(_) => capacity::units_within(planner, span.start, span.end),
        },
        nodes,
        ..Layer::default()
    };
    if span.domain == NO_DOMAIN || nodes == 0 {
        return layer;
    }
    let Some(left) = gang::remaining_capacity(planner, job, &span) else {
        return layer;
    };
    let sums = match job.rule {
        // It goes by the number of the domain alone.
        Rule::FirstFit => Sums::default(),
        _ => leaf::sums_of_leaf(planner, job, level, &span).unwrap_or_else(|| {
            select::select(planner, job, level, number as u32);
            gang::sums(planner, job)
        }),
    };
    layer.count = 1;
    layer.span = number as u32;
    layer.best = key(job, &span, left, &sums, 0);
    layer
}

/// The span of a level that a position is in.
fn span_around(fabric: &FabricIndex, at: u32, level: usize) -> usize {
    (0..level).fold(fabric.cell(at), |span, level| fabric.parent(level, span))
}

/// What the children of a knot have together.
fn join(
    fabric: &FabricIndex,
    job: &Job,
    level: usize,
    knot: &TreeNode,
    kids: &[u32],
    by_knot: &[Layer],
    first: usize,
) -> Layer {
    let mut all = Layer::default();
    for &kid in kids {
        let kid = &by_knot[kid as usize - first];
        all.capacity += kid.capacity;
        all.nodes += kid.nodes;
        if kid.count == 0 {
            continue;
        }
        all.count += kid.count;
        if kid.best < all.best {
            all.next = all.best.min(kid.next);
            (all.best, all.span) = (kid.best, kid.span);
        } else {
            all.next = all.next.min(kid.best);
        }
    }
    if let Some(span) = knot.span(level + 1).filter(|_| all.count > 0) {
        let outer = match fabric.spans(level + 1)[span].domain {
            NO_DOMAIN => 0,
            _ => all.capacity,
        };
        all.best[AROUND] = outermost(job.rule, outer);
        all.next[AROUND] = all.best[AROUND];
    }
    all
}
