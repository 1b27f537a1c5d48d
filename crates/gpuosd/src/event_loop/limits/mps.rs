//! MPS of jobs: what [`gpuos_core::limits::mps_step`] is told, and what it says.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::limits::{MpsClient, MpsEffect, MpsEvent, MpsRequest, mps_step};
use gpuos_core::wire::MPS_VARIABLES;
use gpuos_model::gpu_index::GresGpu;

use super::{Prepare, Settings};
use crate::event_loop::effect::{Effect, Effects, Quota, Then};
use crate::event_loop::facts::Facts;
use crate::mps::{Task, folders};

impl Settings {
    /// Tells the step function of MPS.
    pub fn mps(&mut self, event: MpsEvent, on: &Facts<'_>, fx: &mut Effects) {
        for said in mps_step(&mut self.mps, event, on.now.running_ms, on.now.wall_ms) {
            fx.push(match said {
                MpsEffect::Save { revision } => Effect::Save(Then::Mps(revision)),
                MpsEffect::Start { whom, serving } => {
                    let uuids = serving
                        .gpus
                        .iter()
                        .map(|gpu| on.gpus.known((*gpu).into()).uuid);
                    let uuids = uuids.collect();
                    Effect::Mps(Task::Start(whom, serving, uuids))
                }
                MpsEffect::Adopt { whom, process } => Effect::Mps(Task::Adopt(whom, process)),
                MpsEffect::End { whom, serving } => Effect::Mps(Task::End(whom, serving)),
                MpsEffect::Audit(audit) => {
                    let quota = match audit.uid {
                        Some(uid) => Quota::User(Some(uid)),
                        None => Quota::Job,
                    };
                    Effect::Log(audit, quota)
                }
            });
        }
        self.answer(on, fx);
    }

    /// What a step that wants MPS is told: variables for its tasks, or why not. `None`: not known yet.
    pub(super) fn mps_for(
        &self,
        one: &Prepare,
        on: &Facts<'_>,
    ) -> Option<Result<BTreeMap<String, String>, String>> {
        let (job, gpus, asked) = (one.job.clone(), &one.gpus, &one.asked);
        let no = |why| format!("MPS is not there: {why}; the job runs without it");
        let uid = on.jobs.jobs.get(&job).map_or(u32::MAX, |held| held.uid);
        let (Some(wish), Some(whom)) = (asked.mps, MpsClient::of(&job, uid, gpus, asked)) else {
            return Some(Err(no("the job has shares of several GPUs".to_owned())));
        };
        if wish.joint && !asked.shared {
            let why = "Slurm has given it no shards of a GPU";
            return Some(Err(no(why.to_owned())));
        }
        let there = self.mps.outcome(&whom, gpus)?;
        Some(there.map_err(no).map(|()| {
            let [pipe, log] = folders(&self.mps_folder, &whom);
            let [pipe, log] = [pipe, log].map(|folder| folder.display().to_string());
            // 100 % is what programs have without the variable.
            let share = (wish.percent < 100).then(|| wish.percent.to_string());
            let values = [Some(pipe), Some(log), share, memory_share(gpus, wish, on)];
            let told = MPS_VARIABLES.into_iter().zip(values);
            let told = told.filter_map(|(name, value)| Some((name.to_owned(), value?)));
            told.chain(by_uuid(gpus, wish, on)).collect()
        }))
    }
}

/// The part of the memory that goes with a share of a GPU, as MPS reads it; the GPU is the first that its programs see.
fn memory_share(gpus: &BTreeSet<GresGpu>, wish: MpsRequest, on: &Facts<'_>) -> Option<String> {
    let gpu = gpus.first().filter(|_| wish.joint)?;
    let health = on.health.gpus.get(gpu.index())?;
    let total = health.last.as_ref()?.memory_total_mib?;
    let share = total.saturating_mul(u64::from(wish.percent)) / 100;
    (share > 0).then(|| format!("0={share}M"))
}

/// The GPU by NVIDIA's id: a daemon that serves it alone counts it as 0, whatever Slurm does.
fn by_uuid(gpus: &BTreeSet<GresGpu>, wish: MpsRequest, on: &Facts<'_>) -> Option<(String, String)> {
    let gpu = gpus.first().filter(|_| wish.joint)?;
    let uuid = on.gpus.known((*gpu).into()).uuid;
    (!uuid.is_empty()).then(|| ("CUDA_VISIBLE_DEVICES".to_owned(), uuid))
}
