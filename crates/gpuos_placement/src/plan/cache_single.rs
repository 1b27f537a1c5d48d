//! Jobs on one node by what is kept: the best node of every group and domain.
//!
//! The order is that of [`super::single`]: the rank of the pattern (and what the node loses to the mix),
//! then the domains from the narrowest level to the widest, then the index. Two nodes under a knot are
//! in the same domains above it, so they are compared by the domains below it alone.
use std::cmp::Ordering;

use super::cache::{DecisionCache, Ranks, changed};
use super::fabric::FabricIndex;
use super::field::FittingNodes;
use super::gpus::GpuTable;
use super::index::Index;
use super::job::{Assume, Job, Rule};
use super::pattern_figures::{self, Figures, fill};
use super::scores::NodeFigures;
use super::single::by_place;
use super::state::State;
use super::tree::TreeNode;
use super::types::Criterion;
use super::values::Needs;
use super::{Linked, Planner, bits, single};

/// No rank: no node.
const NONE: u128 = u128::MAX;
/// The bits of a rank that the mix has, where it counts.
const MIX: u128 = 0xff;
/// A step that is to be looked up.
const UNKNOWN: u8 = u8::MAX;

/// What a group of nodes has for a job on one node.
#[derive(Clone, Copy, Debug)]
pub struct Best {
    /// The best rank and the next one that some node has, [`NONE`] = no node.
    first: u128,
    second: u128,
    /// The best node.
    at: u32,
    /// Nodes with room for the job, and for one of its units.
    found: u32,
    offered: u32,
    /// Whether another node is as good but for its index, and whether one in another domain has the
    /// same rank.
    equal: bool,
    others: bool,
}

impl Default for Best {
    fn default() -> Best {
        Best {
            first: NONE,
            second: NONE,
            at: 0,
            found: 0,
            offered: 0,
            equal: false,
            others: false,
        }
    }
}

impl Best {
    /// Adds nodes of that rank; `at` = the first, `several` = there are more.
    fn add(&mut self, rank: u128, at: u32, several: bool) {
        match rank.cmp(&self.first) {
            Ordering::Less => {
                self.second = self.first;
                (self.first, self.at, self.equal) = (rank, at, several);
            }
            Ordering::Equal => {
                self.at = self.at.min(at);
                self.equal = true;
            }
            Ordering::Greater => self.second = self.second.min(rank),
        }
    }
}

/// The ranks of one form.
#[derive(Debug)]
pub struct Single {
    pub ranks: Ranks<Best>,
    /// By position: the step by the mix ([`super::scores`]), or [`UNKNOWN`].
    steps: Vec<u8>,
}

impl Single {
    pub fn new(knots: usize, positions: u32) -> Single {
        Single {
            ranks: Ranks::new(knots),
            steps: vec![UNKNOWN; positions as usize],
        }
    }
}

/// What the ranks of nodes are read from.
struct RankSource<'a> {
    state: &'a State,
    fabric: &'a FabricIndex,
    tables: &'a mut [GpuTable],
    known: &'a mut [Figures],
    /// Where the job's node is chosen by the mix.
    figures: Option<NodeFigures<'a>>,
    needs: Needs,
    /// GPUs of the largest node.
    most: usize,
}

/// [`super::single::one`] for the best choice, where the job and the decision are of a kind that ranks are kept
/// for. `None`: they are not, or there is no place.
#[inline(never)]
pub(super) fn single_cached(planner: &mut Planner, job: &Job, linked: Linked) -> Option<bool> {
    let plain = linked == Linked::Ignore && !job.whole && job.required.is_empty();
    let timed = job.rule == Rule::Backfill && job.until > 0;
    let near = matches!(job.rule, Rule::Affinity | Rule::AntiAffinity);
    let all = usize::try_from(job.gpus_on_one()).ok()?;
    if !plain || timed || near || all > planner.capacity.gpus() || !planner.state.unrestricted() {
        return None;
    }
    let values = planner.values.as_ref().filter(|_| job.learned);
    if values.is_some_and(|v| {
        planner
            .supplies
            .surcharge(&v.preferences, &job.needs())
            .is_some()
    }) {
        return None;
    }
    let kept = planner.decision_cache.as_deref_mut()?;
    let table = kept.one(job)?;
    let mut source = RankSource {
        figures: values.map(|values| NodeFigures {
            state: &planner.state,
            fabric: &planner.fabric,
            type_of: &planner.type_of,
            values,
            surcharge: None,
        }),
        state: &planner.state,
        fabric: &planner.fabric,
        tables: &mut planner.tables,
        known: planner.figures.of(all, job.worth),
        needs: job.needs(),
        most: planner.capacity.gpus(),
    };
    let best = refresh(kept, table, job, &mut source);
    if best.found == 0 {
        return None;
    }
    planner.capacity.assume = Assume::Now;
    planner.capacity.offered = best.offered;
    let strip = if job.learned { !MIX } else { u128::MAX };
    let (first, second) = (best.first & strip, best.second & strip);
    let decided = match (best.equal, best.others) {
        (true, _) => Criterion::Index,
        (false, true) => Criterion::Surroundings,
        _ if best.second == NONE => Criterion::Only,
        // The next best node is told apart by the mix alone.
        _ if first == second => Criterion::Mix,
        _ => pattern_figures::criterion(job, first, second),
    };
    Some(single::set_choice(
        planner,
        job,
        all,
        linked,
        best.at,
        (best.found, decided),
    ))
}

/// Brings the ranks of a form up to date; returns what the whole cluster has.
fn refresh(kept: &mut DecisionCache, table: usize, job: &Job, source: &mut RankSource) -> Best {
    let DecisionCache {
        tree, dirty, ones, ..
    } = kept;
    let Single { ranks, steps } = ones.ranks(table);
    let root = tree.len() - 1;
    let visit = |by_knot: &mut [Best], steps: &mut [u8], number: usize, source: &mut RankSource| {
        let knot = tree.node(number);
        by_knot[number] = match tree.kids(knot) {
            [] => source.group(job, knot, steps),
            kids => source.join(job, kids, by_knot),
        };
    };
    match changed(source.state, ranks.version) {
        Some(changed) => {
            for &at in changed {
                bits::set_member(dirty, tree.leaf(at), true);
                steps[at as usize] = UNKNOWN;
            }
            let mut from = 0;
            while let Some(knot) = tree.climb(dirty, from) {
                visit(&mut ranks.by_node, steps, knot as usize, source);
                if knot as usize == root {
                    bits::set_member(dirty, knot, false);
                    break;
                }
                from = knot + 1;
            }
        }
        None => {
            steps.fill(UNKNOWN);
            (0..=root).for_each(|knot| visit(&mut ranks.by_node, steps, knot, source));
        }
    }
    ranks.version = Some(source.state.version());
    ranks.by_node[root]
}

impl RankSource<'_> {
    /// What a few nodes have.
    fn group(&mut self, job: &Job, knot: &TreeNode, steps: &mut [u8]) -> Best {
        let mut best = Best::default();
        let index = &self.state.now;
        let rooms = FittingNodes::new(self.state, job, self.most);
        for (word, mask) in bits::words(knot.start, knot.end) {
            let (offered, mut field) = rooms.word(word, mask);
            best.offered += offered.count_ones();
            best.found += field.count_ones();
            while field != 0 {
                let first = word as u32 * 64 + field.trailing_zeros();
                let slot = index.slot(first);
                let alike = field & index.nodes(slot)[word];
                field &= !alike;
                let rank = self.rank(job, index, slot);
                match self.figures {
                    None => best.add(rank, first, alike & (alike - 1) != 0),
                    Some(look) => {
                        for at in bits::each(word, alike) {
                            let step = &mut steps[at as usize];
                            if *step == UNKNOWN {
                                *step = look.step(&self.needs, at);
                            }
                            best.add(rank | u128::from(*step), at, false);
                        }
                    }
                }
            }
        }
        best
    }

    /// Rank of the nodes of a pattern.
    fn rank(&mut self, job: &Job, index: &Index, slot: u32) -> u128 {
        let known = &mut self.known[slot as usize];
        if known.free == 0 {
            let pattern = index.pattern(slot);
            let table = &mut self.tables[pattern.type_of as usize];
            *known = fill(table, pattern, self.needs.gpus as usize, job.worth);
        }
        known.rank(job)
    }

    /// What the children of a knot have together.
    fn join(&self, job: &Job, kids: &[u32], by_knot: &[Best]) -> Best {
        let mut best = Best::default();
        for &kid in kids {
            let kid = &by_knot[kid as usize];
            best.found += kid.found;
            best.offered += kid.offered;
            match kid.first.cmp(&best.first) {
                _ if kid.first == NONE => {}
                Ordering::Less => {
                    let second = kid.second.min(best.first);
                    let (found, offered) = (best.found, best.offered);
                    best = Best {
                        second,
                        found,
                        offered,
                        ..*kid
                    };
                }
                Ordering::Greater => best.second = best.second.min(kid.first),
                Ordering::Equal => {
                    best.second = best.second.min(kid.second);
                    let (a, b) = (self.fabric.cell(kid.at), self.fabric.cell(best.at));
                    let whole = self.state.whole();
                    let place = match job.rule {
                        Rule::FirstFit => Ordering::Equal,
                        Rule::Spread => by_place(self.fabric, whole, b, a),
                        _ => by_place(self.fabric, whole, a, b),
                    };
                    best.others |= kid.others || a != b;
                    match place {
                        Ordering::Less => (best.at, best.equal) = (kid.at, kid.equal),
                        Ordering::Equal => {
                            best.equal = true;
                            if self.fabric.is_before(kid.at, best.at) {
                                best.at = kid.at;
                            }
                        }
                        Ordering::Greater => {}
                    }
                }
            }
        }
        best
    }
}
