//! What is lent, as clients see it.

use gpuos_core::job::JobId;
use gpuos_core::wire::{
    MemoryGpuStatus, MemoryLeaseStatus, MemoryProgramStatus, MemoryStatus, MemoryTierStatus,
};
use gpuos_memory::lease::{ClientView, GpuView, JobId as Number, Place, Tier};

use super::{Memory, number};
use crate::memory::programs::process;

/// All of it.
pub fn status(memory: &Memory) -> MemoryStatus {
    let view = memory.broker.view();
    MemoryStatus {
        gpus: view.gpus.iter().filter_map(gpu).collect(),
        host: tier(view.host),
        nvme: tier(view.nvme),
        programs: view
            .clients
            .iter()
            .map(|one| program(memory, one))
            .collect(),
        programs_of_others: 0,
    }
}

fn gpu(view: &GpuView) -> Option<MemoryGpuStatus> {
    Some(MemoryGpuStatus {
        gpu: number(view.gpu)?,
        hbm: tier(view.hbm),
        in_turns: view.sliced,
        serialised: view.serialised,
        turn: view.holder.map(job),
    })
}

fn program(memory: &Memory, view: &ClientView) -> MemoryProgramStatus {
    let holder = memory.holders.get(&view.client);
    let job = job(view.job);
    let lease = |(gpu, lease): &(_, gpuos_memory::lease::Lease)| {
        Some(MemoryLeaseStatus {
            gpu: number(*gpu)?,
            hbm: lease.hbm,
            host: lease.host,
            refuge: lease.refuge_host.saturating_add(lease.refuge_nvme),
        })
    };
    // What it says from time to time has what it said of parking in it.
    let all = |way: usize| holder.map_or(0, |it| it.parked[way].max(it.moved[way]));
    let (pid, started) = process(view.client);
    MemoryProgramStatus {
        uid: holder
            .map(|it| it.program.uid)
            .or(memory.jobs.get(&job).map(|lent| lent.uid))
            .unwrap_or(u32::MAX),
        job,
        pid,
        started,
        place: place(view.place).into(),
        busy: view.busy,
        connected: holder.is_some_and(|it| it.line.is_some()),
        pinned: holder.is_some_and(|it| it.pinned),
        stopped: view.stopped,
        leases: view.leases.iter().filter_map(lease).collect(),
        moved_down: all(0),
        moved_up: all(1),
        nvme: view.nvme,
        parks: holder.map_or(0, |it| it.parks),
    }
}

fn job(number: Number) -> JobId {
    JobId::from(u32::try_from(number.0).unwrap_or(0))
}

fn place(place: Place) -> &'static str {
    match place {
        Place::Resident => "resident",
        Place::Parking(_) => "parking",
        Place::Parked(_) => "parked",
        Place::Returning(_) => "returning",
    }
}

fn tier(tier: Tier) -> MemoryTierStatus {
    MemoryTierStatus {
        present: tier.present,
        promised: tier.promised,
    }
}
