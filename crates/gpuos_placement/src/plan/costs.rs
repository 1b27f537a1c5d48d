//! What each node is worth to the job at hand: the cost model's byte of the penalty.
//!
//! Scores are made for each node type and condition, not for each node: a type is scored by the best
//! place that an idle node of it would give. What the GPUs that are free there really have between
//! them is the planner's to compare.
use std::sync::Arc;

use gpuos_model::cluster::NodeType;
use gpuos_model::figures::Precision;

use super::fabric::Span;
use super::gpus::ValueModel;
use super::job::Job;
use super::links::nic_units;
use super::types::{Choice, GpuShape, NodeState, Request};
use super::{NO_TYPE, Planner, bits, gang};
use crate::cost::{Condition, Model, Place, Score, Scoring, percent_better, steps};
use crate::fabric::UNBOUNDED;

/// The model of the cluster, and the scores for the job at hand.
#[derive(Debug, Default)]
pub struct Costs {
    model: Model,
    /// By node type and condition: the score, 0 = the job does not fit.
    scores: Vec<(u16, Condition, u32)>,
}

impl Costs {
    pub fn new(types: &[Arc<NodeType>], tables: &[super::gpus::GpuTable]) -> Costs {
        let pairs = tables.iter().flat_map(|table| table.pairs.iter());
        let types_of = types.iter().map(|t| &**t);
        Costs {
            model: Model::new(types_of, Precision::Bf16, pairs.copied().max().unwrap_or(0)),
            scores: Vec::with_capacity(types.len()),
        }
    }
}

impl Request {
    /// GPUs that each node of the job has at least.
    pub fn gpus_of_node(&self) -> u32 {
        match self.gpus {
            GpuShape::Total(all) if self.max_nodes == 1 => all,
            shape => shape.units().gpus,
        }
    }

    /// GPUs of the job in all, on the fewest nodes that it may have.
    pub fn gpus_in_all(&self) -> u64 {
        let nodes = u64::from(self.min_nodes.max(1));
        let units = self.gpus.units();
        u64::from(units.gpus) * units.count.map_or(nodes, u64::from)
    }
}

/// See [`Planner::weigh`].
pub(super) fn weigh(
    planner: &mut Planner,
    wish: Option<&Scoring>,
    conditions: &[Condition],
    request: &mut Request,
    states: &mut [NodeState],
) {
    request.cost_first = false;
    if conditions.is_empty() && (wish.is_none() || planner.types.len() < 2) {
        return;
    }
    let own = wish.copied().unwrap_or_default();
    planner.costs.scores.clear();
    let mut best = 0;
    for (node, state) in states.iter().enumerate() {
        if state.candidate && !state.free.is_empty() {
            best = best.max(node_value(planner, node, conditions, &own, request));
        }
    }
    if planner.costs.scores.len() < 2 && wish.is_some() {
        return;
    }
    request.cost_first = wish.is_some_and(|w| w.counts_first(request.gpus_in_all()));
    for (node, state) in states.iter_mut().enumerate() {
        if !state.candidate || state.free.is_empty() {
            continue;
        }
        let worth = node_value(planner, node, conditions, &own, request);
        let best = match wish {
            Some(_) => best,
            None => node_value(planner, node, &[], &own, request),
        };
        state.set_cost(steps(best, worth));
    }
}

/// See [`Planner::score`].
pub(super) fn score(
    planner: &mut Planner,
    node: u32,
    condition: Condition,
    wish: &Scoring,
    request: &Request,
) -> Option<Score> {
    let type_of = *planner.type_of.get(node as usize)?;
    match type_of {
        NO_TYPE => None,
        type_of => scored(
            planner,
            type_of,
            condition,
            wish,
            request,
            |model, place| model.score(place, &wish.workload, &wish.objectives, wish.over_share),
        ),
    }
}

/// See [`Planner::beside`].
pub(super) fn beside(
    planner: &mut Planner,
    choice: &Choice,
    wish: &Scoring,
    conditions: &[Condition],
    request: &Request,
    states: &[NodeState],
) -> Option<(u32, u32)> {
    planner.costs.scores.clear();
    let nodes = choice.nodes.iter().map(|one| one.node);
    let own = nodes
        .clone()
        .map(|node| node_value(planner, node as usize, conditions, wish, request));
    let own = own.min()?;
    let share = choice.nodes.iter().map(|one| one.gpus.len()).max()?.max(1);
    let mut best: Option<(u32, u32)> = None;
    for (node, state) in states.iter().enumerate() {
        if !state.candidate || state.free.len() < share {
            continue;
        }
        let kind = |at: u32| {
            let condition = conditions.get(at as usize).copied().unwrap_or_default();
            (planner.type_of.get(at as usize).copied(), condition)
        };
        if nodes.clone().any(|taken| kind(taken) == kind(node as u32)) {
            continue;
        }
        let worth = node_value(planner, node, conditions, wish, request);
        if worth > 0 && best.is_none_or(|(_, most)| worth > most) {
            best = Some((node as u32, worth));
        }
    }
    let (node, worth) = best?;
    let more = percent_better(own, worth);
    (more > 0).then_some((node, more))
}

fn node_value(
    planner: &mut Planner,
    node: usize,
    conditions: &[Condition],
    wish: &Scoring,
    request: &Request,
) -> u32 {
    let type_of = planner.type_of.get(node).copied().unwrap_or(NO_TYPE);
    if type_of == NO_TYPE {
        return 0;
    }
    let condition = conditions.get(node).copied().unwrap_or_default();
    let known = planner.costs.scores.iter();
    let mut same = known.filter(|(of, at, _)| (*of, *at) == (type_of, condition));
    if let Some(&(_, _, score)) = same.next() {
        return score;
    }
    let score = scored(
        planner,
        type_of,
        condition,
        wish,
        request,
        |model, place| match wish.by_memory_alone {
            true => model.by_memory(place),
            false => {
                let (work, objectives) = (&wish.workload, &wish.objectives);
                model.score(place, work, objectives, wish.over_share).total
            }
        },
    );
    let total = score.unwrap_or(0);
    planner.costs.scores.push((type_of, condition, total));
    total
}

/// What `of` says of the place that idle nodes of a type would give; `None` where the job does not fit.
fn scored<T>(
    planner: &mut Planner,
    type_of: u16,
    condition: Condition,
    wish: &Scoring,
    request: &Request,
    of: impl FnOnce(&Model, &Place<'_>) -> T,
) -> Option<T> {
    let table = &mut planner.tables[usize::from(type_of)];
    let node_type = &planner.types[usize::from(type_of)];
    let gpus = request.gpus_in_all();
    let fewest = u64::from(request.min_nodes.max(1));
    let nodes = fewest.max(gpus.div_ceil(table.gpus.max(1) as u64));
    let share = gpus.div_ceil(nodes) as usize;
    let pick = table.best(table.all, share, false, ValueModel::Even)?;
    let mut bus = match share {
        1 => UNBOUNDED,
        _ => pick.ring,
    };
    if nodes > 1 {
        bus = match nic_units(node_type, pick.set) {
            0 => bus,
            nic => bus.min(nic),
        };
    }
    let place = Place {
        node_type,
        gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
        nodes: u32::try_from(nodes).unwrap_or(u32::MAX),
        nvlink: share > 1 && table.linked(pick.set),
        bus,
        outside: wish.memory.outside(node_type),
        condition,
    };
    Some(of(&planner.costs.model, &place))
}

/// Leaves, for a job that weighs what nodes are worth first, only the collected nodes of a domain
/// that are worth no less than the last one wanted can be.
pub(super) fn keep_worthy(planner: &mut Planner, job: &Job, span: &Span, wanted: u32) {
    if !job.cost_first || gang::uneven(planner, job) {
        return;
    }
    let index = &planner.state.now;
    let cost = |slot: u32| job.cost(index.pattern(slot).penalty);
    let work = &mut planner.gang.work;
    let with = |most: u32, work: &[u64]| -> u32 {
        let slots = index.active().iter().filter(|&&slot| cost(slot) <= most);
        slots
            .map(|&slot| bits::count_both(index.nodes(slot), work, span.start, span.end))
            .sum()
    };
    let most = (0..=255).find(|&most| with(most, work) >= wanted);
    let most = most.unwrap_or(u32::MAX);
    for &slot in index.active().iter().filter(|&&slot| cost(slot) > most) {
        let nodes = index.nodes(slot);
        for (word, _) in bits::words(span.start, span.end) {
            work[word] &= !nodes[word];
        }
    }
}
