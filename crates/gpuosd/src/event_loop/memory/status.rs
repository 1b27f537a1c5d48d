//! What is lent, as clients see it.

use std::collections::BTreeMap;
use std::time::Instant;

use gpuos_core::job::JobId;
use gpuos_core::wire::{
    MemoryFigures, MemoryGpuStatus, MemoryLeaseStatus, MemoryPressureStatus, MemoryProgramStatus,
    MemoryStatus, MemoryTierStatus,
};
use gpuos_memory::lease::{ClientView, GpuId, GpuView, JobId as Number, Place, Tier, View};

use super::jobs::named_by;
use super::{Memory, number};
use crate::memory::programs::process;

/// All of it, as it is now.
pub fn status(memory: &Memory, now: Instant) -> MemoryStatus {
    let view = memory.broker.view();
    let host = &memory.machine.seen.host;
    let links = links(memory, &view, now);
    let gpu = |gpu: &GpuView| {
        let others = memory.machine.others.get(&gpu.gpu).copied();
        let link = links.get(&gpu.gpu).copied();
        self::gpu(memory, gpu, (others.unwrap_or(0), link.unwrap_or(0)))
    };
    MemoryStatus {
        gpus: view.gpus.iter().filter_map(gpu).collect(),
        host: tier(view.host),
        nvme: tier(view.nvme),
        pressure: MemoryPressureStatus {
            step: view.rung.into(),
            available: host.all.map(|room| room.available),
            stalled: host.stalled,
            short: view
                .short
                .iter()
                .map(|number| job(memory, *number))
                .collect(),
        },
        programs: view
            .clients
            .iter()
            .map(|one| program(memory, one, now))
            .collect(),
        unasked: memory.machine.without.status(),
        programs_of_others: 0,
    }
}

/// Bytes a second over each GPU's link. Who has several GPUs says what it moved in all: an equal part counts for each.
fn links(memory: &Memory, view: &View, now: Instant) -> BTreeMap<GpuId, u64> {
    let mut links: BTreeMap<GpuId, u64> = BTreeMap::new();
    for client in &view.clients {
        if let Some(holder) = memory.holders.get(&client.client) {
            let each = holder.says.rate(now) / client.leases.len().max(1) as u64;
            for (gpu, _) in &client.leases {
                let sum = links.entry(*gpu).or_default();
                *sum = sum.saturating_add(each);
            }
        }
    }
    links
}

fn gpu(memory: &Memory, view: &GpuView, (others, link): (u64, u64)) -> Option<MemoryGpuStatus> {
    Some(MemoryGpuStatus {
        others,
        link,
        gpu: number(view.gpu)?,
        hbm: tier(view.hbm),
        in_turns: view.sliced,
        serialised: view.serialised,
        turn: view.holder.map(|number| job(memory, number)),
    })
}

fn program(memory: &Memory, view: &ClientView, now: Instant) -> MemoryProgramStatus {
    let holder = memory.holders.get(&view.client);
    let job = job(memory, view.job);
    let lease = |(gpu, lease): &(_, gpuos_memory::lease::Lease)| {
        Some(MemoryLeaseStatus {
            gpu: number(*gpu)?,
            hbm: lease.hbm,
            host: lease.host,
            refuge: lease.refuge_host.saturating_add(lease.refuge_nvme),
        })
    };
    // What it says from time to time has what it said of parking in it.
    let all = |way: usize| holder.map_or(0, |it| it.parked[way].max(it.says.moved[way]));
    let figures = holder.map(|it| MemoryFigures {
        heat: it.says.figures.heat,
        fetched: it.says.figures.fetched,
        evicted: it.says.figures.evicted,
        pressed: it.says.figures.pressed,
        slower: it.says.slower(now, memory.link),
    });
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
        by_driver: view.by_driver,
        leases: view.leases.iter().filter_map(lease).collect(),
        moved_down: all(0),
        moved_up: all(1),
        nvme: view.nvme,
        parks: holder.map_or(0, |it| it.parks),
        squeezed: view.squeezed,
        figures: figures.unwrap_or_default(),
    }
}

fn job(memory: &Memory, number: Number) -> JobId {
    named_by(number, memory.jobs.keys()).unwrap_or_default()
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
