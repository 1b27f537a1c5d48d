//! What is recorded.
use std::borrow::Cow;

use gpuos_model::gpuset::GpuSet;
use serde::{Deserialize, Serialize};

use crate::frag::Expected;
use crate::plan::{Choice, NodeState, Request, Wait};

/// Why the scheduler asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Purpose {
    /// To start the job now.
    Start,
    /// To know when it could start.
    Forecast,
}

/// How the number of a choice came about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum By {
    /// The best one, or the next after one that was refused.
    Order,
    /// Of equally close places the one with the most bandwidth beside the running gangs
    /// ([`crate::traffic::Traffic::best`]): that much between its nodes, in hundredths of GB/s; `None`
    /// when there was nothing to compare.
    Network(Option<u32>),
    /// No choice, but a place that would hold the job if nothing ran ([`crate::plan::Planner::future`]): where
    /// the scheduler preempts, or expects the job to start. The ones with lower numbers were refused.
    Future,
}

/// One question to the planner, with its answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Asked<'a> {
    /// Job id.
    pub job: u32,
    /// Why the scheduler asked.
    pub purpose: Purpose,
    /// Which choice was asked for: 0 = the best, n = the n-th next one.
    pub skip: u32,
    /// How that number came about.
    pub by: By,
    /// The request.
    pub request: Cow<'a, Request>,
    /// The choice, or why there was none.
    pub answer: Result<Cow<'a, Choice>, Cow<'a, Wait>>,
    /// When, in seconds since 1970. It stands last: see [`super::Writer::asked`].
    pub at: u64,
}

/// What became of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The scheduler took the choice asked for last.
    Taken,
    /// It refused all choices, or there was none: it chose by itself among all nodes.
    Left,
    /// The job waits for its required level.
    Waits,
}

/// A run that has ended, as earlier runs are learned from ([`crate::cost::History`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run<'a> {
    /// User name or id.
    pub user: Cow<'a, str>,
    /// Job name.
    pub name: Cow<'a, str>,
    /// GPUs.
    pub gpus: u32,
    /// How long it ran, in seconds.
    pub seconds: u32,
    /// Bus bandwidth of its place in hundredths of GB/s; 0 = not known or none needed.
    pub bus: u32,
}

/// A gang on the network ([`crate::traffic::Traffic::resume`]).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Gang<'a> {
    /// Job id; what was known of it is replaced.
    pub job: u32,
    /// Its nodes, and its GPUs on each.
    pub nodes: Cow<'a, [(u32, GpuSet)]>,
    /// What one of its rings was promised, in hundredths of GB/s.
    pub ring: u32,
}

/// One entry of the ring.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Event<'a> {
    /// These nodes have this state from now on; its `candidate` says nothing, see `Offered`.
    Nodes {
        /// First node index.
        from: u32,
        /// How many nodes.
        count: u32,
        /// Their state.
        state: NodeState,
    },
    /// The scheduler offers these nodes from now on, or no longer.
    Offered {
        /// First node index.
        from: u32,
        /// How many nodes.
        count: u32,
        /// Whether they are offered.
        yes: bool,
    },
    /// The planner was asked.
    Asked(Asked<'a>),
    /// A decision ended.
    Ended {
        /// Job id.
        job: u32,
        /// How.
        outcome: Outcome,
    },
    /// The planner goes by this mix of jobs from now on ([`crate::plan::Planner::learn`]).
    Learned(Cow<'a, Expected>),
    /// The nodes are joined by a network whose gangs are recorded. Stands at the head of a segment,
    /// and where that changes.
    Network {
        /// Whether all gangs that run follow; they may be too many for a segment.
        whole: bool,
    },
    /// A gang uses the network from now on.
    Gang(Gang<'a>),
    /// It does no longer.
    GangEnded {
        /// Job id.
        job: u32,
    },
    /// A job has run to its end. No decision that is replayed depends on it: what it taught stands in
    /// the states.
    Ran(Run<'a>),
    /// All gangs that use the network, at the head of a segment.
    Gangs(Vec<Gang<'a>>),
}
