//! GPUs of the pool under the health rules: who has instances there, how many there are, and where none are made.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::health::{Action, Event, GpuHealth, GpuState, Job, NodeHealth};
use gpuos_core::job::JobId;
use gpuos_core::limits::Holder;
use gpuos_core::mig::Phase;
use gpuos_core::step::StepId;
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::job::Job as Record;

use super::Mig;
use super::boards::Boards;
use super::division::Division;
use crate::event_loop::facts::Facts;
use crate::mig::pool::{Grant, Pool};
use crate::status;

/// Jobs with slices, for the health rules: by Slurm's records, and each step with the slices that it was started with.
/// What no step of srun has, the batch script may use.
pub fn holders(mig: &Mig, health: &NodeHealth) -> Vec<Job> {
    let Some(pool) = mig.division.pool() else {
        // Before gpuos.toml is read, those of before: who is heard of again is no new one.
        let of_pool =
            |job: &&Job| !job.instances.is_empty() || job.gpus.iter().any(|gpu| gpu.is_of_pool());
        let before = health.jobs.iter().filter(of_pool);
        return match mig.division.is_configured() {
            true => Vec::new(),
            false => before.cloned().collect(),
        };
    };
    let records = &mig.records;
    let given = records.granted.iter().filter(|(_, bits)| **bits != 0);
    let mut all: BTreeMap<JobId, u64> = given.map(|(job, bits)| (job.clone(), *bits)).collect();
    let grants = records.grants.iter();
    all.extend(grants.map(|(job, grant)| (job.clone(), grant.bits)));
    let mut list = Vec::new();
    for (job, bits) in all {
        let grant = records.grants.get(&job);
        let told = records.requeue.get(&job).copied();
        // Who nobody says may be requeued is not.
        let requeue = grant.map(|grant| grant.requeue).or(told).unwrap_or(false);
        let (mut rest, mut script) = (bits, None);
        let mut parts = Vec::new();
        for (step, own) in mig.steps.running(&job) {
            if (StepId {
                job: job.clone(),
                step,
            })
            .is_special()
            {
                script = Some(step);
                continue;
            }
            rest &= !own;
            parts.push((Some(step), own & bits));
        }
        parts.push((script, rest));
        for (step, bits) in parts.into_iter().filter(|(_, bits)| *bits != 0) {
            list.push(Job {
                job: job.clone(),
                step,
                gpus: mig.division.numbers(pool, bits),
                instances: instances(mig, &job, (pool, grant), bits),
                requeue,
                ..Job::default()
            });
        }
    }
    list
}

/// Who decides about power limits, clocks and MPS: not of GPUs that are still divided, and no job all of whose steps wait
/// for GPUs that are not known to be whole.
pub fn holders_of_whole(mig: &Mig, on: &Facts<'_>) -> Vec<Holder> {
    let mut all = on.jobs.holders();
    let switchable = mig.division.switchable();
    let divided = switchable
        .iter()
        .filter(|(gpu, _)| mig.boards.is_whole(**gpu) == Some(false));
    let divided: BTreeSet<GresGpu> = divided.map(|(_, number)| *number).collect();
    for holder in &mut all {
        holder.gpus.retain(|gpu| !divided.contains(gpu));
    }
    let to_come = |(gpu, _): &(&NvmlIndex, &GresGpu)| !mig.is_shown_whole(**gpu);
    let to_come = switchable.iter().filter(to_come);
    let to_come: BTreeSet<GresGpu> = to_come.map(|(_, number)| *number).collect();
    all.retain(|holder| {
        let held = on.jobs.jobs.get(&holder.job);
        let steps = held.map_or(0, |held| held.steps.len());
        let own = mig.steps.waiting.iter();
        let own = own.filter(|one| one.id.job == holder.job);
        let waits = own.filter(|one| !one.gpus.is_disjoint(&to_come)).count();
        waits == 0 || waits < steps
    });
    all
}

/// The GPU instances of a job that lie in these bits.
fn instances(
    mig: &Mig,
    job: &JobId,
    (pool, grant): (&Pool, Option<&Grant>),
    bits: u64,
) -> Vec<(NodeGpu, u32)> {
    let mut found = Vec::new();
    for piece in grant.iter().flat_map(|grant| &grant.pieces) {
        if pool.bits(piece) & bits == 0 {
            continue;
        }
        let claims = mig.boards.claims(piece.gpu);
        let own = claims
            .iter()
            .filter(|claim| claim.job == *job && claim.placement == piece.placement);
        let gis = own.filter_map(|claim| match claim.phase {
            Phase::Made { gi } | Phase::Ready { gi, .. } => Some(gi),
            Phase::Wanted | Phase::Going => None,
        });
        found.extend(gis.map(|gi| (mig.division.number(piece.gpu), gi)));
    }
    found
}

/// How many instances there are on a GPU, as NVML shows them and as the journal has them: what the rules are told.
pub fn count(
    gpu: NvmlIndex,
    (division, boards): (&Division, &Boards),
    health: &NodeHealth,
) -> Option<Event> {
    let number = division.number(gpu);
    let view = boards.view(gpu)?.ok()?;
    health.gpu(number)?;
    let count = view.shown.len().max(boards.claims(gpu).len()) as u32;
    Some(Event::Instances { gpu: number, count })
}

/// Whether a reset of a GPU waits until its instances are gone.
pub fn waits_for_reset(gpu: NvmlIndex, division: &Division, health: &NodeHealth) -> bool {
    let number = division.number(gpu);
    let of = health.gpu(number);
    let when_idle = |of: &GpuHealth| {
        let mut causes = of.causes.iter();
        causes.any(|cause| cause.action == Action::ResetWhenIdle)
    };
    let out = health.state(number).is_out();
    of.is_some_and(|of| out || when_idle(of))
}

/// Why no instance is to be made on a GPU: it is out of service. One that an administrator drains lets jobs run out, and
/// their later steps with them.
pub fn out(gpu: NvmlIndex, division: &Division, health: &NodeHealth) -> Option<String> {
    let number = division.number(gpu);
    let of = health.gpu(number)?;
    let state = health.state(number);
    let failed = of.causes.iter().any(|cause| cause.action.takes_out());
    if !state.is_out() || state == GpuState::Draining && !failed {
        return None;
    }
    let why = match status::reason(of) {
        why if why.is_empty() => String::new(),
        why => format!(": {why}"),
    };
    Some(format!(
        "GPU {gpu} is out of service ({}){why}",
        state.word()
    ))
}

/// The numbers in GRES `gpu` of MIG-switchable GPUs of which a job has slices, by its record.
pub fn on_moving(division: &Division, node: &str, job: &Record) -> Vec<GresGpu> {
    let Some(pool) = division.pool() else {
        return Vec::new();
    };
    let numbers = division.numbers(pool, pool.has(node, job).0).into_iter();
    numbers.filter_map(NodeGpu::gres).collect()
}
