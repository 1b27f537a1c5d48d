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

use super::fabric::{FabricIndex, Span};
use super::gpus::MILLI;
use super::index::Pattern;
use super::job::{Job, Rule};
use super::links::{UNITS_PER_GBPS, nic_units};
use super::rank::{Key, Side, criterion, key, narrow, nodes_of, pick};
use super::scores::Look;
use super::state::State;
use super::types::{Choice, Criterion, NodeChoice};
use super::{Linked, Planner, bits};
use crate::gpuset::GpuSet;
use crate::model::{NO_DOMAIN, NodeType};

/// A node that has room, with its rank.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    key: Key,
    at: u32,
}

/// The node of a domain that a job outstays the least.
#[derive(Clone, Copy, Debug)]
struct Soonest {
    /// See [`Job::outstays`].
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
    field: Vec<u64>,
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

    /// Counts the wholly free candidates in every domain.
    fn count_whole(&mut self, fabric: &FabricIndex, state: &State) {
        for counts in &mut self.whole[1..] {
            counts.fill(0);
        }
        let whole = state.now.whole();
        for (cell, span) in fabric.spans(0).iter().enumerate() {
            let count = bits::count_both(whole, &state.candidates, span.start, span.end);
            self.whole[0][cell] = count;
            let mut parent = span.parent as usize;
            for level in 1..fabric.levels {
                self.whole[level][parent] += count;
                parent = fabric.spans(level)[parent].parent as usize;
            }
        }
    }

    /// The tied node of a domain that the job outstays the least, the first of several.
    fn soonest(&self, job: &Job, state: &State, span: &Span) -> Soonest {
        let mut best = Soonest {
            stay: u32::MAX,
            at: span.start,
            equal: false,
            longer: false,
        };
        for (word, mask) in bits::words(span.start, span.end) {
            for at in bits::each(word, self.tied[word] & mask) {
                let stay = job.outstays(state.until[at as usize]);
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

    /// Order of two spans of the narrowest level by their domains: fewest wholly free nodes first.
    fn by_place(&self, fabric: &FabricIndex, a: usize, b: usize) -> Ordering {
        let (mut a, mut b) = (a, b);
        for level in 0..fabric.levels {
            if a == b {
                break;
            }
            let spans = fabric.spans(level);
            let whole = |at: usize| match spans[at].domain {
                NO_DOMAIN => 0,
                _ => self.whole[level][at],
            };
            let order = whole(a).cmp(&whole(b));
            if order.is_ne() {
                return order;
            }
            (a, b) = (spans[a].parent as usize, spans[b].parent as usize);
        }
        Ordering::Equal
    }
}

impl Planner {
    /// Puts choice number `skip` on one node into `self.choice`; else takes the number of
    /// choices off `skip`. [`Planner::offers`] has been asked.
    pub(super) fn one(&mut self, job: &Job, linked: Linked, skip: &mut u32) -> bool {
        if !self.field(job) {
            return false;
        }
        let count = job.gpus_on_one() as usize;
        let found = self.found(job, count, linked);
        if *skip >= found {
            *skip -= found;
            return false;
        }
        let nth = std::mem::take(skip) as usize;
        // An affinity rule is met by taking nodes out beforehand, which wants all to be choices.
        let affinity = matches!(job.rule, Rule::Affinity | Rule::AntiAffinity);
        let few =
            found as usize <= self.state.now.active().len() || affinity && linked != Linked::Ignore;
        let best = if nth > 0 || few {
            self.rank_nodes(job, count, linked, nth)
        } else {
            self.best_of_patterns(job, count, linked)
        };
        best.is_some_and(|(at, decided)| self.settle_one(job, count, linked, at, (found, decided)))
    }

    /// Whether a job could run on one node under the assumption of [`Planner::offers`].
    pub(super) fn fits_one(&mut self, job: &Job, linked: Linked) -> bool {
        self.field(job) && self.found(job, job.gpus_on_one() as usize, linked) > 0
    }

    /// Collects the nodes with room for the whole job; false when there is none.
    fn field(&mut self, job: &Job) -> bool {
        let room = &self.room;
        let units = job.units.unwrap_or(1);
        let field = &mut self.single.field;
        field.fill(0);
        for units in units..=room.most {
            let nodes = room.exactly(units);
            field.iter_mut().zip(nodes).for_each(|(word, n)| *word |= n);
        }
        if let [first, others @ ..] = job.required {
            let only = self.fabric.place(*first).filter(|_| others.is_empty());
            let only = only.filter(|&at| bits::has(field, at));
            field.fill(0);
            if let Some(at) = only {
                bits::put(field, at, true);
            }
        }
        field.iter().any(|&word| word != 0)
    }

    /// How many nodes of the field are a choice.
    fn found(&mut self, job: &Job, count: usize, linked: Linked) -> u32 {
        let field = &self.single.field;
        if linked == Linked::Ignore {
            return bits::count_all(field);
        }
        let mut found = 0;
        let index = self.state.index(self.room.assume);
        for &slot in index.active() {
            let pattern = *index.pattern(slot);
            if let Some((_, side)) = pick(&mut self.tables, &pattern, count, job, linked) {
                let nodes = nodes_of(index, &self.fabric, slot, side);
                let here = nodes.zip(field).map(|(n, f)| (n & f).count_ones());
                found += here.sum::<u32>();
            }
        }
        found
    }

    /// The best node of the field, by way of the patterns.
    fn best_of_patterns(
        &mut self,
        job: &Job,
        count: usize,
        linked: Linked,
    ) -> Option<(u32, Criterion)> {
        let index = &self.state.now;
        let nearer = narrow(job, &self.state, &mut self.single.field);
        let Scratch {
            field, tied, best, ..
        } = &mut self.single;
        best.clear();
        let mut first = [u32::MAX; 7];
        let mut second = [u32::MAX; 7];
        for &slot in index.active() {
            let pattern = index.pattern(slot);
            let Some((pick, side)) = pick(&mut self.tables, pattern, count, job, linked) else {
                continue;
            };
            let key = key(job, pattern, &pick, 0);
            if key >= second && key != first {
                continue;
            }
            let mut nodes = nodes_of(index, &self.fabric, slot, side).zip(&*field);
            if !nodes.any(|(n, f)| n & f != 0) {
                continue;
            }
            match key.cmp(&first) {
                Ordering::Less => {
                    (first, second) = (key, first);
                    best.clear();
                    best.push((slot, side));
                }
                Ordering::Equal => best.push((slot, side)),
                Ordering::Greater => second = key,
            }
        }
        tied.fill(0);
        for &(slot, side) in &*best {
            let nodes = nodes_of(index, &self.fabric, slot, side).zip(&*field);
            for (word, (n, f)) in tied.iter_mut().zip(nodes) {
                *word |= n & f;
            }
        }
        let narrowed = job.learned && self.narrow_by_mix(job);
        let (at, decided) = self.best_of_tied(job)?;
        let decided = match decided {
            Criterion::Only if narrowed => Criterion::Mix,
            // No other node has this rank.
            Criterion::Only if second[0] != u32::MAX => criterion(job, &first, &second),
            Criterion::Only if nearer => Criterion::Affinity,
            told => told,
        };
        Some((at, decided))
    }

    /// Leaves of the tied nodes those that lose least to the mix; says whether any were taken out.
    fn narrow_by_mix(&mut self, job: &Job) -> bool {
        let Some(values) = &self.values else {
            return false;
        };
        let look = Look {
            state: &self.state,
            fabric: &self.fabric,
            type_of: &self.type_of,
            values,
        };
        self.scores
            .narrow(&look, &job.needs(), &mut self.single.tied)
    }

    /// The node of the tied ones by the fabric, the ends of the jobs there, and the index.
    fn best_of_tied(&mut self, job: &Job) -> Option<(u32, Criterion)> {
        let rule = job.rule;
        if rule != Rule::FirstFit {
            self.single.count_whole(&self.fabric, &self.state);
        }
        let (scratch, index) = (&self.single, &self.state.now);
        let broken = |&(slot, _): &(u32, Side)| !index.pattern(slot).is_whole();
        let timed = rule == Rule::Backfill && job.until > 0 && scratch.best.iter().any(broken);
        let mut best: Option<(usize, Soonest)> = None;
        // Whether there is another domain at all.
        let mut others = false;
        for (cell, span) in self.fabric.spans(0).iter().enumerate() {
            let Some(at) = bits::first(&scratch.tied, span.start, span.end) else {
                continue;
            };
            let order = best.map_or(Ordering::Less, |(known, _)| match rule {
                Rule::FirstFit => Ordering::Equal,
                Rule::Spread => scratch.by_place(&self.fabric, known, cell),
                _ => scratch.by_place(&self.fabric, cell, known),
            });
            others |= best.is_some();
            if order.is_gt() {
                continue;
            }
            let mut here = match timed {
                true => scratch.soonest(job, &self.state, span),
                false => Soonest {
                    stay: 0,
                    at,
                    // Counted for the best domain alone, at the end.
                    equal: false,
                    longer: false,
                },
            };
            if let (Ordering::Equal, Some((known, last))) = (order, best) {
                let lower = self.fabric.node(here.at) < self.fabric.node(last.at);
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
        let span = self.fabric.spans(0)[cell];
        let beside = || bits::count(&scratch.tied, span.start, span.end) > 1;
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
    fn rank_nodes(
        &mut self,
        job: &Job,
        count: usize,
        linked: Linked,
        nth: usize,
    ) -> Option<(u32, Criterion)> {
        let index = &self.state.now;
        let mut ranked = std::mem::take(&mut self.single.ranked);
        ranked.clear();
        let look = self.values.as_ref().filter(|_| job.learned);
        let look = look.map(|values| Look {
            state: &self.state,
            fabric: &self.fabric,
            type_of: &self.type_of,
            values,
        });
        let needs = job.needs();
        // Many nodes are alike: the last answer often holds for the next node too.
        let mut last = None;
        for (word, &nodes) in self.single.field.iter().enumerate() {
            for at in bits::each(word, nodes) {
                let slot = index.slot(at);
                let found = match last {
                    Some((known, found)) if known == slot => found,
                    _ => pick(&mut self.tables, index.pattern(slot), count, job, linked),
                };
                last = Some((slot, found));
                let Some((pick, side)) = found else { continue };
                if side.holds(&self.fabric, at) {
                    let distance = job.distance(self.state.node(at).affinity);
                    let mut key = key(job, index.pattern(slot), &pick, distance);
                    if let Some(look) = look {
                        key[5] = u32::from(look.step(&needs, at));
                    }
                    ranked.push(Ranked { key, at });
                }
            }
        }
        if job.rule != Rule::FirstFit {
            self.single.count_whole(&self.fabric, &self.state);
        }
        let by_place = |a: &Ranked, b: &Ranked| {
            let (a, b) = (self.fabric.cell(a.at), self.fabric.cell(b.at));
            match job.rule {
                Rule::FirstFit => Ordering::Equal,
                Rule::Spread => self.single.by_place(&self.fabric, b, a),
                _ => self.single.by_place(&self.fabric, a, b),
            }
        };
        let stay = |node: &Ranked| job.outstays(self.state.until[node.at as usize]);
        let order = |a: &Ranked, b: &Ranked| {
            let place = a.key.cmp(&b.key).then_with(|| by_place(a, b));
            let place = place.then_with(|| stay(a).cmp(&stay(b)));
            place.then_with(|| self.fabric.node(a.at).cmp(&self.fabric.node(b.at)))
        };
        let best = (nth < ranked.len()).then(|| {
            let (_, best, after) = ranked.select_nth_unstable_by(nth, order);
            let next = after.iter().min_by(|a, b| order(a, b));
            let decided = next.map_or(Criterion::Only, |next| {
                if best.key != next.key {
                    criterion(job, &best.key, &next.key)
                } else if by_place(best, next).is_ne() {
                    Criterion::Surroundings
                } else if stay(best) != stay(next) {
                    Criterion::Ends
                } else {
                    Criterion::Index
                }
            });
            (best.at, decided)
        });
        self.single.ranked = ranked;
        best
    }

    /// Makes the node the choice.
    fn settle_one(
        &mut self,
        job: &Job,
        count: usize,
        linked: Linked,
        at: u32,
        (found, decided): (u32, Criterion),
    ) -> bool {
        let state = *self.state.node(at);
        let node = self.fabric.node(at);
        let pattern = Pattern {
            free: state.free,
            ..*self.state.now.pattern(self.state.now.slot(at))
        };
        let Some((mut pick, side)) = pick(&mut self.tables, &pattern, count, job, linked) else {
            return false;
        };
        let table = &mut self.tables[pattern.type_of as usize];
        if let Some(values) = self.values.as_ref().filter(|_| job.learned) {
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
            Linked::Must(Some(level)) => (level as u32 + 2, Some(self.fabric.domain(level, node))),
            _ => (1, None),
        };
        let mut nodes = std::mem::take(&mut self.choice.nodes);
        nodes.clear();
        nodes.push(NodeChoice {
            node,
            gpus: if job.leave { GpuSet::EMPTY } else { set },
        });
        self.choice = Choice {
            nodes,
            reached,
            domain,
            bus_gbps: bus as f32 / UNITS_PER_GBPS,
            usability_lost: pick.lost as f32 / MILLI as f32,
            feasible_nodes: self.room.offered,
            feasible_domains: found,
            decided,
        };
        true
    }

    /// Bandwidth towards the network per GPU, in hundredths of GB/s; 0 = unknown.
    pub(super) fn nic(&self, node: u32, set: GpuSet) -> u32 {
        let of: &NodeType = &self.types[self.type_of[node as usize] as usize];
        nic_units(of, set)
    }
}
