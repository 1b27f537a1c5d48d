//! Jobs on several nodes: the domain, the nodes in it and their GPUs.
//!
//! The narrowest level that has a domain with room for the whole job is taken; the level `any`
//! is one domain with all nodes. Where the narrowest level is that of NVLink domains and none of
//! them has room, the wider level is taken in which the job touches the fewest of them. Among the domains of that level the best is, in this order:
//! near the named jobs (or away from them) by an affinity rule; the fewest nodes (the most, for a
//! request with a share per node and a range of nodes); the most worth of its worst node, for a job
//! that weighs that first; the highest ring of the worst node; the
//! fewest domains of the narrowest level spanned; the least penalty; the least usability lost; the
//! least room left over; the wider domain with the least room left over; the lowest domain. `pack`
//! puts the room left over before the usability, `spread` does the same with the most room,
//! `first-fit` takes the lowest domain.
//!
//! Whether a domain has room is a matter of counting bits; nodes are only chosen in domains that
//! have. Which nodes: see [`super::select`].
use gpuos_model::cluster::NO_DOMAIN;
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};

use super::fabric::{FabricIndex, Span};
use super::gpus::MILLI;
use super::job::{Job, Rule};
use super::links::UNITS_PER_GBPS;
use super::types::{Choice, Criterion, NodeChoice};
use super::{Levels, Planner, bits, capacity, leaf, rails, select, single, types};

/// A node that takes a part of the job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// Its position.
    pub at: u32,
    /// Units that it has room for.
    pub units: u32,
    /// Units that it is given.
    pub give: u32,
    /// Ring of that share.
    pub ring: u32,
    /// Usability lost by it.
    pub lost: u32,
    /// Penalty of the node.
    pub penalty: u16,
    /// Rank by the affinity rule, lower first.
    pub distance: u32,
}

/// Added to the rank of nodes to avoid; more than any rank by affinity.
const AVOID: u32 = 1 << 16;

/// Rank of a domain, lower first.
pub type Key = [u32; 11];
/// Where in it stand the number of narrowest domains and the room around the domain.
pub const TOUCHED: usize = 4;
pub const AROUND: usize = 9;

/// A domain with room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Offer {
    key: Key,
    /// Its number among the spans of the level.
    span: u32,
    /// Room that stays over in it.
    left: u32,
}

/// Lists kept between calls.
#[derive(Debug)]
pub struct Scratch {
    /// Nodes in domains that were offered at a narrower level.
    covered: Vec<u64>,
    offers: Vec<Offer>,
    /// Nodes in `picked`; nodes to avoid, and whether there are any.
    pub taken: Vec<u64>,
    avoid: Vec<u64>,
    pub avoiding: bool,
    /// Nodes of the domain at hand that are in question, and those of them with their ranks.
    pub work: Vec<u64>,
    pub listed: Vec<select::Listed>,
    pub rank: Vec<(u32, u32)>,
    /// The nodes chosen in it.
    pub picked: Vec<Entry>,
    /// By level: children of a domain while nodes are chosen in it.
    pub runs: Vec<Vec<select::Run>>,
    /// By span of the narrowest level: the call that counted it last.
    seen: Vec<u32>,
    stamp: u32,
    /// The domain that `picked` was chosen in last, by level and number.
    pub last: Option<(usize, u32)>,
    /// The domain whose room was counted last while the level at hand is looked through, and that.
    around: Option<(u32, u32)>,
}

impl Scratch {
    pub fn new(fabric: &FabricIndex) -> Scratch {
        let nodes = fabric.len() as usize;
        let most = (0..=fabric.levels).map(|level| fabric.spans(level).len());
        Scratch {
            covered: vec![0; fabric.words],
            offers: Vec::with_capacity(most.max().unwrap_or(0)),
            taken: vec![0; fabric.words],
            avoid: vec![0; fabric.words],
            avoiding: false,
            work: vec![0; fabric.words],
            listed: Vec::with_capacity(nodes),
            rank: Vec::with_capacity(nodes),
            picked: Vec::with_capacity(nodes),
            runs: (0..fabric.levels)
                .map(|level| Vec::with_capacity(fabric.spans(level).len()))
                .collect(),
            seen: vec![0; fabric.spans(0).len()],
            stamp: 0,
            last: None,
            around: None,
        }
    }
}

/// What the nodes chosen in a domain come to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    pub nodes: u32,
    /// The ring of the worst one.
    pub ring: u32,
    /// Domains of the narrowest level that they are in.
    pub spanned: u32,
    pub distance: u32,
    /// Usability lost.
    pub lost: u32,
    /// The most that a node costs, where that counts first.
    pub cost: u32,
    /// The parts of the penalties, each summed up.
    pub rules: u32,
    pub costs: u32,
    pub fetches: u32,
}

impl Sums {
    /// Adds nodes with that ring that lose so much.
    pub fn add(&mut self, ring: u32, lost: u32) {
        self.ring = self.ring.min(ring);
        self.lost = self.lost.saturating_add(lost);
    }

    /// Adds what speaks against so many nodes ([`types::against`]).
    pub fn speak_against(&mut self, one: u32, nodes: u32) {
        let [rules, costs, fetches] = types::parts(one);
        self.rules += rules * nodes;
        self.costs += costs * nodes;
        self.fetches += fetches * nodes;
    }
}

/// What a domain has, counted.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// Nodes with room, those that must be part included.
    pub nodes: u32,
    /// Units of room, and of it that of the nodes that must be part.
    pub capacity: u32,
    pub held: u32,
    /// By units: how many nodes that need not be part have room for exactly so many.
    pub by_capacity: [u32; MAX_GPUS + 1],
}

impl Default for Count {
    fn default() -> Count {
        Count {
            nodes: 0,
            capacity: 0,
            held: 0,
            by_capacity: [0; MAX_GPUS + 1],
        }
    }
}

/// Puts choice number `skip` on domains of the stage's levels into `planner.choice`; else
/// takes the number of choices off `skip`. After the domains of a level come those with room
/// left over once more, with other nodes. Domains that contain one with room at a level asked
/// before give nothing new and are left out, also across calls with ascending levels.
/// [`super::capacity::offers`] has been asked.
#[cold]
#[inline(never)]
pub(super) fn gang(planner: &mut Planner, job: &Job, levels: Levels, skip: &mut u32) -> bool {
    if levels.from == 0 {
        planner.gang.covered.fill(0);
    }
    if !fits_gang(planner, job, levels.to, levels.within) {
        return false;
    }
    planner.gang.avoiding = false;
    let mut closest = true;
    for level in levels.from..=levels.to {
        if !wide_enough(planner, job, level) {
            continue;
        }
        find_domains(planner, job, level);
        if closest && !planner.gang.offers.is_empty() {
            closest = false;
            if let Some(wider) = fewer_islands(planner, job, level, levels) {
                if nth_offer(planner, job, wider, skip) {
                    return true;
                }
                find_domains(planner, job, level);
            }
        }
        for at in 0..planner.gang.offers.len() {
            let span = planner.fabric.spans(level)[planner.gang.offers[at].span as usize];
            for (word, mask) in bits::words(span.start, span.end) {
                planner.gang.covered[word] |= mask;
            }
        }
        if nth_offer(planner, job, level, skip) {
            return true;
        }
    }
    false
}

/// The wider level, not wider than the job asked for, in which it touches fewer NVLink domains
/// than in the closest one, and its domains in place of those of that level; else leaves
/// these as they are. A gang cut into many NVLink domains is slow inside, and leaves that
/// many broken for those that come after.
fn fewer_islands(planner: &mut Planner, job: &Job, level: usize, levels: Levels) -> Option<usize> {
    let most = match levels.wished {
        wished if wished < level => levels.to,
        wished => wished.min(levels.to),
    };
    if !planner.fabric.islands || level == 0 || job.rule == Rule::FirstFit {
        return None;
    }
    let touched = |offers: &[Offer]| offers.iter().min().map(|best| best.key[TOUCHED]);
    let mut least = touched(&planner.gang.offers)?;
    let mut found = None;
    for wider in level + 1..=most {
        find_domains(planner, job, wider);
        let here = touched(&planner.gang.offers).filter(|here| *here < least);
        if let Some(here) = here {
            (least, found) = (here, Some(wider));
        }
    }
    if most > level && found != Some(most) {
        find_domains(planner, job, found.unwrap_or(level));
    }
    found
}

/// Makes number `skip` of the offers of a level the choice, or takes their number off `skip`.
fn nth_offer(planner: &mut Planner, job: &Job, level: usize, skip: &mut u32) -> bool {
    let found = planner.gang.offers.len() as u32;
    for again in [false, true] {
        if again {
            planner.gang.offers.retain(|offer| offer.left > 0);
        }
        let count = planner.gang.offers.len() as u32;
        if *skip >= count {
            *skip -= count;
            continue;
        }
        let nth = *skip as usize;
        let (_, best, after) = planner.gang.offers.select_nth_unstable(nth);
        let (best, next) = (*best, after.iter().min());
        let decided = next.map_or(Criterion::Only, |next| {
            criterion(job.rule, &best.key, &next.key)
        });
        if planner.gang.last != Some((level, best.span)) {
            select::select(planner, job, level, best.span);
        }
        if again {
            avoid_picked(planner, job, level, best.span);
        }
        finish_choice(planner, job, found, decided);
        return true;
    }
    false
}

/// Whether a domain of the level has room for the whole job; with `within`, nodes in no domain
/// of that level are left out of this and what follows. Where a wider level has no room, no
/// narrower one has.
pub(super) fn fits_gang(
    planner: &mut Planner,
    job: &Job,
    to: usize,
    within: Option<usize>,
) -> bool {
    if let Some(level) = within {
        capacity::confine(planner, level);
    }
    let spans = planner.fabric.spans(to).iter();
    spans
        .filter(|span| span.domain != NO_DOMAIN)
        .any(|span| remaining_capacity(planner, job, span).is_some())
}

/// Whether the largest domain of the level would have room for the job if all its nodes were free.
pub(super) fn wide_enough(planner: &Planner, job: &Job, level: usize) -> bool {
    let nodes = planner.fabric.widest(level);
    nodes >= job.min
        && job
            .units
            .is_none_or(|units| nodes * planner.capacity.most >= units)
}

/// Collects the domains of a level that have room and are not covered yet.
fn find_domains(planner: &mut Planner, job: &Job, level: usize) {
    planner.gang.offers.clear();
    planner.gang.around = None;
    // What was chosen last may be of another decision: not every domain is chosen in here.
    planner.gang.last = None;
    for at in 0..planner.fabric.spans(level).len() as u32 {
        let span = planner.fabric.spans(level)[at as usize];
        let covered = || {
            bits::meet(
                &planner.gang.covered,
                &planner.capacity.fit,
                span.start,
                span.end,
            )
        };
        if span.domain == NO_DOMAIN || covered() {
            continue;
        }
        if let Some(left) = remaining_capacity(planner, job, &span) {
            let sums = leaf::sums_of_leaf(planner, job, level, &span).unwrap_or_else(|| {
                select::select(planner, job, level, at);
                sums(planner, job)
            });
            let outer = around(planner, level, &span);
            let key = key(job, &span, left, &sums, outer);
            let offer = Offer {
                key,
                span: at,
                left,
            };
            planner.gang.offers.push(offer);
        }
    }
}

/// Chooses again in the domain, with as few of the nodes in `picked` as possible.
fn avoid_picked(planner: &mut Planner, job: &Job, level: usize, span: u32) {
    planner.gang.avoiding = true;
    planner.gang.avoid.copy_from_slice(&planner.gang.taken);
    select::select(planner, job, level, span);
}

/// Whether nodes differ by more than their pattern.
pub(super) fn uneven(planner: &Planner, job: &Job) -> bool {
    planner.gang.avoiding || matches!(job.rule, Rule::Affinity | Rule::AntiAffinity)
}

/// Rank of the node at a position before all else, lower first.
pub(super) fn distance(planner: &Planner, job: &Job, at: u32) -> u32 {
    let avoid = planner.gang.avoiding && bits::has(&planner.gang.avoid, at);
    job.distance(planner.state.node(at).affinity) + if avoid { AVOID } else { 0 }
}

/// Counts what a domain has; `None` when a node that must be part offers nothing there.
pub(super) fn count(planner: &Planner, job: &Job, span: &Span) -> Option<Count> {
    let mut count = Count::default();
    for units in 1..=planner.capacity.most {
        let nodes = bits::count(planner.capacity.exactly(units), span.start, span.end);
        count.by_capacity[units as usize] = nodes;
        count.nodes += nodes;
        count.capacity += nodes * units;
    }
    for &node in job.required {
        let at = planner.fabric.place(node)?;
        if at < span.start || at >= span.end || !bits::has(&planner.capacity.fit, at) {
            return None;
        }
        let units = capacity::units_at(planner, job, at);
        count.by_capacity[units as usize] -= 1;
        count.held += units;
    }
    Some(count)
}

/// How much room stays over in a domain (nodes, or units), or `None` when the job does not
/// fit into it.
pub(super) fn remaining_capacity(planner: &Planner, job: &Job, span: &Span) -> Option<u32> {
    let Some(units) = job.units else {
        if job.required.is_empty() {
            let nodes = bits::count(&planner.capacity.fit, span.start, span.end);
            return (nodes >= job.min).then(|| nodes - job.wanted(nodes));
        }
        let nodes = count(planner, job, span)?.nodes;
        return (nodes >= job.min).then(|| nodes - job.wanted(nodes));
    };
    // Most domains of a full cluster are told by this alone.
    let nodes = bits::count(&planner.capacity.fit, span.start, span.end);
    if nodes < job.min || nodes * planner.capacity.most < units {
        return None;
    }
    let count = count(planner, job, span)?;
    job.sharing(&count, units)?;
    Some(count.capacity - units)
}

/// What the nodes in `picked` come to.
pub(super) fn sums(planner: &mut Planner, job: &Job) -> Sums {
    let scratch = &mut planner.gang;
    scratch.stamp = scratch.stamp.wrapping_add(1);
    let mut sums = Sums {
        nodes: scratch.picked.len() as u32,
        ring: u32::MAX,
        ..Sums::default()
    };
    for entry in &scratch.picked {
        sums.distance = sums.distance.saturating_add(entry.distance);
        sums.speak_against(types::against(entry.penalty).into(), 1);
        sums.cost = sums.cost.max(job.cost(entry.penalty));
        sums.add(entry.ring, entry.lost);
        let cell = planner.fabric.cell(entry.at);
        let stray = planner.fabric.spans(0)[cell].domain == NO_DOMAIN;
        if stray || scratch.seen[cell] != scratch.stamp {
            scratch.seen[cell] = scratch.stamp;
            sums.spanned += 1;
        }
    }
    sums
}

/// Units of room in the domain around one.
fn around(planner: &mut Planner, level: usize, span: &Span) -> u32 {
    if level == planner.fabric.levels {
        return 0;
    }
    match planner.gang.around {
        Some((parent, units)) if parent == span.parent => units,
        _ => {
            let outer = planner.fabric.spans(level + 1)[span.parent as usize];
            let units = match outer.domain {
                NO_DOMAIN => 0,
                _ => capacity::units_within(planner, outer.start, outer.end),
            };
            planner.gang.around = Some((span.parent, units));
            units
        }
    }
}

/// Turns `picked` into the choice.
pub(super) fn finish_choice(planner: &mut Planner, job: &Job, found: u32, decided: Criterion) {
    let mut nodes = std::mem::take(&mut planner.choice.nodes);
    nodes.clear();
    let mut lost = 0;
    let mut bus = u32::MAX;
    let mut nic = u32::MAX;
    let aligned = rails::aligned(planner, job);
    // Most nodes give the same GPUs of the same type as the one before.
    let mut known = None;
    for at in 0..planner.gang.picked.len() {
        let entry = planner.gang.picked[at];
        let node = planner.fabric.node(entry.at);
        let own = capacity::price(planner, job, entry.at, entry.give * job.unit);
        let pick = rails::align(planner, job, entry.at, own, aligned);
        let (mut set, mut ring) = (pick.set, pick.ring);
        if job.whole {
            set = planner.state.now.free(entry.at);
            ring = planner.tables[planner.type_of[node as usize] as usize].ring(set);
        }
        lost += pick.lost;
        if set.len() > 1 {
            bus = bus.min(ring);
        }
        let same = (planner.type_of[node as usize], set);
        if known != Some(same) {
            known = Some(same);
            nic = nic.min(single::nic(planner, node, set));
        }
        nodes.push(NodeChoice {
            node,
            gpus: if job.leave { GpuSet::EMPTY } else { set },
        });
    }
    nodes.sort_unstable_by_key(|choice| choice.node);
    let (level, domain) = planner
        .fabric
        .common(nodes.iter().map(|choice| choice.node));
    let mut reached = level as u32 + 2;
    let mut domain = domain;
    if nodes.len() == 1 {
        (reached, domain) = (1, None);
    } else {
        let known = planner
            .cluster
            .fabric
            .levels
            .get(level)
            .map_or(0.0, |l| l.gbps);
        let link = if known > 0.0 {
            (known * UNITS_PER_GBPS) as u32
        } else {
            nic
        };
        if link > 0 {
            bus = bus.min(link);
        }
    }
    planner.choice = Choice {
        nodes,
        reached,
        domain,
        bus_gbps: if bus == u32::MAX {
            0.0
        } else {
            bus as f32 / UNITS_PER_GBPS
        },
        usability_lost: lost as f32 / MILLI as f32,
        feasible_nodes: planner.capacity.offered,
        feasible_domains: found,
        decided,
    };
}

/// Ranks a domain by the nodes that are chosen in it; `outer` = room in the domain around it.
pub fn key(job: &Job, span: &Span, left: u32, sums: &Sums, outer: u32) -> Key {
    if job.rule == Rule::FirstFit {
        return [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, span.domain];
    }
    let lost = sums.lost;
    let outer = outermost(job.rule, outer);
    let [first, second] = match job.rule {
        Rule::Pack => [left, lost],
        Rule::Spread => [u32::MAX - left, lost],
        _ => [lost, left],
    };
    [
        // Mean, so that more nodes do not count as farther away.
        sums.distance / sums.nodes.max(1),
        if job.units.is_some() {
            sums.nodes
        } else {
            u32::MAX - sums.nodes
        },
        sums.cost,
        u32::MAX - sums.ring,
        sums.spanned,
        // In one number, so that no sum of costs outweighs a rule.
        sums.rules.min(0xffff) << 16 | sums.costs.min(0xffff),
        sums.fetches,
        first,
        second,
        outer,
        span.domain,
    ]
}

/// The room around a domain as a part of its rank.
pub fn outermost(rule: Rule, outer: u32) -> u32 {
    match rule {
        Rule::FirstFit => 0,
        Rule::Spread => u32::MAX - outer,
        _ => outer,
    }
}

/// What tells two domains apart.
pub fn criterion(rule: Rule, a: &Key, b: &Key) -> Criterion {
    let full = matches!(rule, Rule::Pack | Rule::Spread);
    match a.iter().zip(b).position(|(a, b)| a != b) {
        Some(0) => Criterion::Affinity,
        Some(1) => Criterion::Nodes,
        Some(2) => Criterion::Cost,
        Some(3) => Criterion::Bandwidth,
        Some(4) => Criterion::Compactness,
        Some(5) if a[5] >> 16 == b[5] >> 16 => Criterion::Cost,
        Some(5) => Criterion::Penalty,
        Some(6) => Criterion::Fetch,
        Some(7) if full => Criterion::Fit,
        Some(7) => Criterion::Usability,
        Some(8) if full => Criterion::Usability,
        Some(8) => Criterion::Fit,
        Some(9) => Criterion::Surroundings,
        _ => Criterion::Index,
    }
}
