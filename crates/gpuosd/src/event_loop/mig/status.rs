//! How the pool stands, as clients see it.

use std::collections::BTreeMap;

use gpuos_core::mig::{Claim, Phase, Shown};
use gpuos_core::wire::{MigGpuStatus, MigInstance, MigStatus};
use gpuos_model::gpu_index::NvmlIndex;
use gpuos_model::mig::{MigPlacement, Profile};

use super::memory::Newest;
use super::{Mig, health};
use crate::event_loop::facts::Facts;
use crate::metrics::Slice;
use crate::mig::pool::Pool;

/// The pool.
pub fn status(mig: &Mig, on: &Facts<'_>) -> MigStatus {
    let Some(pool) = mig.division.pool() else {
        return MigStatus {
            unread: !mig.division.is_configured(),
            ..MigStatus::default()
        };
    };
    let gpus = pool.gpus.iter();
    MigStatus {
        board: pool.board.clone(),
        gpus: gpus.map(|gpu| of_gpu(mig, pool, *gpu, on)).collect(),
        unread: false,
    }
}

/// Instances that are there, for metrics.
pub fn slices(mig: &Mig, on: &Facts<'_>) -> Vec<Slice> {
    let gpus = status(mig, on).gpus.into_iter();
    let each = gpus.flat_map(|gpu| {
        let there = gpu.instances.into_iter();
        let number = mig.division.number(gpu.gpu);
        there.filter_map(move |one| {
            Some(Slice {
                gpu: gpu.gpu,
                number,
                gi: one.gi?,
                uuid: one.uuid?,
                profile: one.profile,
                placement: one.placement,
                job: one.job,
                memory_mib: one.memory_total_mib.zip(one.memory_used_mib),
                load: one.load,
            })
        })
    });
    each.collect()
}

fn of_gpu(mig: &Mig, pool: &Pool, gpu: NvmlIndex, on: &Facts<'_>) -> MigGpuStatus {
    let newest: Newest<'_> = mig.memory.newest(on.interval, on.now.at);
    let claims = mig.boards.claims(gpu);
    let view = mig.boards.view(gpu);
    let (shown, pids) = match view {
        Some(Ok(view)) => (view.shown.clone(), view.pids.clone()),
        _ => (Vec::new(), BTreeMap::new()),
    };
    let owner = |instance: &Shown| {
        claims.iter().find(|claim| {
            (claim.profile, claim.placement) == (instance.profile, instance.placement)
        })
    };
    let of = |gi: &u32| pids.get(gi).cloned().unwrap_or_default();
    let mut instances: Vec<MigInstance> = claims
        .iter()
        .map(|claim| {
            let seen = shown
                .iter()
                .find(|one| (one.profile, one.placement) == (claim.profile, claim.placement));
            let (gi, ci, uuid) = match &claim.phase {
                Phase::Ready { gi, ci, uuid } => (Some(*gi), Some(*ci), Some(uuid.clone())),
                Phase::Made { gi } => (Some(*gi), None, None),
                Phase::Wanted | Phase::Going => (seen.map(|one| one.gi), None, None),
            };
            let memory = newest.memory(gpu, uuid.as_deref());
            let there = uuid.is_some();
            MigInstance {
                profile: pool.profile(claim.profile),
                placement: claim.placement,
                gi,
                ci,
                uuid,
                job: Some(claim.job.clone()),
                phase: phase(claim).into(),
                foreign: false,
                others: false,
                pids: gi.iter().flat_map(of).collect(),
                memory_total_mib: memory.as_ref().ok().map(|[total, _]| *total),
                memory_used_mib: memory.as_ref().ok().map(|[_, used]| *used),
                memory_unknown: memory.err(),
                load: newest.load(gpu, gi.filter(|_| there)),
            }
        })
        .collect();
    let strange = shown.iter().filter(|instance| owner(instance).is_none());
    instances.extend(strange.map(|instance| {
        let compute = instance.computes.first();
        let memory = newest.memory(gpu, compute.map(|compute| compute.1.as_str()));
        MigInstance {
            profile: pool.profile(instance.profile),
            placement: instance.placement,
            gi: Some(instance.gi),
            ci: compute.map(|compute| compute.0),
            uuid: compute.map(|compute| compute.1.clone()),
            job: None,
            phase: "foreign".into(),
            foreign: true,
            others: false,
            pids: of(&instance.gi),
            memory_total_mib: memory.as_ref().ok().map(|[total, _]| *total),
            memory_used_mib: memory.as_ref().ok().map(|[_, used]| *used),
            memory_unknown: memory.err(),
            load: newest.load(gpu, compute.map(|_| instance.gi)),
        }
    }));
    instances.sort_by_key(|instance| instance.placement);
    let first = pool.first(gpu).unwrap_or(0);
    let held = mig.held(gpu);
    let taken: Vec<MigPlacement> = instances
        .iter()
        .map(|one| one.placement)
        .chain(held.iter().map(|held| held.placement))
        .collect();
    let given = mig.records.granted.values().fold(0, |all, bits| all | bits);
    let own = |slice: u8| {
        given
            & 1u64
                .checked_shl(first as u32 + u32::from(slice))
                .unwrap_or(0)
            != 0
    };
    let switchable = mig.division.switchable().get(&gpu);
    let holder = switchable.and_then(|number| on.jobs.on(*number).first().cloned());
    let clear = |placement: MigPlacement| {
        let slices = placement.start..placement.start.saturating_add(placement.size);
        holder.is_none()
            && taken.iter().all(|other| !other.overlaps(placement))
            && slices.into_iter().all(|s| !own(s))
    };
    let slices = pool.geometry.slices();
    let free = (0..slices).filter(|start| {
        clear(MigPlacement {
            start: *start,
            size: 1,
        })
    });
    let fit = |profile: &Profile| {
        let name = &profile.name;
        let there = instances.iter().filter(|one| one.profile == *name).count() as u32;
        let most = u32::from(profile.most).saturating_sub(there);
        (name.clone(), fits(profile, &clear).min(most))
    };
    MigGpuStatus {
        gpu,
        first: u8::try_from(first).unwrap_or(u8::MAX),
        slices,
        ready: mig.is_known() && matches!(view, Some(Ok(_))),
        free: free.collect(),
        fits: pool.geometry.profiles().iter().map(fit).collect(),
        trouble: health::out(gpu, &mig.division, on.health).or(match view {
            Some(Ok(view)) => view.unfit.clone(),
            Some(Err(why)) => Some(why.clone()),
            None => Some("NVIDIA's library has not shown it yet".into()),
        }),
        instances,
        switchable: switchable.is_some(),
        whole: switchable.is_some() && matches!(view, Some(Ok(view)) if view.whole),
        others: false,
        holder,
    }
}

fn phase(claim: &Claim) -> &'static str {
    match claim.phase {
        Phase::Wanted => "wanted",
        Phase::Made { .. } => "made",
        Phase::Ready { .. } => "ready",
        Phase::Going => "going",
    }
}

/// How many placements of a profile are clear that do not overlap.
fn fits(profile: &Profile, clear: &impl Fn(MigPlacement) -> bool) -> u32 {
    let mut end = 0;
    let mut count = 0;
    for &start in &profile.starts {
        let size = profile.size;
        if start >= end && clear(MigPlacement { start, size }) {
            (count, end) = (count + 1, start.saturating_add(size));
        }
    }
    count
}
