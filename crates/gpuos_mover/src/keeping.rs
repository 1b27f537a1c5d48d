//! Which checkpoints stay on a node.
//!
//! What the manifests of other nodes refer to is not known here, so it is bounded instead. The numbers of a run are cut into
//! *generations* of [`Settings::full_every`](crate::settings::Settings::full_every), from the first one that the run may use. A part
//! refers to parts of its own generation only, on all nodes, so the first checkpoint of a run and of each generation is written in full.
//! What a checkpoint of this run needs anywhere is thus in its generation and not newer than it. What the ones of
//! earlier runs need is read from all manifests at the restart, and is in the plan. Of those that were made by another number of nodes that is not
//! known, and each may need all before it.

use std::collections::BTreeMap;

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::retention::{self, Holding, Policy, Removal, Stage};
use gpuos_store::inventory::{Held, Part};

use crate::message::Plan;

/// The rule, the same on all nodes of a run.
pub(crate) struct Keeping {
    /// Nodes of the job.
    nodes: u16,
    policy: Policy,
    full_every: u32,
    /// The highest number of earlier runs.
    highest: u32,
    /// What the newest ones of earlier runs need.
    earlier: BTreeMap<CheckpointId, Vec<CheckpointId>>,
}

impl Keeping {
    pub(crate) fn of(plan: &Plan, nodes: u16) -> Keeping {
        Keeping {
            nodes,
            policy: Policy { keep: plan.keep },
            full_every: plan.full_every.max(1),
            highest: plan.highest,
            earlier: plan.kept.iter().cloned().collect(),
        }
    }

    /// The generation in this run. `None`: it is of an earlier one.
    fn generation(&self, id: CheckpointId) -> Option<u32> {
        let place = id.number.checked_sub(self.highest)?.checked_sub(1)?;
        Some(place / self.full_every)
    }

    /// Whether a part of `id` may refer to segments that `base` has or refers to.
    pub(crate) fn may_refer(&self, id: CheckpointId, base: CheckpointId) -> bool {
        let generation = self.generation(base);
        generation.is_some() && generation == self.generation(id)
    }

    /// What of a node's store is not needed any more, the newest first, so that what is still there is whole after each removal.
    /// Not to be asked while a part is being made. What is being read stays, and what that needs.
    pub(crate) fn removable(
        &self,
        held: &[Held],
        is_read: impl Fn(CheckpointId) -> bool,
    ) -> Vec<CheckpointId> {
        let holding = |part: &Held| Holding {
            reading: is_read(part.id),
            ..self.holding(part, held)
        };
        let holdings: Vec<Holding> = held.iter().map(holding).collect();
        let removals = retention::plan(&holdings, self.policy);
        // A manifest stays as long as the data: at a restart it says what has to be in a segment.
        let gone = removals
            .into_iter()
            .rev()
            .filter_map(|removal| match removal {
                Removal::Data(id) => Some(id),
                Removal::Manifests(_) | Removal::Barrier => None,
            });
        gone.collect()
    }

    fn holding(&self, part: &Held, all: &[Held]) -> Holding {
        let stage = match &part.part {
            _ if part.committed => Stage::Committed,
            Part::Prepared(_) | Part::Damaged => Stage::Prepared,
            Part::Nothing | Part::SegmentOnly => Stage::DataOnly,
        };
        let ids = all.iter().map(|other| other.id);
        let needs = match (self.earlier.get(&part.id), &part.part) {
            (Some(needs), _) => needs.clone(),
            _ if self.generation(part.id).is_some() => ids
                .filter(|id| *id <= part.id && self.may_refer(part.id, *id))
                .collect(),
            (None, Part::Prepared(summary)) if summary.nodes != self.nodes => {
                ids.filter(|id| *id < part.id).collect()
            }
            (None, Part::Prepared(summary)) => summary.needs.clone(),
            _ => Vec::new(),
        };
        Holding {
            id: part.id,
            stage,
            level: 0,
            pinned: false,
            reading: false,
            good: true,
            bytes: part.taken,
            needs,
        }
    }
}
