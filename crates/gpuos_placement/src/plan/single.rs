//! Jobs on one node: the node and its GPUs together.
//!
//! The best place is, in this order: near the named jobs (or away from them) by an affinity rule;
//! the most worth, for a job that weighs that first; the GPU set with the highest ring, then total
//! bandwidth; the least penalty; the least usability lost; the fullest node; in the fabric, the
//! domain with the fewest nodes that are wholly free, from the narrowest level to the widest, so
//! that whole leaves stay free; for `backfill`, the node on which the other jobs last as long; the
//! lowest node index.
//! `pack` puts the fullest node before the usability, `spread` the emptiest, and turns the order of
//! domains round; `first-fit` looks at the index alone.
//!
//! The best pattern is found first, then the node among those of it: so the work grows with the
//! patterns and the domains. Only a further choice, or one among a handful of nodes, looks at the
//! nodes one by one.
use std::cmp::Ordering;

use gpuos_model::cluster::NodeType;
use gpuos_model::gpuset::GpuSet;

use super::fabric::FabricIndex;
use super::gpus::MILLI;
use super::index::Pattern;
use super::job::{Job, Rule};
use super::links::{UNITS_PER_GBPS, nic_units};
use super::pattern_figures::{self, fill};
use super::rank::{Key, Side, criterion, key, narrow, nodes_of, pick, wished};
use super::scores::NodeFigures;
use super::state::State;
use super::types::{Choice, Criterion, NodeChoice};
use super::{Linked, Planner, bits, cache_single, field};

/// A node that has room, with its rank.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    key: Key,
    at: u32,
}

/// The node of a domain that a job outstays the least.
#[derive(Clone, Copy, Debug)]
struct Soonest {
    /// See [`Job::overrun_steps`].
    stay: u32,
    at: u32,
    /// Whether it does so on another node too, and whether it outstays a third one by more.
    equal: bool,
    longer: bool,
}

/// Lists kept between calls.
#[derive(Debug)]
pub struct Scratch {
    /// Nodes with room for the whole job, and those of them that are best so far.
    pub field: Vec<u64>,
    tied: Vec<u64>,
    ranked: Vec<Ranked>,
    /// Patterns with the best rank.
    best: Vec<(u32, Side)>,
    /// By level and span: nodes that are wholly free.
    whole: Vec<Vec<u32>>,
}

impl Scratch {
    pub fn new(fabric: &FabricIndex) -> Scratch {
        let spans = (0..=fabric.levels).map(|level| vec![0; fabric.spans(level).len()]);
        Scratch {
            field: vec![0; fabric.words],
            tied: vec![0; fabric.words],
            ranked: Vec::with_capacity(fabric.len() as usize),
            best: Vec::new(),
            whole: spans.collect(),
        }
    }

    /// Makes room for so many patterns.
    pub fn reserve(&mut self, slots: usize) {
        self.best.reserve(slots.saturating_sub(self.best.len()));
    }

    /// Counts the wholly free candidates in every domain: those on offer, less those left out.
    #[cold]
    fn count_whole(&mut self, fabric: &FabricIndex, state: &State) {
        for (counts, all) in self.whole.iter_mut().zip(state.whole()) {
            counts.copy_from_slice(all);
        }
        for word in 0..fabric.words {
            let mut out = state.excluded_free(word);
            while out != 0 {
                let at = word as u32 * 64 + out.trailing_zeros();
                let end = fabric.ends()[fabric.cell(at)] - word as u32 * 64;
                let here = if end < 64 { (1 << end) - 1 } else { u64::MAX };
                let count = (out & here).count_ones();
                fabric.around(at, |level, span| self.whole[level][span] -= count);
                out &= !here;
            }
        }
    }

    /// The tied node of a domain that the job outstays the least, the first of several.
    fn soonest(&self, job: &Job, state: &State, start: u32, end: u32) -> Soonest {
        let mut best = Soonest {
            stay: u32::MAX,
            at: start,
            equal: false,
            longer: false,
        };
        for (word, mask) in bits::words(start, end) {
            for at in bits::each(word, self.tied[word] & mask) {
                let stay = job.overrun_steps(state.until[at as usize]);
                if stay < best.stay {
                    best.longer = best.stay != u32::MAX;
                    (best.stay, best.at, best.equal) = (stay, at, false);
                } else {
                    best.equal |= stay == best.stay;
                    best.longer |= stay > best.stay;
                }
            }
        }
        best
    }
}

/// Order of two spans of the narrowest level by their domains: fewest wholly free nodes first.
pub fn by_place(fabric: &FabricIndex, whole: &[Vec<u32>], a: usize, b: usize) -> Ordering {
    let (mut a, mut b) = (a, b);
    for (level, whole) in whole.iter().enumerate().take(fabric.levels) {
        if a == b {
            break;
        }
        let order = whole[a].cmp(&whole[b]);
        if order.is_ne() {
            return order;
        }
        (a, b) = (fabric.parent(level, a), fabric.parent(level, b));
    }
    Ordering::Equal
}

/// Puts choice number `skip` on one node into `planner.choice`; else takes the number of
/// choices off `skip`.
pub(super) fn one(planner: &mut Planner, job: &Job, linked: Linked, skip: &mut u32) -> bool {
    if planner.decision_cache.is_some()
        && *skip == 0
        && let Some(done) = cache_single::single_cached(planner, job, linked)
    {
        return done;
    }
    let mut found = field::field_now(planner, job);
    let count = job.gpus_on_one() as usize;
    if linked != Linked::Ignore && found > 0 {
        found = field::found(planner, job, count, linked);
    }
    if *skip >= found {
        *skip -= found;
        return false;
    }
    let nth = std::mem::take(skip) as usize;
    // An affinity rule is met by taking nodes out beforehand, which wants all to be choices.
    let affinity = matches!(job.rule, Rule::Affinity | Rule::AntiAffinity);
    let few = found as usize <= planner.state.now.active().len();
    let best = if nth > 0 || linked != Linked::Ignore && (few || affinity) {
        rank_nodes(planner, job, count, linked, nth)
    } else {
        best_of_patterns(planner, job, count, linked, few)
    };
    best.is_some_and(|(at, decided)| set_choice(planner, job, count, linked, at, (found, decided)))
}

/// The best node of the field, by way of the patterns; `few` when there are fewer nodes than
/// patterns.
fn best_of_patterns(
    planner: &mut Planner,
    job: &Job,
    count: usize,
    linked: Linked,
    few: bool,
) -> Option<(u32, Criterion)> {
    let nearer = matches!(job.rule, Rule::Affinity | Rule::AntiAffinity)
        && narrow(job, &planner.state, &mut planner.single.field);
    let Scratch {
        field, tied, best, ..
    } = &mut planner.single;
    let (index, tables) = (&planner.state.now, &mut planner.tables);
    let known = planner.figures.of(count, job.worth);
    best.clear();
    let mut first = u128::MAX;
    let mut second = u128::MAX;
    let mut consider = |slot: u32, has_nodes: bool| {
        let (figures, side) = if linked == Linked::Ignore && !job.whole {
            let known = &mut known[slot as usize];
            if known.free == 0 {
                let pattern = index.pattern(slot);
                let table = &mut tables[pattern.type_of as usize];
                *known = fill(table, pattern, count, job.worth);
            }
            (*known, Side::All)
        } else {
            match wished(tables, index.pattern(slot), count, job, linked) {
                Some(found) => found,
                None => return,
            }
        };
        if usize::from(figures.free) < count {
            return;
        }
        let rank = figures.rank(job);
        if rank >= second && rank != first {
            return;
        }
        if !has_nodes {
            let mut nodes = nodes_of(index, &planner.fabric, slot, side).zip(&*field);
            if !nodes.any(|(n, f)| n & f != 0) {
                return;
            }
        }
        match rank.cmp(&first) {
            Ordering::Less => {
                (first, second) = (rank, first);
                best.clear();
                best.push((slot, side));
            }
            // With few nodes a pattern comes up once for each of its nodes.
            Ordering::Equal if has_nodes && best.contains(&(slot, side)) => {}
            Ordering::Equal => best.push((slot, side)),
            Ordering::Greater => second = rank,
        }
    };
    if few {
        for (word, &nodes) in field.iter().enumerate() {
            bits::each(word, nodes).for_each(|at| consider(index.slot(at), true));
        }
    } else {
        index
            .active()
            .iter()
            .for_each(|&slot| consider(slot, false));
    }
    tied.fill(0);
    for &(slot, side) in &*best {
        let nodes = nodes_of(index, &planner.fabric, slot, side).zip(&*field);
        for (word, (n, f)) in tied.iter_mut().zip(nodes) {
            *word |= n & f;
        }
    }
    let narrowed = job.learned && narrow_by_mix(planner, job);
    let (at, decided) = best_of_tied(planner, job)?;
    let decided = match decided {
        Criterion::Only if narrowed => Criterion::Mix,
        // No other node has this rank.
        Criterion::Only if second != u128::MAX => pattern_figures::criterion(job, first, second),
        Criterion::Only if nearer => Criterion::Affinity,
        told => told,
    };
    Some((at, decided))
}

/// Leaves of the tied nodes those that lose least to the mix; says whether any were taken out.
#[inline(never)]
fn narrow_by_mix(planner: &mut Planner, job: &Job) -> bool {
    let Some(values) = &planner.values else {
        return false;
    };
    let needs = job.needs();
    let surcharge = planner.supplies.surcharge(&values.preferences, &needs);
    let look = NodeFigures {
        state: &planner.state,
        fabric: &planner.fabric,
        type_of: &planner.type_of,
        values,
        surcharge: surcharge.as_ref(),
    };
    planner
        .scores
        .narrow(&look, &needs, &mut planner.single.tied)
}

/// The node of the tied ones by the fabric, the ends of the jobs there, and the index.
fn best_of_tied(planner: &mut Planner, job: &Job) -> Option<(u32, Criterion)> {
    let rule = job.rule;
    let kept = rule == Rule::FirstFit || planner.state.keeps_all_free_nodes();
    if !kept {
        planner.single.count_whole(&planner.fabric, &planner.state);
    }
    let (scratch, index, fabric) = (&planner.single, &planner.state.now, &planner.fabric);
    let whole = match kept {
        true => planner.state.whole(),
        false => &scratch.whole,
    };
    let broken = |&(slot, _): &(u32, Side)| !index.pattern(slot).is_whole();
    let timed = rule == Rule::Backfill && job.until > 0 && scratch.best.iter().any(broken);
    let mut best: Option<(usize, Soonest)> = None;
    // Whether there is another domain at all.
    let mut others = false;
    let ends = fabric.ends();
    let (mut cell, mut next) = (0, bits::next(&scratch.tied, 0));
    while let Some(at) = next {
        while ends[cell] <= at {
            cell += 1;
        }
        let end = ends[cell];
        next = bits::next(&scratch.tied, end);
        let order = match (best, rule) {
            (None, _) => Ordering::Less,
            (_, Rule::FirstFit) => Ordering::Equal,
            (Some((known, _)), Rule::Spread) => by_place(fabric, whole, known, cell),
            (Some((known, _)), _) => by_place(fabric, whole, cell, known),
        };
        others |= best.is_some();
        if order.is_gt() {
            continue;
        }
        let mut here = match timed {
            true => scratch.soonest(job, &planner.state, at, end),
            false => Soonest {
                stay: 0,
                at,
                // Counted for the best domain alone, at the end.
                equal: false,
                longer: false,
            },
        };
        if let (Ordering::Equal, Some((known, last))) = (order, best) {
            let lower = fabric.is_before(here.at, last.at);
            let alike = here.stay == last.stay;
            let cell = if here.stay < last.stay || alike && lower {
                cell
            } else {
                known
            };
            let longer = here.longer || last.longer || !alike;
            if cell == known {
                here = last;
            }
            here.equal |= alike;
            here.longer = longer;
            best = Some((cell, here));
        } else {
            best = Some((cell, here));
        }
    }
    let (cell, best) = best?;
    let beside = || bits::next(&scratch.tied, best.at + 1).is_some_and(|at| at < ends[cell]);
    let equal = best.equal || !timed && beside();
    let decided = match (equal, best.longer) {
        (true, _) => Criterion::Index,
        (false, true) => Criterion::Ends,
        (false, false) if others => Criterion::Surroundings,
        (false, false) => Criterion::Only,
    };
    Some((best.at, decided))
}

/// Choice number `nth` among the nodes of the field, one by one.
#[cold]
#[inline(never)]
fn rank_nodes(
    planner: &mut Planner,
    job: &Job,
    count: usize,
    linked: Linked,
    nth: usize,
) -> Option<(u32, Criterion)> {
    let index = &planner.state.now;
    let mut ranked = std::mem::take(&mut planner.single.ranked);
    ranked.clear();
    let look = planner.values.as_ref().filter(|_| job.learned);
    let needs = job.needs();
    let surcharge = look.and_then(|v| planner.supplies.surcharge(&v.preferences, &needs));
    let look = look.map(|values| NodeFigures {
        state: &planner.state,
        fabric: &planner.fabric,
        type_of: &planner.type_of,
        values,
        surcharge: surcharge.as_ref(),
    });
    // Many nodes are alike: the last answer often holds for the next node too.
    let mut last = None;
    for (word, &nodes) in planner.single.field.iter().enumerate() {
        for at in bits::each(word, nodes) {
            let slot = index.slot(at);
            let found = match last {
                Some((known, found)) if known == slot => found,
                _ => pick(&mut planner.tables, index.pattern(slot), count, job, linked),
            };
            last = Some((slot, found));
            let Some((pick, side)) = found else { continue };
            if side.holds(&planner.fabric, at) {
                let distance = job.distance(planner.state.node(at).affinity);
                let mut key = key(job, index.pattern(slot), &pick, distance);
                if let Some(look) = look {
                    key[5] = look.cost(&needs, at);
                }
                ranked.push(Ranked { key, at });
            }
        }
    }
    planner.single.count_whole(&planner.fabric, &planner.state);
    let place = |a: &Ranked, b: &Ranked| {
        let (a, b) = (planner.fabric.cell(a.at), planner.fabric.cell(b.at));
        match job.rule {
            Rule::FirstFit => Ordering::Equal,
            Rule::Spread => by_place(&planner.fabric, &planner.single.whole, b, a),
            _ => by_place(&planner.fabric, &planner.single.whole, a, b),
        }
    };
    let stay = |node: &Ranked| job.overrun_steps(planner.state.until[node.at as usize]);
    let order = |a: &Ranked, b: &Ranked| {
        let place = a.key.cmp(&b.key).then_with(|| place(a, b));
        let place = place.then_with(|| stay(a).cmp(&stay(b)));
        place.then_with(|| planner.fabric.node(a.at).cmp(&planner.fabric.node(b.at)))
    };
    let best = (nth < ranked.len()).then(|| {
        let (_, best, after) = ranked.select_nth_unstable_by(nth, order);
        let next = after.iter().min_by(|a, b| order(a, b));
        let decided = next.map_or(Criterion::Only, |next| {
            if best.key != next.key {
                criterion(job, &best.key, &next.key)
            } else if place(best, next).is_ne() {
                Criterion::Surroundings
            } else if stay(best) != stay(next) {
                Criterion::Ends
            } else {
                Criterion::Index
            }
        });
        (best.at, decided)
    });
    planner.single.ranked = ranked;
    best
}

/// Makes the node the choice.
pub(super) fn set_choice(
    planner: &mut Planner,
    job: &Job,
    count: usize,
    linked: Linked,
    at: u32,
    (found, decided): (u32, Criterion),
) -> bool {
    let state = *planner.state.node(at);
    let node = planner.fabric.node(at);
    let pattern = Pattern {
        free: state.free,
        ..*planner.state.now.pattern(planner.state.now.slot(at))
    };
    let slot = planner.state.now.slot(at);
    let known = planner.figures.of(count, job.worth)[slot as usize];
    let plain = linked == Linked::Ignore && !job.whole && known.free > 0;
    let (mut pick, side) = if plain {
        // All but the set itself is the same as that of the pattern.
        let table = &mut planner.tables[pattern.type_of as usize];
        let set = match job.learned {
            true => None,
            false => table.best_set(state.free, count, false, job.worth),
        };
        (known.of(set.unwrap_or_default()), Side::All)
    } else {
        match pick(&mut planner.tables, &pattern, count, job, linked) {
            Some(found) => found,
            None => return false,
        }
    };
    let table = &mut planner.tables[pattern.type_of as usize];
    if let Some(values) = planner.values.as_ref().filter(|_| job.learned) {
        let (has, needs) = ((state.free_cpus, state.free_memory_mib), job.needs());
        let of_linked = matches!(linked, Linked::Must(_)) && side == Side::All && !job.leave;
        let chosen = values.choose(table, pattern.type_of, state.free, has, &needs, of_linked);
        pick.set = chosen.unwrap_or(pick.set);
        pick.lost = values.lost(pattern.type_of, state.free, has, &needs);
    }
    let table = &*table;
    let (set, bus) = match job.whole {
        true => (state.free, table.ring(state.free)),
        false => (pick.set, pick.ring),
    };
    // Where the scheduler chooses the GPUs, any may be taken.
    let joined = table.linked(if job.leave { state.present } else { set });
    let must = matches!(linked, Linked::Must(_));
    let (reached, domain) = match linked {
        _ if joined && (set.len() > 1 || must) => (0, None),
        // Joined by the fabric's NVLink domain, though not by the matrix of the node.
        Linked::Must(Some(level)) => (level as u32 + 2, Some(planner.fabric.domain(level, node))),
        _ => (1, None),
    };
    let mut nodes = std::mem::take(&mut planner.choice.nodes);
    nodes.clear();
    nodes.push(NodeChoice {
        node,
        gpus: if job.leave { GpuSet::EMPTY } else { set },
    });
    planner.choice = Choice {
        nodes,
        reached,
        domain,
        bus_gbps: bus as f32 / UNITS_PER_GBPS,
        usability_lost: pick.lost as f32 / MILLI as f32,
        feasible_nodes: planner.capacity.offered,
        feasible_domains: found,
        decided,
    };
    true
}

/// Bandwidth towards the network per GPU, in hundredths of GB/s; 0 = unknown.
pub(super) fn nic(planner: &Planner, node: u32, set: GpuSet) -> u32 {
    let of: &NodeType = &planner.types[planner.type_of[node as usize] as usize];
    nic_units(of, set)
}
