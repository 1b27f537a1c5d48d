//! The request in the planner's own terms, and what a node can offer to it.
use super::gpus::ValueModel;
use super::never::Never;
use super::types::{GpuShape, NodeState, Placement, Request, Units, Wait, against};
use super::values::Needs;

/// How equally close places are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    BestFit,
    Backfill,
    Pack,
    Spread,
    FirstFit,
    Affinity,
    AntiAffinity,
}

/// Quarters of an hour by which a job may outlast the others on a node without counting as longer.
const OUTSTAYS: u32 = 16;

/// A request, normalised: every GPU shape is a number of *units* of some GPUs each.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// GPUs of one unit: of a node's share, of a task, or 1.
    pub unit: u32,
    /// Units over all nodes; `None` = exactly one on each node.
    pub units: Option<u32>,
    /// Whether its units are tasks, which Slurm deals out evenly over the nodes: GPUs that lie otherwise are not those that its steps need.
    pub dealt: bool,
    /// Fewest nodes, at least 1.
    pub min: u32,
    /// Most nodes, at least `min`.
    pub max: u32,
    /// Whether it takes whole nodes.
    pub whole: bool,
    /// Whether the scheduler chooses the GPUs on the nodes.
    pub leave: bool,
    /// Rule among equally close places.
    pub rule: Rule,
    /// Whether its node is chosen by what that is worth to the mix of jobs that was learned.
    pub learned: bool,
    /// What free GPUs are worth to it.
    pub worth: ValueModel,
    /// Whether what a node is worth counts before bandwidth.
    pub cost_first: bool,
    /// Nodes that must be part of it, ascending.
    pub required: &'a [u32],
    /// CPUs and memory that a node must have.
    pub cpus_per_node: u32,
    pub cpus_per_gpu: u32,
    pub memory_mib: u64,
    /// When it would end, in quarters; 0 = not known.
    pub until: u32,
}

impl<'a> Job<'a> {
    /// Normalises a request; a contradiction in it can never run.
    pub fn new(request: &'a Request, nodes: usize) -> Result<Job<'a>, Wait> {
        let never = |why: Never| Err(Wait::Never { why });
        let Units {
            gpus: unit,
            count: units,
        } = request.gpus.units();
        if unit == 0 || units == Some(0) {
            return never(Never::NoGpu);
        }
        let required = request.required_nodes.as_slice();
        let min = request.min_nodes.max(1).max(required.len() as u32);
        let most = request.max_nodes.max(request.min_nodes).max(1);
        if required.len() as u32 > most {
            return never(Never::Named {
                named: required.len() as u32,
                most,
            });
        }
        if let Some(&node) = required.iter().find(|&&n| n as usize >= nodes) {
            return never(Never::NoSuchNode { node });
        }
        if let Some(units) = units.filter(|&units| units < min) {
            return never(match request.gpus {
                GpuShape::PerTask { .. } => Never::Tasks {
                    tasks: units,
                    nodes: min,
                },
                _ => Never::TotalGpus {
                    gpus: units,
                    nodes: min,
                },
            });
        }
        Ok(Job {
            unit,
            units,
            dealt: matches!(request.gpus, GpuShape::PerTask { .. }),
            min,
            max: most.max(min),
            whole: request.whole_nodes,
            leave: request.whole_nodes || matches!(request.gpus, GpuShape::PerSocket { .. }),
            rule: match request.placement {
                Placement::Default | Placement::BestFit | Placement::Frag => Rule::BestFit,
                Placement::Backfill => Rule::Backfill,
                Placement::Pack => Rule::Pack,
                Placement::Spread => Rule::Spread,
                Placement::FirstFit => Rule::FirstFit,
                Placement::Affinity(_) => Rule::Affinity,
                Placement::AntiAffinity(_) => Rule::AntiAffinity,
            },
            learned: matches!(
                request.placement,
                Placement::Default | Placement::Frag | Placement::Backfill
            ) && !request.whole_nodes,
            worth: match request.placement {
                Placement::BestFit => ValueModel::Even,
                _ => ValueModel::Learned,
            },
            cost_first: request.cost_first,
            required,
            cpus_per_node: request.cpus_per_node,
            cpus_per_gpu: request.cpus_per_gpu,
            memory_mib: request.memory_mib_per_node,
            until: request.until,
        })
    }

    /// GPUs of the whole job when it runs on one node.
    pub fn gpus_on_one(&self) -> u64 {
        u64::from(self.unit) * u64::from(self.units.unwrap_or(1))
    }

    /// What the whole job takes of one node.
    pub fn needs(&self) -> Needs {
        let gpus = self.gpus_on_one().min(u64::from(u32::MAX)) as u32;
        Needs {
            gpus,
            cpus: self
                .cpus_per_node
                .max(self.cpus_per_gpu.saturating_mul(gpus)),
            memory_mib: self.memory_mib,
        }
    }

    /// How many GPUs of a node the job could use, given its CPUs and memory.
    pub fn usable(&self, state: &NodeState) -> u32 {
        let cpus = state.free_cpus;
        if !state.candidate
            || cpus < self.cpus_per_node
            || state.free_memory_mib < self.memory_mib
            || self.whole && state.free != state.present
        {
            return 0;
        }
        let gpus = state.free.len() as u32;
        match cpus.checked_div(self.cpus_per_gpu) {
            Some(most) if cpus != u32::MAX => gpus.min(most),
            _ => gpus,
        }
    }

    /// How many units a node has room for; with one unit per node, 0 or 1.
    pub fn capacity(&self, state: &NodeState) -> u32 {
        let units = self.usable(state) / self.unit;
        self.units.map_or(units.min(1), |_| units)
    }

    /// Rank by the affinity rule, lower first.
    pub fn distance(&self, affinity: u16) -> u32 {
        match self.rule {
            Rule::Affinity => u32::from(u16::MAX - affinity),
            Rule::AntiAffinity => u32::from(affinity),
            _ => 0,
        }
    }

    /// What a penalty counts before bandwidth.
    pub fn cost(&self, penalty: u16) -> u32 {
        match self.cost_first {
            true => u32::from(penalty & 0xff),
            false => 0,
        }
    }

    /// How much longer it would stay on a node than the jobs that are there, in steps that double
    /// from four hours on; 0 = not longer. Lower is better: the node is whole again as soon as it
    /// would have been. With limits as wide as people set them, finer steps tell nothing.
    ///
    /// `until` is that of the node, 0 = nobody is there, or nobody knows.
    pub fn overrun_steps(&self, until: u32) -> u32 {
        if self.rule != Rule::Backfill || self.until == 0 || until == 0 {
            return 0;
        }
        let over = self.until.saturating_sub(until) / OUTSTAYS;
        u32::BITS - over.leading_zeros()
    }

    /// The order of three figures by the rule: penalty, usability lost, and free GPUs of the node.
    pub fn order(&self, penalty: u16, lost: u32, free: u32) -> [u32; 3] {
        let penalty = u32::from(against(penalty));
        match self.rule {
            Rule::Pack => [penalty, free, lost],
            Rule::Spread => [penalty, u32::MAX - free, lost],
            Rule::FirstFit => [0; 3],
            _ => [penalty, lost, free],
        }
    }
}

/// Which GPUs count as free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Assume {
    /// Those that are free now.
    Now,
    /// All GPUs in service, on the nodes that the scheduler offers.
    Idle,
    /// All GPUs in service, on all nodes: what could ever be free.
    Empty,
}
