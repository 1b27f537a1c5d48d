//! MPS of jobs: what [`gpuos_core::limits::mps_step`] is told, and what it says.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::limits::{MpsEffect, MpsEvent, MpsWish, mps_step};
use gpuos_core::wire::MPS_VARIABLES;

use super::{Message, Owner};
use crate::disk::Ack;
use crate::mps::Task;

impl Owner {
    pub(super) fn mps(&mut self, event: MpsEvent) {
        let now = self.now().duration_since(self.began).as_millis() as u64;
        let wall = (self.ports.wall)();
        let mut lines = Vec::new();
        for effect in mps_step(&mut self.mps, event, now, wall) {
            match effect {
                MpsEffect::Save { revision } => {
                    let to = self.ports.to.clone();
                    let ack: Ack = Box::new(move |told| {
                        let _ = to.send(Message::Mps(MpsEvent::Saved { revision, told }));
                    });
                    self.save(Some(ack));
                }
                MpsEffect::Start { job, serving } => {
                    let uuids = serving.gpus.iter().map(|gpu| self.known(*gpu).uuid);
                    let uuids = uuids.collect();
                    self.ports.mps.begin(Task::Start(job, serving, uuids));
                }
                MpsEffect::Adopt { job, process } => {
                    self.ports.mps.begin(Task::Adopt(job, process));
                }
                MpsEffect::End { job, serving } => self.ports.mps.begin(Task::End(job, serving)),
                MpsEffect::Audit(audit) => self.log(&audit, &mut lines),
            }
        }
        self.ports.disk.audit(lines);
        self.answer_steps();
    }

    /// What a step that wants MPS is told: variables for its tasks, or why not. `None`: not known yet.
    pub(super) fn mps_for(
        &self,
        job: u32,
        gpus: &BTreeSet<u8>,
        wish: MpsWish,
    ) -> Option<Result<BTreeMap<String, String>, String>> {
        let there = self.mps.settled(job, gpus)?;
        let no = |why| format!("MPS is not there: {why}; the job runs without it");
        Some(there.map_err(no).map(|()| {
            let folders = self.ports.mps.folders(job);
            let texts = folders.map(|folder| folder.display().to_string());
            // 100 % is what programs have without the variable.
            let share = (wish.percent < 100).then(|| wish.percent.to_string());
            let names = MPS_VARIABLES.map(String::from);
            names
                .into_iter()
                .zip(texts.into_iter().chain(share))
                .collect()
        }))
    }
}
