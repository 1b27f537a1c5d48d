//! MPS of jobs: what [`gpuos_core::limits::mps_step`] is told, and what it says.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::limits::{Asked, MpsEffect, MpsEvent, MpsWish, Whom, mps_step};
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
                MpsEffect::Start { whom, serving } => {
                    let uuids = serving.gpus.iter().map(|gpu| self.known(*gpu).uuid);
                    let uuids = uuids.collect();
                    self.ports.mps.begin(Task::Start(whom, serving, uuids));
                }
                MpsEffect::Adopt { whom, process } => {
                    self.ports.mps.begin(Task::Adopt(whom, process));
                }
                MpsEffect::End { whom, serving } => {
                    self.ports.mps.begin(Task::End(whom, serving));
                }
                MpsEffect::Audit(audit) => {
                    let uid = audit.uid.or_else(|| self.user_of(audit.job));
                    if self.is_heard(uid) {
                        self.log(&audit, &mut lines);
                    }
                }
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
        asked: &Asked,
    ) -> Option<Result<BTreeMap<String, String>, String>> {
        let no = |why| format!("MPS is not there: {why}; the job runs without it");
        let uid = self.jobs.jobs.get(&job).map_or(u32::MAX, |held| held.uid);
        let (Some(wish), Some(whom)) = (asked.mps, Whom::of(job, uid, gpus, asked)) else {
            return Some(Err(no("the job has shares of several GPUs".to_owned())));
        };
        if wish.joint && !asked.shared {
            let why = "Slurm has given it no shards of a GPU";
            return Some(Err(no(why.to_owned())));
        }
        let there = self.mps.settled(whom, gpus)?;
        Some(there.map_err(no).map(|()| {
            let [pipe, log] = self.ports.mps.folders(whom);
            let [pipe, log] = [pipe, log].map(|folder| folder.display().to_string());
            // 100 % is what programs have without the variable.
            let share = (wish.percent < 100).then(|| wish.percent.to_string());
            let values = [Some(pipe), Some(log), share, self.memory_share(gpus, wish)];
            let told = MPS_VARIABLES.into_iter().zip(values);
            let told = told.filter_map(|(name, value)| Some((name.to_owned(), value?)));
            told.chain(self.by_uuid(gpus, wish)).collect()
        }))
    }

    /// The part of the memory that goes with a share of a GPU, as MPS reads it; the GPU is the first that its
    /// programs see.
    fn memory_share(&self, gpus: &BTreeSet<u8>, wish: MpsWish) -> Option<String> {
        let gpu = gpus.first().filter(|_| wish.joint)?;
        let health = self.health.gpus.get(usize::from(*gpu))?;
        let total = health.last.as_ref()?.memory_total_mib?;
        let share = total.saturating_mul(u64::from(wish.percent)) / 100;
        (share > 0).then(|| format!("0={share}M"))
    }

    /// The GPU by NVIDIA's id: a daemon that serves it alone counts it as 0, whatever Slurm does.
    fn by_uuid(&self, gpus: &BTreeSet<u8>, wish: MpsWish) -> Option<(String, String)> {
        let gpu = gpus.first().filter(|_| wish.joint)?;
        let uuid = self.known(*gpu).uuid;
        (!uuid.is_empty()).then(|| ("CUDA_VISIBLE_DEVICES".to_owned(), uuid))
    }
}
