//! How a job stands on this node, for clients.

use gpuos_core::wire::{CheckpointJob, CheckpointMaking};
use gpuos_mover::program::Making;

use super::{Phase, Worker};
use crate::jobs::locked;

impl Worker {
    /// Puts it where others look.
    pub(super) fn publish(&self) {
        let (phase, why) = self.stage();
        let scheme = self.scheme();
        let mut told = CheckpointJob {
            job: self.start.job.clone(),
            uid: self.start.uid,
            phase,
            why,
            run: self.start.run,
            nodes: self.start.nodes.clone(),
            scheme: scheme.to_string(),
            losses: scheme.parity(),
            ..CheckpointJob::default()
        };
        if let Phase::Running(running) = &self.phase {
            let view = running.conductor().view();
            told.leads = running.leads();
            told.interval_s = view.interval_ms.map(|ms| ms / 1000);
            told.interval_why = view.interval_why;
            told.ranks = view.ranks.into_iter().map(u32::from).collect();
            told.size = view.size.map(u32::from);
            told.failures = view.failures;
            told.making = view.making.map(|making| self.making(&making));
            if let Some(ready) = &running.ready {
                told.restored = ready.restore.map(|id| id.number);
                told.passed_over = ready.passed_over.clone();
            }
        }
        *locked(&self.status) = told;
    }

    fn making(&self, making: &Making) -> CheckpointMaking {
        CheckpointMaking {
            number: making.number,
            reason: making.reason.to_string(),
            stage: making.stage.to_string(),
            for_ms: self.now().saturating_sub(making.since),
            waits_for: making.waits_for.iter().copied().map(u32::from).collect(),
        }
    }
}
