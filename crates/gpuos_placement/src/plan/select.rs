//! Which nodes inside a domain.
//!
//! A request with a share per node takes the nodes whose worst ring is as high as possible; among
//! these, the fewest domains of each narrower level, from the widest to the narrowest: the largest
//! ones whole, and for the rest the smallest one that suffices; in the last one the nodes with the
//! least penalty, then the least usability lost, then the fullest, then the lowest index.
//!
//! A request with units over all nodes takes the fewest nodes that have room for all units.
//! Usually these give all that they have but one node, the best that has room for the rest. When
//! the job wants more nodes than that, or the units are tasks, which Slurm deals out so, they are shared out evenly.
use std::ops::RangeInclusive;

use gpuos_model::cluster::NO_DOMAIN;

use super::fabric::Span;
use super::gang::{Count, Entry};
use super::job::{Job, Rule};
use super::{Planner, bits, capacity, costs, gang};

/// A child of a domain: a range of positions, and what is in it.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Its number among the spans of its level.
    span: u32,
    /// Nodes in question in it.
    len: u32,
    /// Nodes of it that are chosen already.
    used: u32,
    /// Whether these nodes are in no domain of the level.
    stray: bool,
    /// The span of the next level that it lies in, where that matters.
    around: u32,
}

/// A node with its rank inside a domain of the narrowest level.
pub type Listed = (u32, [u32; 3], u32, u32);

/// How units are shared out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// Nodes that the job gets.
    pub nodes: u32,
    /// When the fewest nodes suffice: room of the smallest of them, and how many have just that.
    full: Option<(u32, u32)>,
}

impl Job<'_> {
    /// How many of so many nodes a request with a share per node takes.
    pub fn wanted(&self, have: u32) -> u32 {
        match self.rule {
            Rule::Pack => self.min,
            _ => have.min(self.max),
        }
    }

    /// How so many units are shared out over a domain, or `None` when they do not fit.
    pub fn sharing(&self, count: &Count, units: u32) -> Option<Sharing> {
        let must = self.required.len() as u32;
        if count.capacity < units || units < must {
            return None;
        }
        // The fewest nodes: the required ones, then the roomiest.
        let mut missing = units.saturating_sub(count.held);
        let mut fewest = must;
        let (mut smallest, mut equal) = (0, 0);
        for size in (1..count.by_capacity.len() as u32).rev() {
            let need = missing.div_ceil(size).min(count.by_capacity[size as usize]);
            if need > 0 {
                (smallest, equal) = (size, need);
                fewest += need;
                missing = missing.saturating_sub(need * size);
            }
        }
        let nodes = fewest.max(self.min);
        if nodes > self.max || nodes > count.nodes || nodes > units {
            return None;
        }
        let full = nodes == fewest && fewest > must && !self.dealt;
        let full = full.then_some((smallest, equal));
        Some(Sharing { nodes, full })
    }
}

/// Chooses nodes in a domain that has room and leaves them in `picked`.
pub(super) fn select(planner: &mut Planner, job: &Job, level: usize, number: u32) {
    for entry in planner.gang.picked.drain(..) {
        bits::set_member(&mut planner.gang.taken, entry.at, false);
    }
    planner.gang.last = Some((level, number));
    let span = planner.fabric.spans(level)[number as usize];
    match job.units {
        None => {
            let nodes = bits::count(&planner.capacity.fit, span.start, span.end);
            for &node in job.required {
                choose_node(planner, job, node, 1);
            }
            let wanted = job.wanted(nodes) - job.required.len() as u32;
            place(planner, job, level, number, wanted, 1, 1..=1);
        }
        Some(units) => select_units(planner, job, level, number, units),
    }
    // All shares are priced at last, when it is known what each node gives.
    for at in 0..planner.gang.picked.len() {
        let entry = planner.gang.picked[at];
        let gpus = entry.give * job.unit;
        capacity::rank(planner, job, gpus);
        let slot = planner.state.now.slot(entry.at);
        let figure = planner.capacity.ranks(gpus).figures[slot as usize];
        let entry = &mut planner.gang.picked[at];
        (entry.ring, entry.lost) = (figure.ring, figure.lost);
        entry.penalty = planner.state.now.pattern(slot).penalty;
    }
}

fn select_units(planner: &mut Planner, job: &Job, level: usize, number: u32, units: u32) {
    let span = planner.fabric.spans(level)[number as usize];
    let count = gang::count(planner, job, &span);
    let Some(sharing) = count.and_then(|count| job.sharing(&count, units)) else {
        return;
    };
    for &node in job.required {
        choose_node(planner, job, node, u32::MAX);
    }
    match sharing.full {
        Some((smallest, equal)) => fill(planner, job, level, number, units, smallest, equal),
        None => share_evenly(planner, job, level, number, units, sharing.nodes),
    }
}

/// All nodes with more room than `smallest` give everything, and `equal` nodes give
/// `smallest` each, but for the last one, which gives the rest.
fn fill(
    planner: &mut Planner,
    job: &Job,
    level: usize,
    number: u32,
    units: u32,
    smallest: u32,
    equal: u32,
) {
    let span = planner.fabric.spans(level)[number as usize];
    for room in smallest + 1..=planner.capacity.most {
        gather(planner, &span, room..=room);
        choose_all(planner, job, span.start, span.end, room);
    }
    let given: u32 = planner.gang.picked.iter().map(|entry| entry.give).sum();
    let rest = units - given - (equal - 1) * smallest;
    let alike = smallest..=smallest;
    if rest == smallest {
        place(planner, job, level, number, equal, smallest, alike);
        return;
    }
    place(planner, job, level, number, equal - 1, smallest, alike);
    place(
        planner,
        job,
        level,
        number,
        1,
        rest,
        rest..=planner.capacity.most,
    );
}

/// `nodes` nodes give equal parts, as far as they have room for them.
fn share_evenly(
    planner: &mut Planner,
    job: &Job,
    level: usize,
    number: u32,
    units: u32,
    nodes: u32,
) {
    let span = planner.fabric.spans(level)[number as usize];
    let picked = &planner.gang.picked;
    let more = nodes - picked.len() as u32;
    let share = units.div_ceil(nodes);
    let held: u32 = picked.iter().map(|entry| entry.units.min(share)).sum();
    let able = gather(planner, &span, share..=planner.capacity.most);
    if able >= more && held + more * share >= units {
        place(
            planner,
            job,
            level,
            number,
            more,
            share,
            share..=planner.capacity.most,
        );
    } else {
        most_free(planner, job, &span, more);
    }
    // From the node with the least room: an equal part of what is left, or all it has.
    let (fabric, picked) = (&planner.fabric, &mut planner.gang.picked);
    picked.sort_unstable_by_key(|entry| (entry.units, fabric.node(entry.at)));
    let mut missing = units;
    let mut left = nodes;
    for entry in picked {
        entry.give = entry.units.min(missing.div_ceil(left));
        missing -= entry.give;
        left -= 1;
    }
}

/// Takes the nodes with the most room, as many as are wanted.
fn most_free(planner: &mut Planner, job: &Job, span: &Span, wanted: u32) {
    let mut missing = wanted;
    for room in (1..=planner.capacity.most).rev() {
        let here = gather(planner, span, room..=room);
        if here <= missing {
            choose_all(planner, job, span.start, span.end, room);
            missing -= here;
        } else {
            let mut list = std::mem::take(&mut planner.gang.listed);
            list.clear();
            for (word, mask) in bits::words(span.start, span.end) {
                for at in bits::each(word, planner.gang.work[word] & mask) {
                    let distance = gang::distance(planner, job, at);
                    list.push((distance, [0; 3], planner.fabric.node(at), at));
                }
            }
            choose_listed(planner, job, list, missing as usize, room);
            missing = 0;
        }
    }
}

/// Collects the nodes of a domain with that much room that are not taken; returns how many.
fn gather(planner: &mut Planner, span: &Span, room: RangeInclusive<u32>) -> u32 {
    let mut found = 0;
    for (word, mask) in bits::words(span.start, span.end) {
        let mut nodes = 0;
        for units in *room.start()..=(*room.end()).min(planner.capacity.most) {
            nodes |= planner.capacity.exactly(units)[word];
        }
        nodes &= mask & !planner.gang.taken[word];
        planner.gang.work[word] = nodes;
        found += nodes.count_ones();
    }
    found
}

fn choose_node(planner: &mut Planner, job: &Job, node: u32, give: u32) {
    if let Some(at) = planner.fabric.place(node) {
        let units = capacity::units_at(planner, job, at);
        choose(planner, job, at, units, give.min(units));
    }
}

fn choose(planner: &mut Planner, job: &Job, at: u32, units: u32, give: u32) {
    bits::set_member(&mut planner.gang.taken, at, true);
    let distance = gang::distance(planner, job, at);
    planner.gang.picked.push(Entry {
        at,
        units,
        give,
        distance,
        ..Entry::default()
    });
}

/// Chooses all collected nodes of the range for a share of `give` units.
fn choose_all(planner: &mut Planner, job: &Job, start: u32, end: u32, give: u32) {
    for (word, mask) in bits::words(start, end) {
        for at in bits::each(word, planner.gang.work[word] & mask) {
            let units = node_capacity(planner, job, at, give);
            choose(planner, job, at, units, give);
        }
    }
}

/// Chooses the first of a list.
fn choose_listed(
    planner: &mut Planner,
    job: &Job,
    mut list: Vec<Listed>,
    wanted: usize,
    give: u32,
) {
    if wanted > 0 && wanted < list.len() {
        list.select_nth_unstable(wanted - 1);
    }
    for &(_, _, _, at) in list.iter().take(wanted) {
        let units = node_capacity(planner, job, at, give);
        choose(planner, job, at, units, give);
    }
    planner.gang.listed = list;
}

/// Units that a collected node has room for.
fn node_capacity(planner: &Planner, job: &Job, at: u32, give: u32) -> u32 {
    match job.units {
        None => give,
        Some(_) => capacity::units_at(planner, job, at),
    }
}

/// Chooses `wanted` more nodes of those that have `room`, for a share of `give` units each.
fn place(
    planner: &mut Planner,
    job: &Job,
    level: usize,
    number: u32,
    wanted: u32,
    give: u32,
    room: RangeInclusive<u32>,
) {
    let span = planner.fabric.spans(level)[number as usize];
    if gather(planner, &span, room) < wanted || wanted == 0 {
        return;
    }
    capacity::rank(planner, job, give * job.unit);
    if job.rule == Rule::FirstFit {
        list(planner, job, span.start, span.end, give);
        let list = std::mem::take(&mut planner.gang.listed);
        choose_listed(planner, job, list, wanted as usize, give);
        return;
    }
    costs::keep_worthy(planner, job, &span, wanted);
    if planner.capacity.ranks(give * job.unit).rings.len() > 1 {
        keep_fast(planner, job, &span, wanted, give);
    }
    take(planner, job, level, number, wanted, give);
}

/// Leaves only the collected nodes whose ring is no worse than that of the last one wanted can
/// be.
fn keep_fast(planner: &mut Planner, job: &Job, span: &Span, wanted: u32, give: u32) {
    let ranks = planner.capacity.ranks(give * job.unit);
    let index = &planner.state.now;
    let ring_of = |slot: u32| ranks.figures[slot as usize].ring;
    let worst = if gang::uneven(planner, job) {
        let mut list = std::mem::take(&mut planner.gang.rank);
        list.clear();
        for (word, mask) in bits::words(span.start, span.end) {
            for at in bits::each(word, planner.gang.work[word] & mask) {
                let ring = ring_of(index.slot(at));
                list.push((gang::distance(planner, job, at), u32::MAX - ring));
            }
        }
        list.select_nth_unstable(wanted as usize - 1);
        let worst = list[..wanted as usize].iter().map(|&(_, rank)| rank).max();
        planner.gang.rank = list;
        u32::MAX - worst.unwrap_or(u32::MAX)
    } else {
        let mut missing = wanted;
        let mut rings = ranks.rings.iter().copied();
        rings
            .find(|&ring| {
                let with = ranks.order.iter().filter(|&&slot| ring_of(slot) == ring);
                let here: u32 = with
                    .map(|&slot| {
                        let nodes = index.nodes(slot);
                        bits::count_both(nodes, &planner.gang.work, span.start, span.end)
                    })
                    .sum();
                missing = missing.saturating_sub(here);
                missing == 0
            })
            .unwrap_or(0)
    };
    for &slot in ranks.order.iter().filter(|&&slot| ring_of(slot) < worst) {
        let nodes = index.nodes(slot);
        for (word, _) in bits::words(span.start, span.end) {
            planner.gang.work[word] &= !nodes[word];
        }
    }
}

/// Takes `wanted` of the collected nodes in a span of the level, in the order of its children.
fn take(planner: &mut Planner, job: &Job, level: usize, number: u32, wanted: u32, give: u32) {
    let span = planner.fabric.spans(level)[number as usize];
    if wanted == bits::count(&planner.gang.work, span.start, span.end) {
        choose_all(planner, job, span.start, span.end, give);
        return;
    }
    if level == 0 {
        take_best(planner, job, &span, wanted, give);
        return;
    }
    // Above the level around NVLink domains these are chosen at once.
    let flat = planner.fabric.islands && level >= 2;
    let inner = if flat { 0 } else { level - 1 };
    let children = match flat {
        true => {
            planner.fabric.cell(span.start) as u32..planner.fabric.cell(span.end - 1) as u32 + 1
        }
        false => span.children.0..span.children.1,
    };
    let mut runs = std::mem::take(&mut planner.gang.runs[inner]);
    runs.clear();
    for number in children {
        let child = planner.fabric.spans(inner)[number as usize];
        runs.push(Run {
            span: number,
            len: bits::count(&planner.gang.work, child.start, child.end),
            used: match child.domain {
                NO_DOMAIN => 0,
                _ => bits::count(&planner.gang.taken, child.start, child.end),
            },
            stray: child.domain == NO_DOMAIN,
            around: if flat { child.parent } else { 0 },
        });
    }
    let spares = some_spare(planner);
    let mut missing = wanted;
    while missing > 0 {
        // A child that holds chosen nodes already, then the smallest that suffices, then the
        // largest; nodes in no domain of that level come last.
        // Of equal ones the one around which most is chosen already, then the one that spares the job of fetching most.
        let rank = |run: &Run| {
            let suffices = run.len >= missing;
            let size = if suffices {
                run.len
            } else {
                u32::MAX - run.len
            };
            let around = match flat {
                true => planner.fabric.spans(1)[run.around as usize],
                false => span,
            };
            let beside = match flat {
                true => bits::count(&planner.gang.taken, around.start, around.end),
                false => 0,
            };
            (
                run.stray,
                u32::MAX - run.used,
                !suffices,
                size,
                u32::MAX - beside,
                match spares {
                    true => u32::MAX - spared(planner, run, inner),
                    false => 0,
                },
            )
        };
        let Some(best) = (0..runs.len())
            .filter(|&at| runs[at].len > 0)
            .min_by_key(|&at| rank(&runs[at]))
        else {
            break;
        };
        let run = runs[best];
        let part = run.len.min(missing);
        take(planner, job, inner, run.span, part, give);
        runs[best].len = 0;
        missing -= part;
    }
    planner.gang.runs[inner] = runs;
}

/// Whether some nodes spare the job of fetching something.
fn some_spare(planner: &Planner) -> bool {
    let index = &planner.state.now;
    let mut active = index.active().iter();
    active.any(|&slot| index.pattern(slot).penalty >> 12 > 0)
}

/// What the collected nodes of a child spare the job of fetching, all of them together.
fn spared(planner: &Planner, run: &Run, inner: usize) -> u32 {
    let child = planner.fabric.spans(inner)[run.span as usize];
    let (index, work) = (&planner.state.now, &planner.gang.work);
    let steps = |slot: u32| u32::from(index.pattern(slot).penalty >> 12);
    let some = index.active().iter().filter(|&&slot| steps(slot) > 0);
    some.map(|&slot| {
        steps(slot) * bits::count_both(index.nodes(slot), work, child.start, child.end)
    })
    .sum()
}

/// Takes the best of the collected nodes in a span of the narrowest level.
fn take_best(planner: &mut Planner, job: &Job, span: &Span, wanted: u32, give: u32) {
    if gang::uneven(planner, job) {
        list(planner, job, span.start, span.end, give);
        let list = std::mem::take(&mut planner.gang.listed);
        choose_listed(planner, job, list, wanted as usize, give);
        return;
    }
    let mut missing = wanted;
    let (mut at, gpus) = (0, give * job.unit);
    while missing > 0 {
        // The patterns that rank equal: among their nodes the index decides.
        let ranks = planner.capacity.ranks(gpus);
        let order = |at: usize| ranks.figures[ranks.order[at] as usize].order;
        if at >= ranks.order.len() {
            return;
        }
        let equal = (at..ranks.order.len()).take_while(|&next| order(next) == order(at));
        let end = at + equal.count();
        for (word, mask) in bits::words(span.start, span.end) {
            let group = &planner.capacity.ranks(gpus).order[at..end];
            let nodes = group
                .iter()
                .map(|&slot| planner.state.now.nodes(slot)[word]);
            let nodes = nodes.fold(0, |all, nodes| all | nodes);
            let open = planner.gang.work[word] & mask & nodes;
            for at in bits::each(word, open).take(missing as usize) {
                let units = node_capacity(planner, job, at, give);
                choose(planner, job, at, units, give);
                missing -= 1;
            }
        }
        at = end;
    }
}

/// Lists the collected nodes of a range with their ranks.
fn list(planner: &mut Planner, job: &Job, start: u32, end: u32, give: u32) {
    let mut list = std::mem::take(&mut planner.gang.listed);
    list.clear();
    let ranks = planner.capacity.ranks(give * job.unit);
    for (word, mask) in bits::words(start, end) {
        for at in bits::each(word, planner.gang.work[word] & mask) {
            let slot = planner.state.now.slot(at);
            let order = ranks.figures[slot as usize].order;
            list.push((
                gang::distance(planner, job, at),
                order,
                planner.fabric.node(at),
                at,
            ));
        }
    }
    planner.gang.listed = list;
}
