//! The state as clients see it.

use std::collections::BTreeSet;

use gpuos_core::health::{Action, GpuHealth, Hold, Job, NodeHealth, Service, Verb};
use gpuos_core::job::JobId;
use gpuos_core::limits::{Limits, Mps, MpsClient, Serving};
use gpuos_core::peers::PeerView;
use gpuos_core::wire::{CapStatus, FaultStatus, GpuStatus, PeerStatus};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::node_gpu::NodeGpu;

use crate::gpus::GpuIdentity;
use crate::isolation::keep::Keeper;
use crate::jobs::Table;

/// The GPUs of GRES gpu.
pub fn gpus(
    health: &NodeHealth,
    found: &[GpuIdentity],
    jobs: &Table,
    (limits, mps): (&Limits, &Mps),
    isolation: &Keeper,
) -> Vec<GpuStatus> {
    let one = |(gres, gpu): (GresGpu, &GpuHealth)| GpuStatus {
        cap: cap(limits, mps, jobs, gres),
        jobs: jobs.on(gres),
        processes: isolation.on(gres),
        ..own(health, found, (gres.into(), gpu))
    };
    let numbers = (0..).map_while(GresGpu::new);
    numbers.zip(&health.gpus).map(one).collect()
}

/// The GPUs of its pool. Who is on their instances is told by [`gpuos_core::wire::Request::Mig`].
pub fn pool(health: &NodeHealth, found: &[GpuIdentity], holders: &[Job]) -> Vec<GpuStatus> {
    let one = |(index, gpu): (&NodeGpu, &GpuHealth)| {
        let on = holders.iter().filter(|job| job.gpus.contains(index));
        let jobs: BTreeSet<JobId> = on.map(|job| job.job.clone()).collect();
        GpuStatus {
            jobs: jobs.into_iter().collect(),
            ..own(health, found, (*index, gpu))
        }
    };
    health.pool.iter().map(one).collect()
}

/// What a GPU shows itself, and what the rules make of it.
fn own(
    health: &NodeHealth,
    found: &[GpuIdentity],
    (index, gpu): (NodeGpu, &GpuHealth),
) -> GpuStatus {
    let found = found.iter().find(|found| found.number == index);
    let text =
        |of: fn(&GpuIdentity) -> &String| found.map_or_else(String::new, |gpu| of(gpu).clone());
    let last = gpu.last.as_ref();
    GpuStatus {
        uuid: text(|gpu| &gpu.uuid),
        name: text(|gpu| &gpu.name),
        pci: text(|gpu| &gpu.pci),
        state: health.state(index).word().replace(' ', "-"),
        reason: reason(gpu),
        by_uid: gpu.hold.as_ref().map(|hold| hold.uid),
        temperature_c: last.and_then(|sample| sample.celsius),
        power_mw: last.and_then(|sample| sample.power_mw),
        utilisation: last.and_then(|sample| sample.busy_percent),
        memory_mib: last.and_then(|sample| sample.memory_used_mib),
        faults: faults(gpu),
        ..GpuStatus::new(index)
    }
}

/// What is set on a GPU, and what is done for its job.
fn cap(limits: &Limits, mps: &Mps, jobs: &Table, gpu: GresGpu) -> Option<CapStatus> {
    let kept = limits
        .applied()
        .get(&gpu)
        .map(|kept| (kept.job.clone(), kept.text()));
    let serves = |serving: &Serving| serving.gpus.contains(&gpu) && serving.process.is_some();
    let serving = mps.servers().iter().find(|(_, serving)| serves(serving));
    let serving = serving.and_then(|(whom, serving)| {
        let job = match whom {
            MpsClient::Job(job) => job.clone(),
            // The first of those whom it serves.
            MpsClient::Sharers { uid, .. } => {
                let mut on = jobs.on(gpu).into_iter();
                on.find(|job| jobs.jobs.get(job).is_some_and(|held| held.uid == *uid))?
            }
        };
        Some((job, serving.text()))
    });
    let (job, text) = match (kept, serving) {
        (Some((job, text)), Some((of, mps))) if job == of => (job, format!("{text}, {mps}")),
        (Some(one), _) | (None, Some(one)) => one,
        (None, None) => return None,
    };
    Some(CapStatus { job, text })
}

/// The other nodes of this node's jobs.
pub fn peers(peers: &[PeerView]) -> Vec<PeerStatus> {
    let one = |peer: &PeerView| PeerStatus {
        node: peer.node.clone(),
        state: peer.state.word().into(),
        heard_ms_ago: peer.last_seen_ms_ago,
        jobs: peer.jobs.clone(),
    };
    peers.iter().map(one).collect()
}

fn faults(gpu: &GpuHealth) -> Vec<FaultStatus> {
    let fault = |cause: &gpuos_core::health::Cause| FaultStatus {
        rule: cause.rule.clone(),
        message: cause.text.clone(),
        at_ms: cause.since_ms,
    };
    gpu.causes.iter().map(fault).collect()
}

/// Why a GPU is not well, the strongest reason first.
pub fn reason(gpu: &GpuHealth) -> String {
    if let Some(hold) = &gpu.hold {
        return held(hold);
    }
    if let Some(why) = &gpu.offline {
        return why.clone();
    }
    let heavy = gpu
        .causes
        .iter()
        .filter(|cause| cause.action > Action::Warn);
    let worst = heavy.max_by_key(|cause| cause.action);
    match (worst, gpu.service) {
        (Some(cause), _) => cause.text.clone(),
        // Nothing speaks against it any more.
        (None, Service::Drained | Service::Checking) => {
            "it comes back once a check has passed".into()
        }
        (None, _) => String::new(),
    }
}

/// An administrator's word, in words.
pub fn held(hold: &Hold) -> String {
    let verb = match hold.verb {
        Verb::Drain => "drained",
        Verb::Online => "put online",
        Verb::Offline => "set offline",
    };
    match hold.reason.is_empty() {
        true => format!("{verb} by uid {}", hold.uid),
        false => format!("{verb} by uid {}: {}", hold.uid, hold.reason),
    }
}
