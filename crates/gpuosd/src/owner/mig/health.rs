//! GPUs of the pool under the health rules: who has instances there, how many there are, and where none are made.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpuos_core::health::{Action, Event, GpuState, Job, number};
use gpuos_core::mig::Phase;
use gpuos_core::step::StepId;
use gpuos_workload::job::Job as Record;

use super::super::Owner;
use crate::mig::pool::{Grant, Pool};
use crate::status;

/// Where a reset waits for it, instances are counted so often.
const COUNT_EVERY: Duration = Duration::from_secs(5);

impl Owner {
    /// Jobs with slices, for the health rules: by Slurm's records, and each step with the slices that it was started with.
    /// What no step of srun has, the batch script may use.
    pub(in super::super) fn mig_holders(&self) -> Vec<Job> {
        let Some(pool) = &self.mig.pool else {
            // Before gpuos.toml is read, those of before: who is heard of again is no new one.
            let of_pool = |job: &&Job| {
                !job.instances.is_empty() || job.gpus.iter().any(|gpu| number::is_of_pool(*gpu))
            };
            let before = self.health.jobs.iter().filter(of_pool);
            return match self.mig.configured {
                true => Vec::new(),
                false => before.cloned().collect(),
            };
        };
        let given = self.mig.given.iter().filter(|(_, bits)| **bits != 0);
        let mut all: BTreeMap<u32, u64> = given.map(|(job, bits)| (*job, *bits)).collect();
        let grants = self.mig.grants.iter();
        all.extend(grants.map(|(job, grant)| (*job, grant.bits)));
        let mut list = Vec::new();
        for (job, bits) in all {
            let grant = self.mig.grants.get(&job);
            let told = self.mig.requeue.get(&job).copied();
            // Who nobody says may be requeued is not.
            let requeue = grant.map(|grant| grant.requeue).or(told).unwrap_or(false);
            let none = BTreeMap::new();
            let steps = self.mig.steps.get(&job).unwrap_or(&none);
            let (mut rest, mut script) = (bits, None);
            let mut parts = Vec::new();
            for (step, own) in steps {
                if (StepId { job, step: *step }).is_special() {
                    script = Some(*step);
                    continue;
                }
                rest &= !own;
                parts.push((Some(*step), own & bits));
            }
            parts.push((script, rest));
            for (step, bits) in parts.into_iter().filter(|(_, bits)| *bits != 0) {
                list.push(Job {
                    job,
                    step,
                    gpus: self.mig.numbers(pool, bits),
                    instances: self.mig_instances(job, (pool, grant), bits),
                    requeue,
                    ..Job::default()
                });
            }
        }
        list
    }

    /// The GPU instances of a job that lie in these bits.
    fn mig_instances(
        &self,
        job: u32,
        (pool, grant): (&Pool, Option<&Grant>),
        bits: u64,
    ) -> Vec<(u8, u32)> {
        let mut found = Vec::new();
        for piece in grant.iter().flat_map(|grant| &grant.pieces) {
            let Some(carver) = self.mig.carvers.get(&piece.gpu) else {
                continue;
            };
            if pool.bits(piece) & bits == 0 {
                continue;
            }
            let claims = carver.claims();
            let own = claims
                .iter()
                .filter(|claim| claim.job == job && claim.window == piece.window);
            let gis = own.filter_map(|claim| match claim.phase {
                Phase::Made { gi } | Phase::Ready { gi, .. } => Some(gi),
                Phase::Wanted | Phase::Going => None,
            });
            found.extend(gis.filter_map(|gi| Some((self.mig.number(piece.gpu)?, gi))));
        }
        found
    }

    /// Tells the rules how many instances there are, as NVML shows them and as the journal has them.
    pub(super) fn mig_count(&mut self, gpu: u8) {
        let (Some(number), Some(Ok(view))) = (self.mig.number(gpu), self.mig.views.get(&gpu))
        else {
            return;
        };
        if self.health.gpu(number).is_none() {
            return;
        }
        let claims = self.mig.carvers.get(&gpu);
        let claims = claims.map_or(0, |carver| carver.claims().len());
        let count = view.shown.len().max(claims) as u32;
        self.apply(Event::Instances { gpu: number, count });
    }

    /// Looks again at the GPUs that wait for a reset.
    pub(super) fn mig_count_again(&mut self, now: Instant) {
        let late = |at: Instant| now.duration_since(at) >= COUNT_EVERY;
        if !self.mig.counted.is_none_or(late) {
            return;
        }
        self.mig.counted = Some(now);
        let waits = |gpu: &u8| {
            let number = self.mig.number(*gpu);
            let health = number.and_then(|number| self.health.gpu(number));
            let when_idle = |health: &gpuos_core::health::GpuHealth| {
                let mut causes = health.causes.iter();
                causes.any(|cause| cause.action == Action::ResetWhenIdle)
            };
            let out = number.is_some_and(|number| self.health.state(number).is_out());
            health.is_some_and(|health| out || when_idle(health))
        };
        let all = self.mig.carvers.keys().copied();
        for gpu in all.filter(waits).collect::<Vec<u8>>() {
            self.mig_look(gpu);
        }
    }

    /// Why no instance is to be made on a GPU: it is out of service. One that an administrator drains lets jobs run out, and
    /// their later steps with them.
    pub(super) fn mig_out(&self, gpu: u8) -> Option<String> {
        let number = self.mig.number(gpu)?;
        let health = self.health.gpu(number)?;
        let state = self.health.state(number);
        let failed = health.causes.iter().any(|cause| cause.action.takes_out());
        if !state.is_out() || state == GpuState::Draining && !failed {
            return None;
        }
        let why = match status::reason(health) {
            why if why.is_empty() => String::new(),
            why => format!(": {why}"),
        };
        Some(format!(
            "GPU {gpu} is out of service ({}){why}",
            state.word()
        ))
    }
}

impl super::Mig {
    /// The numbers in GRES `gpu` of GPUs that move and of which a job has slices, by its record.
    pub(in super::super) fn on_moving(&self, node: &str, job: &Record) -> Vec<u8> {
        let Some(pool) = &self.pool else {
            return Vec::new();
        };
        let mut numbers = self.numbers(pool, pool.has(node, job).0);
        numbers.retain(|gpu| !number::is_of_pool(*gpu));
        numbers
    }

    /// The numbers of the GPUs on which these bits lie.
    pub(super) fn numbers(&self, pool: &Pool, bits: u64) -> Vec<u8> {
        let on = pool.gpus.iter().copied();
        let on = on.filter(|gpu| pool.all_bits(*gpu) & bits != 0);
        let on: BTreeSet<u8> = on.filter_map(|gpu| self.number(gpu)).collect();
        on.into_iter().collect()
    }
}
