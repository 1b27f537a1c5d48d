//! Memory in tiers as Prometheus reads it: what is lent, to how many programs, how host memory is doing, and what programs say of their memory
//! in sums. Whose they are is told on the socket.

use std::collections::BTreeMap;
use std::fmt;

use gpuos_core::wire::MemoryStatus;
use prometheus_client::encoding::DescriptorEncoder;

use super::Snapshot;
use super::text::{Head, Labels, family, gauge};

/// Where a program's memory can be.
const PLACES: [&str; 4] = ["resident", "parking", "parked", "returning"];
/// When a program touched its memory last: within a second, within a minute, longer ago.
const HEAT: [&str; 3] = ["hot", "warm", "cold"];

const fn bytes<'a>(name: &'a str, help: &'a str) -> Head<'a> {
    Head {
        name,
        unit: "bytes",
        help,
        counter: false,
    }
}

/// All of it.
pub(super) fn encode(
    snapshot: &Snapshot,
    node: &Labels,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let memory = &snapshot.memory;
    gpus(memory, node, encoder)?;
    host(memory, node, encoder)?;
    programs(memory, node, encoder)
}

fn gpus(memory: &MemoryStatus, node: &Labels, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let heads = [
        bytes(
            "gpuos_memory_lent",
            "Memory of the GPU that programs with memory in tiers have, those whose turn it is",
        ),
        bytes(
            "gpuos_memory_others",
            "Memory of the GPU that processes use who ask gpuosd for nothing; it is lent to nobody",
        ),
        Head {
            name: "gpuos_memory_link",
            unit: "bytes_per_second",
            help: "What programs move between the GPU and the host for memory in tiers, by their own word",
            counter: false,
        },
    ];
    for (which, head) in heads.iter().enumerate() {
        family(encoder, head, |family| {
            memory.gpus.iter().try_for_each(|gpu| {
                let mut labels = node.clone();
                labels.push(("gpu", gpu.gpu.to_string()));
                let value = [gpu.hbm.promised, gpu.others, gpu.link][which];
                family.value(&labels, value as f64)
            })
        })?;
    }
    let head = gauge(
        "gpuos_memory_in_turns",
        "Whether jobs have the GPU in turns: all of them together do not fit",
    );
    family(encoder, &head, |family| {
        memory.gpus.iter().try_for_each(|gpu| {
            let mut labels = node.clone();
            labels.push(("gpu", gpu.gpu.to_string()));
            family.value(&labels, f64::from(u8::from(gpu.in_turns)))
        })
    })
}

fn host(memory: &MemoryStatus, node: &Labels, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let head = bytes(
        "gpuos_memory_host_lent",
        "Host memory that such programs have, also for while they are parked",
    );
    family(encoder, &head, |family| {
        family.value(node, memory.host.promised as f64)
    })?;
    let head = bytes(
        "gpuos_memory_nvme_lent",
        "NVMe that such programs have for while they are parked",
    );
    family(encoder, &head, |family| {
        family.value(node, memory.nvme.promised as f64)
    })?;
    let pressure = &memory.pressure;
    let head = bytes(
        "gpuos_memory_host_available",
        "Host memory that could be had without swapping, by the kernel's guess",
    );
    family(encoder, &head, |family| {
        let value = pressure.available.map(|bytes| bytes as f64);
        value.map_or(Ok(()), |value| family.value(node, value))
    })?;
    let head = gauge(
        "gpuos_memory_pressure",
        "1 while the node is short of host memory, and programs with memory in tiers give some back",
    );
    family(encoder, &head, |family| {
        let calm = ["", "calm"].contains(&pressure.step.as_str());
        family.value(node, f64::from(u8::from(!calm)))
    })?;
    let head = gauge(
        "gpuos_memory_short_jobs",
        "Jobs with memory in tiers that are short of their own host memory",
    );
    family(encoder, &head, |family| {
        family.value(node, pressure.short.len() as f64)
    })
}

fn programs(
    memory: &MemoryStatus,
    node: &Labels,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let mut counts: BTreeMap<&str, u64> = PLACES.map(|place| (place, 0)).into();
    let mut heat = [0_f64; 3];
    let mut slower = [1_f64; 2];
    for program in &memory.programs {
        *counts.entry(&program.place).or_default() += 1;
        for (sum, bytes) in heat.iter_mut().zip(program.figures.heat) {
            *sum += bytes as f64;
        }
        for (most, told) in slower.iter_mut().zip(program.figures.slower) {
            *most = most.max(told as f64 / 1000.0);
        }
    }
    let head = gauge(
        "gpuos_memory_programs",
        "Programs with memory in tiers, by where their memory is",
    );
    family(encoder, &head, |family| {
        counts.iter().try_for_each(|(place, count)| {
            let mut labels = node.clone();
            labels.push(("place", (*place).to_owned()));
            family.value(&labels, *count as f64)
        })
    })?;
    let head = gauge(
        "gpuos_memory_programs_stopped",
        "Of these, those that are suspended with their job or stopped by a signal: they keep what they have",
    );
    let stopped = memory.programs.iter().filter(|program| program.stopped);
    family(encoder, &head, |family| {
        family.value(node, stopped.count() as f64)
    })?;
    let head = bytes(
        "gpuos_memory_heat",
        "Memory in tiers by when it was touched last, by the programs' own word",
    );
    family(encoder, &head, |family| {
        HEAT.iter().zip(heat).try_for_each(|(heat, bytes)| {
            let mut labels = node.clone();
            labels.push(("heat", (*heat).to_owned()));
            family.value(&labels, bytes)
        })
    })?;
    let head = Head {
        name: "gpuos_memory_slowdown",
        unit: "ratio",
        help: "How many times as long the slowest program takes for moves, by what it moved and its link, and as it measured",
        counter: false,
    };
    family(encoder, &head, |family| {
        let kinds = ["predicted", "measured"];
        kinds.iter().zip(slower).try_for_each(|(kind, slower)| {
            let mut labels = node.clone();
            labels.push(("kind", (*kind).to_owned()));
            family.value(&labels, slower)
        })
    })
}
