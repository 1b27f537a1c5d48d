//! What one job wants of a place, beside room: the objectives that hold for it, and what it does.
use super::{Grant, Objective, Objectives, Profile, Workload};
use crate::gang::GroupShape;

/// Below this share of communication, in thousandths, the bandwidth between GPUs is not what a job
/// waits for: that of a job of which nothing is known.
const COMMUNICATES: u32 = Workload::UNKNOWN.communication;

/// What places are scored by for one job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scoring {
    /// What is weighed.
    pub objectives: Objectives,
    /// What the job does with its time.
    pub workload: Workload,
    /// By how much, in thousandths, the user had more than the fair share; see
    /// [`super::Model::score`].
    pub over_share: u32,
    /// Memory for each GPU beyond what the GPU has.
    pub memory: Grant,
    /// Nobody said what counts: node types are equally good, but for what memory outside their GPUs costs.
    pub by_memory_alone: bool,
}

impl Scoring {
    /// The wish of a job for which these objectives hold and that says this of itself; `learned` is
    /// the share of communication that [`super::History`] knows. `None` when neither the administrator
    /// nor the job said what counts: then no node type is preferred, so that the fast ones are left
    /// to those who name them.
    pub fn of(
        objectives: Option<Objectives>,
        profile: Option<Profile>,
        shape: Option<&GroupShape>,
        learned: Option<u32>,
    ) -> Option<Scoring> {
        if objectives.is_none() && profile.is_none() {
            return None;
        }
        let workload = match (profile, shape, learned) {
            (Some(profile), _, _) => Workload::of_profile(profile),
            (None, Some(shape), _) => Workload::of_shape(shape),
            (None, None, Some(share)) => Workload::default().with_communication(share),
            (None, None, None) => Workload::default(),
        };
        Some(Scoring {
            objectives: objectives.unwrap_or_default(),
            workload,
            ..Scoring::default()
        })
    }

    /// The same for a job with such a grant. One for which nobody said what counts goes by what memory outside GPUs costs, and by
    /// nothing else.
    pub fn with_memory(wish: Option<Scoring>, memory: Grant) -> Option<Scoring> {
        match (wish, memory.is_none()) {
            (wish, true) => wish,
            (Some(wish), false) => Some(Scoring { memory, ..wish }),
            (None, false) => Some(Scoring {
                memory,
                by_memory_alone: true,
                ..Scoring::default()
            }),
        }
    }

    /// Whether the score counts before the bandwidth between the GPUs: with a weight on anything but speed, for a job that communicates little, and for a single GPU.
    pub fn counts_first(&self, gpus: u64) -> bool {
        let speed = [Objective::Throughput, Objective::Latency];
        let weight: u32 = speed.iter().map(|&of| self.objectives.weight(of)).sum();
        let little = self.workload.communication < COMMUNICATES || gpus < 2;
        !self.by_memory_alone && (weight < 100 || little)
    }
}

/// By how much a place is worth less than the best one, in steps of 5 % of that one, rounded down: a
/// smaller difference is none. 0 to 20.
pub fn steps(best: u32, own: u32) -> u8 {
    let less = u64::from(best.saturating_sub(own)) * 20;
    less.checked_div(best.into()).unwrap_or(0) as u8
}

/// By how much of the worse one a place is better than another, in percent; at most 999.
pub fn percent_better(own: u32, other: u32) -> u32 {
    let more = u64::from(own.saturating_sub(other)) * 100;
    more.checked_div(other.into()).map_or(999, |p| p.min(999)) as u32
}
