//! One number for a place: higher is better.
use std::fmt;

use gpuos_model::cluster::NodeType;
use gpuos_model::figures::{Figures, Precision};

use super::beyond::stretch;
use super::collective::{Ranks, allreduce_ns};
use super::{Condition, OBJECTIVES, Objective, Objectives, WHOLE, Workload};
use crate::fabric::UNBOUNDED;

/// Bytes of the all-reduce by which latency is judged: a small exchange.
const SMALL: u64 = 8 << 10;
/// Keeps digits when a speed is divided by W or a price.
const SHARP: u64 = 1 << 20;

/// A place to be scored.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Type of its nodes (of the worst, when they differ).
    pub node_type: &'a NodeType,
    /// GPUs of the job in all.
    pub gpus: u32,
    /// Nodes.
    pub nodes: u32,
    /// Whether the GPUs on a node are joined by NVLink.
    pub nvlink: bool,
    /// Bus bandwidth in hundredths of GB/s, as [`crate::fabric::Net::bandwidth`] and the ring inside
    /// the node give it; [`UNBOUNDED`] for a single GPU or when not known.
    pub bus: u32,
    /// The share of the job's memory that its GPUs have no room for, in thousandths; see [`super::Grant::outside`].
    pub outside: u32,
    /// How the nodes are now (the worst of them).
    pub condition: Condition,
}

/// One part of a score.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// What was weighed.
    pub objective: Objective,
    /// How good the place is at it, in thousandths of the best that the cluster has.
    pub value: u32,
    /// Weight in percent.
    pub weight: u32,
}

/// A score with its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Score {
    /// Sum of values times weights: 0 to 100,000. 0 = not to be used.
    pub total: u32,
    /// The parts, in the order of [`OBJECTIVES`].
    pub parts: [Part; 5],
}

/// `72000: throughput 800 x 60 %, energy 600 x 40 %`; what has no weight is left out.
impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.total)?;
        let mut sign = ": ";
        for (part, (word, _)) in self.parts.iter().zip(OBJECTIVES) {
            if part.weight > 0 {
                write!(f, "{sign}{word} {} x {} %", part.value, part.weight)?;
                sign = ", ";
            }
        }
        Ok(())
    }
}

/// The best that a cluster has of everything: what places are measured by.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Model {
    precision: Precision,
    /// Most tenths of TFLOPS and GB/s of memory of a GPU.
    rate: u32,
    memory: u32,
    /// Most bus bandwidth inside a node, in hundredths of GB/s.
    bus: u32,
    /// Figures of the node types, and the W of a GPU with its share of the node.
    types: Vec<(Figures, u32)>,
}

impl Model {
    /// The model of a cluster with these node types, for work in a precision. `bus` is the most bus
    /// bandwidth that any of its nodes has inside, in hundredths of GB/s.
    pub fn new<'a>(
        types: impl IntoIterator<Item = &'a NodeType>,
        precision: Precision,
        bus: u32,
    ) -> Model {
        let mut model = Model {
            precision,
            bus: bus.max(1),
            ..Model::default()
        };
        for node_type in types {
            let figures = &node_type.figures;
            model.rate = model.rate.max(figures.rate(precision));
            model.memory = model.memory.max(figures.memory_gbps);
            let watts = figures.watts(1, node_type.gpus as u32);
            model.types.push((*figures, watts));
        }
        model
    }

    /// Scores a place for a workload under the administrator's objectives. `over_share` says by how
    /// much, in thousandths of it, the user has had more than the fair share (0 = not).
    ///
    /// A figure that is not known counts as the best known one: gpuos does not hold against a node
    /// type what nobody wrote down.
    pub fn score(
        &self,
        place: &Place<'_>,
        workload: &Workload,
        objectives: &Objectives,
        over_share: u32,
    ) -> Score {
        let figures = &place.node_type.figures;
        let speed = self.speed(place, workload, figures);
        let gpus = place.node_type.gpus as u32;
        let full = figures.watts(1, gpus);
        let spared = figures.gpu_watts - place.condition.gpu_watts(figures);
        let watts = full.saturating_sub(spared);
        // Speed for W, or for the price, against the best that any node type would have for this
        // workload: for a job that waits for files that is the type which takes least.
        let by = |of: fn(&(Figures, u32)) -> u32, own: u32| {
            let each = self.types.iter().map(|kind| match of(kind) {
                0 => 0,
                of => u64::from(self.best_speed(workload, &kind.0)) * SHARP / u64::from(of),
            });
            match (each.max().unwrap_or(0), own) {
                (0, _) | (_, 0) => speed,
                (most, own) => {
                    let own = u64::from(speed) * SHARP / u64::from(own);
                    (own * u64::from(WHOLE) / most).min(WHOLE.into()) as u32
                }
            }
        };
        let value = |objective| match objective {
            Objective::Throughput => speed,
            Objective::Latency => self.latency(place),
            Objective::Energy => by(|kind| kind.1, watts),
            Objective::Cost => by(|kind| kind.0.price_milli, figures.price_milli),
            Objective::Fairness => WHOLE - speed * over_share.min(WHOLE) / WHOLE,
        };
        let parts = OBJECTIVES.map(|(_, objective)| Part {
            objective,
            value: value(objective) * place.condition.health.min(WHOLE) / WHOLE,
            weight: objectives.weight(objective),
        });
        Score {
            total: parts.iter().map(|part| part.value * part.weight).sum(),
            parts,
        }
    }

    /// Work in a time, in thousandths of that on the cluster's best GPUs and links: each share of
    /// the job's time is stretched by what the place has less of its resource (Amdahl's law).
    fn speed(&self, place: &Place<'_>, workload: &Workload, figures: &Figures) -> u32 {
        let extra = self.extra(place);
        let clock = place.condition.clock(figures);
        self.speed_at(place.bus, clock, workload, figures, extra)
    }

    /// What a place is worth to a job for which node types are equally good: less by what is outside its GPUs' memory, and by their
    /// condition. 0 to 100,000, as [`Score::total`].
    pub fn by_memory(&self, place: &Place<'_>) -> u32 {
        let whole = u64::from(WHOLE);
        let outside = u64::from(place.outside.min(WHOLE));
        let time = whole - outside + self.extra(place);
        let value = whole * whole * 100 / time.max(1);
        let clock = place.condition.clock(&place.node_type.figures).min(WHOLE);
        value as u32 * place.condition.health.min(WHOLE) / WHOLE * clock / WHOLE
    }

    fn extra(&self, place: &Place<'_>) -> u64 {
        stretch(place.outside, self.memory, place.node_type.pcie_gbps)
    }

    /// The same on GPUs as new, with the best links of the cluster.
    fn best_speed(&self, workload: &Workload, figures: &Figures) -> u32 {
        self.speed_at(UNBOUNDED, WHOLE, workload, figures, 0)
    }

    /// `extra`: what [`stretch`] says.
    fn speed_at(
        &self,
        bus: u32,
        clock: u32,
        workload: &Workload,
        figures: &Figures,
        extra: u64,
    ) -> u32 {
        let clock = u64::from(clock.max(1));
        let stretched = |share: u32, best: u32, own: u32, clock: u64| {
            let ratio = match (best, own) {
                (0, _) | (_, 0) => u64::from(WHOLE),
                _ => u64::from(best) * u64::from(WHOLE) / u64::from(own),
            };
            u64::from(share) * ratio.max(u64::from(WHOLE)) / clock
        };
        let own_bus = match bus {
            UNBOUNDED => self.bus,
            bus => bus,
        };
        let whole = u64::from(WHOLE);
        let time = stretched(
            workload.compute,
            self.rate,
            figures.rate(self.precision),
            clock,
        ) + stretched(workload.memory, self.memory, figures.memory_gbps, whole)
            + stretched(workload.communication, self.bus, own_bus, whole)
            + u64::from(workload.io)
            + u64::from(workload.memory) * extra / whole;
        (whole * whole / time.max(1)).min(whole) as u32
    }

    /// Time of a small all-reduce on one node with NVLink by that of the place.
    fn latency(&self, place: &Place<'_>) -> u32 {
        let time = |nodes: u32, nvlink: bool| {
            let ranks = Ranks {
                count: place.gpus,
                nodes,
                nvlink,
            };
            allreduce_ns(SMALL, ranks, place.bus)
        };
        match time(place.nodes, place.nvlink) {
            0 => WHOLE,
            own => (time(1, true) * u64::from(WHOLE) / own).min(WHOLE.into()) as u32,
        }
    }
}
