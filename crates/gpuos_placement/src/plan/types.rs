//! What goes into a plan and what comes out of it.
use std::fmt;

use gpuos_model::gpuset::GpuSet;
use gpuos_model::words::{check_value, check_word, not_understood};
use serde::{Deserialize, Serialize};

use super::never::Never;

/// How close together the GPUs of a job have to be, by name of the level: `node`, `nvlink`,
/// a level of the fabric (`leaf`, …) or `any`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TopologyRequest {
    /// Level name, lower case.
    pub level: String,
    /// Whether the job rather waits than starts farther apart.
    pub required: bool,
}

impl TopologyRequest {
    /// Reads `LEVEL`, `LEVEL:required` or `LEVEL:preferred`. Level names become lower case.
    ///
    /// # Errors
    /// What is wrong, without the form that is accepted.
    pub fn parse(text: &str) -> Result<TopologyRequest, String> {
        check_value(text)?;
        let (level, strength) = text.split_once(':').unwrap_or((text, "preferred"));
        check_word(level, "level name")?;
        let required = match strength.to_ascii_lowercase().as_str() {
            "required" => true,
            "preferred" => false,
            _ => return Err(not_understood(strength)),
        };
        Ok(TopologyRequest {
            level: level.to_ascii_lowercase(),
            required,
        })
    }
}

/// The request as [`TopologyRequest::parse`] reads it.
impl fmt::Display for TopologyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.level)?;
        match self.required {
            true => f.write_str(":required"),
            false => Ok(()),
        }
    }
}

/// Which of several equally close places is taken (`--gpuos-placement`).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Placement {
    /// `Frag` where the planner knows what free GPUs are worth to the mix of jobs
    /// ([`super::Planner::learn`]), else `BestFit`; the same as `Frag`, but the user
    /// did not say so.
    #[default]
    Default,
    /// By what stays usable for the next job, its size not known.
    BestFit,
    /// By what stays usable for the mix of jobs that was learned: the least fragmentation.
    Frag,
    /// The first place that has room, in the order of domains and nodes.
    FirstFit,
    /// As `Default`, and in a domain on the node that is broken into for as long anyway: whole nodes
    /// come back sooner, for gangs that wait, and gangs start sooner and farther apart.
    Backfill,
    /// Fewest nodes, on the fullest nodes.
    Pack,
    /// Emptiest nodes first.
    Spread,
    /// Near nodes that run these jobs or users (names as given on the command line).
    Affinity(Vec<String>),
    /// Away from nodes that run these jobs or users.
    AntiAffinity(Vec<String>),
}

/// How many GPUs a job wants, in the form in which it asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GpuShape {
    /// `--gres=gpu:N`, `--gpus-per-node=N`: exactly N on each node.
    PerNode(u32),
    /// `--gpus=N`: N over all nodes, at least one on each.
    Total(u32),
    /// `--gpus-per-task=K` with a number of tasks: K for each task, tasks never split over nodes.
    PerTask {
        /// GPUs of one task.
        per_task: u32,
        /// Tasks of the job.
        tasks: u32,
    },
    /// `--gpus-per-socket=N` with `--sockets-per-node=M`: N on each of M sockets of each node; nodes are chosen, GPUs are left
    /// to Slurm. The planner treats it as at least N × M free GPUs on each node.
    PerSocket {
        /// GPUs of one socket.
        per_socket: u32,
        /// Sockets of each node; 1 where nobody said it.
        sockets: u32,
    },
}

/// A number of GPUs in one form for all of [`GpuShape`]: units of some GPUs each, none of them split over nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Units {
    /// GPUs of one unit: of a node's share, of a task, or 1.
    pub gpus: u32,
    /// Units over all nodes; `None` = exactly one on each node.
    pub count: Option<u32>,
}

impl Units {
    /// GPUs over all nodes, where they do not depend on how many nodes there are.
    pub fn gpus_in_all(self) -> Option<u32> {
        Some(self.gpus.saturating_mul(self.count?))
    }
}

impl GpuShape {
    /// The same GPUs as units.
    pub fn units(self) -> Units {
        let (gpus, count) = match self {
            GpuShape::PerNode(gpus) => (gpus, None),
            GpuShape::PerSocket {
                per_socket,
                sockets,
            } => (per_socket.saturating_mul(sockets), None),
            GpuShape::Total(gpus) => (1, Some(gpus)),
            GpuShape::PerTask { per_task, tasks } => (per_task, Some(tasks)),
        };
        Units { gpus, count }
    }
}

/// A job's request as the planner sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Fewest nodes.
    pub min_nodes: u32,
    /// Most nodes; less than `min_nodes` counts as `min_nodes`. With [`GpuShape::PerNode`] the
    /// job gets as many nodes up to this as the chosen domain has room for, so give the number
    /// that the user asked for here, not the limit of the partition.
    pub max_nodes: u32,
    /// GPUs.
    pub gpus: GpuShape,
    /// CPUs needed on each node at least (0 = unknown).
    pub cpus_per_node: u32,
    /// CPUs that each GPU brings along (`--cpus-per-gpu`; 0 = none).
    pub cpus_per_gpu: u32,
    /// Host memory in MiB needed on each node (0 = unknown).
    pub memory_mib_per_node: u64,
    /// Whether the job takes whole nodes (`--exclusive`).
    pub whole_nodes: bool,
    /// Nodes that must be part of the choice (`--nodelist`), by node index, ascending.
    pub required_nodes: Vec<u32>,
    /// Wished or required closeness.
    pub topology: Option<TopologyRequest>,
    /// Rule among equally close places.
    pub placement: Placement,
    /// Whether what a place is worth to the job ([`NodeState::cost`]) counts before the bandwidth
    /// between its GPUs, not after it. [`super::Planner::weigh`] sets it.
    pub cost_first: bool,
    /// When the job would end by its time limit if it started now, in the quarters of
    /// [`NodeState::until`]; 0 = not known.
    pub until: u32,
}

impl Request {
    /// A request for GPUs and nothing else, in the default placement.
    pub fn new(min_nodes: u32, max_nodes: u32, gpus: GpuShape) -> Request {
        Request {
            min_nodes,
            max_nodes,
            gpus,
            cpus_per_node: 0,
            cpus_per_gpu: 0,
            memory_mib_per_node: 0,
            whole_nodes: false,
            required_nodes: Vec::new(),
            topology: None,
            placement: Placement::default(),
            cost_first: false,
            until: 0,
        }
    }
}

/// A moment in seconds since 1970 as [`NodeState::until`] has it, rounded up to the next quarter of
/// an hour, so that a waiting job's request stays the same from one question to the next.
pub fn quarters(seconds: i64) -> u32 {
    let past = (seconds.clamp(1, i64::MAX - 900) + 899) / 900;
    u32::try_from(past).unwrap_or(u32::MAX)
}

/// What is free on a node for this request. One entry per node, by node index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeState {
    /// Whether the scheduler offers this node to the job at all.
    pub candidate: bool,
    /// GPUs that exist on the node and are healthy.
    pub present: GpuSet,
    /// GPUs that are free and of the type that the job asked for.
    pub free: GpuSet,
    /// CPUs not allocated (`u32::MAX` = unknown).
    pub free_cpus: u32,
    /// Host memory not allocated, in MiB (`u64::MAX` = unknown).
    pub free_memory_mib: u64,
    /// How many of the jobs or users named in the affinity rule run here.
    pub affinity: u16,
    /// What speaks against the node, in three parts: rules ([`NodeState::rules`]), what it is worth to the job
    /// ([`NodeState::cost`]), and, speaking for it, what it spares the job of fetching ([`NodeState::spares`]). Nodes are grouped by
    /// it, so give few different values. It counts after closeness and bandwidth, before what stays usable, and its
    /// parts in this order: [`NodeState::against`].
    pub penalty: u16,
    /// When the last job on the node ends by its time limit, in quarters of an hour since 1970
    /// ([`quarters`]); 0 = nothing runs there, or it is not known.
    pub until: u32,
}

impl NodeState {
    /// What rules hold against the node, up to [`MOST_RULES`]: bits 8 to 11 of the penalty.
    pub fn rules(&self) -> u8 {
        (self.penalty >> 8 & 0xf) as u8
    }

    /// What the job need not fetch if the node takes a part of it, in steps up to [`MOST_SPARED`]: the highest four bits of the
    /// penalty. A fetch is paid once, so all that lasts for the whole run counts before it.
    pub fn spares(&self) -> u8 {
        (self.penalty >> 12) as u8
    }

    /// The penalty as a number to compare, lower first.
    pub fn against(&self) -> u16 {
        against(self.penalty)
    }

    /// By how much the node is worth less to the job than the best one: the low byte of the penalty,
    /// in steps of 5 %.
    pub fn cost(&self) -> u8 {
        (self.penalty & 0xff) as u8
    }

    /// Sets the rules' part of the penalty; the others stay.
    pub fn set_rules(&mut self, rules: u8) {
        self.penalty = self.penalty & 0xf0ff | u16::from(rules.min(MOST_RULES)) << 8;
    }

    /// One more rule is held against the node; the other parts of the penalty stay.
    pub fn add_rule(&mut self) {
        self.set_rules(self.rules() + 1);
    }

    /// Sets the cost model's part of the penalty; the others stay.
    pub fn set_cost(&mut self, cost: u8) {
        self.penalty = self.penalty & 0xff00 | u16::from(cost);
    }

    /// Sets what need not be fetched; the other parts of the penalty stay.
    pub fn set_spares(&mut self, steps: u8) {
        self.penalty = self.penalty & 0xfff | u16::from(steps.min(MOST_SPARED)) << 12;
    }
}

/// The most that rules can hold against a node.
pub const MOST_RULES: u8 = 15;
/// The most steps of [`NodeState::spares`].
pub const MOST_SPARED: u8 = 15;

/// A penalty as a number to compare: rules, cost, what is to be fetched.
pub(super) fn against(penalty: u16) -> u16 {
    let fetched = u16::from(MOST_SPARED) - (penalty >> 12);
    (penalty >> 8 & 0xf) << 12 | (penalty & 0xff) << 4 | fetched
}

/// The parts of what [`against`] gives.
pub(super) fn parts(against: u32) -> [u32; 3] {
    [against >> 12, against >> 4 & 0xff, against & 0xf]
}

/// One node of a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeChoice {
    /// Node index.
    pub node: u32,
    /// GPUs that the job gets there. Empty: the planner leaves the GPUs to Slurm
    /// (whole nodes, per-socket requests).
    pub gpus: GpuSet,
}

/// Nodes and GPUs for one job, and the figures behind the choice.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Choice {
    /// The nodes, ascending by index.
    pub nodes: Vec<NodeChoice>,
    /// Level reached: 0 = one node with all GPUs linked by NVLink or NVSwitch (`nvlink`),
    /// 1 = `node`, 2.. = fabric level `reached - 2`, past the last level = `any`.
    /// A single GPU counts as `node`, and as `nvlink` when the job wished for that.
    pub reached: u32,
    /// Domain of the fabric level reached, if any.
    pub domain: Option<u32>,
    /// Modelled bandwidth per GPU of a ring over the job in GB/s (its narrowest link);
    /// 0 = a single GPU, or nothing is known about the links.
    pub bus_gbps: f32,
    /// Usability lost: how much less the free GPUs of the touched nodes are worth for the
    /// next job, in GPUs. Lower is better.
    pub usability_lost: f32,
    /// Candidate nodes that could take a part of the job.
    pub feasible_nodes: u32,
    /// Domains at the level reached that had room for the whole job (nodes, when the job is on
    /// one node).
    pub feasible_domains: u32,
    /// What told this place from the next best one.
    pub decided: Criterion,
}

impl Choice {
    /// Makes it the same as another one, in the memory that it has where that is enough.
    pub fn set(&mut self, other: &Choice) {
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.clear();
        nodes.extend_from_slice(&other.nodes);
        *self = Choice { nodes, ..*other };
    }
}

/// What told the chosen place from the next best one of the same closeness.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Criterion {
    /// No other place had room.
    #[default]
    Only,
    /// Nearness to the named jobs, or distance from them.
    Affinity,
    /// The number of nodes.
    Nodes,
    /// The narrowest link among the GPUs.
    Bandwidth,
    /// The links of all pairs of GPUs together.
    Links,
    /// How many domains of the narrowest level are touched.
    Compactness,
    /// What rules hold against the nodes.
    Penalty,
    /// What stays usable for the next jobs.
    Usability,
    /// What stays usable for the mix of jobs that was learned.
    Mix,
    /// How full the node or the domain is.
    Fit,
    /// How much is wholly free around it.
    Surroundings,
    /// When the other jobs on the node end.
    Ends,
    /// The lowest index: nothing else told them apart.
    Index,
    /// What the nodes are worth to the job by the administrator's objectives.
    Cost,
    /// What the job would have to fetch: nodes that keep its checkpoints came first.
    Fetch,
}

/// What the numbers of [`Wait::Level`] count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Unit {
    /// Nodes with enough free GPUs for one node's share of the job.
    Nodes,
    /// GPUs: the level lies inside the node, or the job asked for a number of GPUs in all.
    Gpus,
}

/// Why nothing fits now.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Wait {
    /// Fewer nodes with enough free GPUs than needed.
    Capacity {
        /// Nodes with enough free GPUs (and CPUs and memory, where known) for a part of the job;
        /// when some of the nodes that the job names have not, those of them that have.
        feasible_nodes: u32,
        /// Nodes needed.
        needed_nodes: u32,
        /// Free GPUs on the candidates. When the job asked for GPUs or tasks in all: what it
        /// could use of them on as many nodes as it may have.
        free_gpus: u32,
        /// GPUs needed in all.
        needed_gpus: u32,
    },
    /// There is room, but not within one domain of the required level.
    Level {
        /// Name of the required level.
        level: String,
        /// Name of the domain that comes nearest; empty when the level has no domain.
        best_domain: String,
        /// What is counted.
        unit: Unit,
        /// How many are free there.
        have: u32,
        /// How many are needed there.
        need: u32,
    },
    /// The required level is not one of this cluster.
    UnknownLevel {
        /// As the user wrote it.
        level: String,
        /// Levels that this cluster has, narrowest first.
        known: Vec<String>,
    },
    /// Could never fit on this cluster, even if it were empty.
    Never {
        /// Why.
        why: Never,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_takes_over_all_of_another_one() {
        let node = |node| NodeChoice {
            node,
            gpus: GpuSet(6),
        };
        let long = Choice {
            nodes: vec![node(1), node(4)],
            reached: 3,
            domain: Some(2),
            bus_gbps: 450.0,
            usability_lost: 0.5,
            feasible_nodes: 7,
            feasible_domains: 2,
            decided: Criterion::Fit,
        };
        let mut kept = Choice::default();
        for other in [&long, &Choice::default(), &long] {
            kept.set(other);
            assert_eq!(kept, *other);
        }
    }
}
