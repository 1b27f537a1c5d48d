//! Memory in tiers as Prometheus reads it: what is lent, and to how many programs. Whose they are is told on the socket.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::Snapshot;
use super::text::{Head, Labels, family, gauge};

/// Where a program's memory can be.
const PLACES: [&str; 4] = ["resident", "parking", "parked", "returning"];

/// Bytes by GPU and of the host, and programs by where their memory is.
pub(super) fn encode(
    snapshot: &Snapshot,
    node: &Labels,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let bytes = |name, help| Head {
        name,
        unit: "bytes",
        help,
        counter: false,
    };
    let memory = &snapshot.memory;
    let head = bytes(
        "gpuos_memory_lent",
        "Memory of the GPU that programs with memory in tiers have, those whose turn it is",
    );
    family(encoder, &head, |family| {
        memory.gpus.iter().try_for_each(|gpu| {
            let mut labels = node.clone();
            labels.push(("gpu", gpu.gpu.to_string()));
            family.value(&labels, gpu.hbm.promised as f64)
        })
    })?;
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
    })?;
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
    let mut counts: BTreeMap<&str, u64> = PLACES.map(|place| (place, 0)).into();
    for program in &memory.programs {
        *counts.entry(&program.place).or_default() += 1;
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
    })
}
