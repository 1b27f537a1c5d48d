//! How a job stands on this node, for clients.

use gpuos_core::wire::{CheckpointJob, CheckpointKept, CheckpointMaking};
use gpuos_mover::program::{Making, Stage, Took};

use super::running::Running;
use super::{Phase, Worker};
use crate::jobs::locked;

impl Worker {
    /// Puts it where others look.
    pub(super) fn publish(&mut self) {
        let (phase, why) = self.stage();
        let scheme = self.scheme();
        let now = self.now();
        let mut told = CheckpointJob {
            job: self.start.job.clone(),
            uid: self.start.uid,
            phase,
            why,
            run: match self.shared.manager.counts_runs() {
                true => self.start.run,
                false => 0,
            },
            nodes: self.start.nodes.clone(),
            start: self.start.launch.start,
            spares: self.start.spares.clone(),
            lost: self.start.lost.clone(),
            scheme: scheme.to_string(),
            losses: scheme.parity(),
            ..CheckpointJob::default()
        };
        let (drained, level3) = self.drain.told(&self.start.nodes);
        told.drained = drained;
        told.level3 = level3;
        if let Phase::Running(running) = &self.phase {
            let view = running.conductor().view();
            told.leads = running.leads();
            if told.leads {
                self.tally
                    .look(&view, view.restored.is_some(), now, &self.shared.totals);
                told.unsaved_s = Some(self.tally.unsaved_s(now));
                told.pause_ms = self.tally.last.map(|(pause, _)| pause);
                told.store_ms = self.tally.last.map(|(_, store)| store);
                (told.failed_in_row, told.failed_why) = self.tally.failing.clone();
            }
            if let Some((interval, why)) = view.interval {
                told.interval_s = Some(interval / 1000);
                told.interval_why = why;
            }
            told.ranks = running.ranks().map(u32::from).collect();
            told.size = view.size.map(u32::from);
            let failures = view.failures.into_iter();
            told.failures = failures
                .map(|(number, why)| format!("checkpoint {number}: {why}"))
                .collect();
            told.making = view.making.map(|making| self.making(running, &making));
            // Number and duration alone: what is kept of it is read when somebody asks.
            told.checkpoints = view.took.iter().map(took).collect();
            told.restored = view.restored;
            if let Some(ready) = &running.ready {
                told.passed_over = ready.passed_over.clone();
                told.came = self.came.clone();
            }
        }
        *locked(&self.status) = told;
    }

    fn making(&self, running: &Running, making: &Making) -> CheckpointMaking {
        CheckpointMaking {
            number: making.number,
            reason: making.reason.to_string(),
            stage: match making.stage {
                Stage::Saving => "program".into(),
                Stage::Storing => "store".into(),
            },
            for_ms: self.now().saturating_sub(making.since),
            waits_for: match making.stage {
                Stage::Saving => running.unsaved().map(u32::from).collect(),
                Stage::Storing => Vec::new(),
            },
        }
    }
}

fn took(took: &Took) -> CheckpointKept {
    CheckpointKept {
        number: took.number,
        took_ms: Some(took.pause_ms.saturating_add(took.background_ms)),
        ..CheckpointKept::default()
    }
}
