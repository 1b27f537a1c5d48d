//! MIG instances as Prometheus reads them.

use std::collections::BTreeMap;
use std::fmt;

use gpuos_core::wire::{MigLoad, Percent};
use gpuos_model::node_gpu::NodeGpu;
use prometheus_client::encoding::DescriptorEncoder;

use super::text::{Family, Head, Labels, family, gauge};
use super::{Slice, Snapshot};

const MIB: f64 = 1_048_576.0;

/// Their number, whose they are, their memory and load where the driver tells it: what is not known is left out.
pub(super) fn encode(
    snapshot: &Snapshot,
    node: &Labels,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let job = |slice: &Slice| match &slice.job {
        // Somebody's, and not one that was made by hand.
        Some(_) if snapshot.nameless => "hidden".into(),
        Some(job) => job.to_string(),
        None => String::new(),
    };
    let mut counts: BTreeMap<(NodeGpu, &str, String), u64> = BTreeMap::new();
    for slice in &snapshot.slices {
        let key = (slice.number, slice.profile.as_str(), job(slice));
        *counts.entry(key).or_default() += 1;
    }
    let head = gauge(
        "gpuos_mig_instances",
        "MIG instances of the pool; without a job those that somebody else made",
    );
    family(encoder, &head, |family| {
        for ((gpu, profile, job), count) in counts {
            let mut labels = node.clone();
            labels.push(("gpu", gpu.to_string()));
            labels.push(("profile", profile.into()));
            labels.push(("jobid", job));
            family.value(&labels, count as f64)?;
        }
        Ok(())
    })?;
    let of = |slice: &Slice| {
        let mut labels = node.clone();
        labels.push(("gpu", slice.number.to_string()));
        labels.push(("gi", slice.gi.to_string()));
        labels
    };
    let head = gauge(
        "gpuos_mig_info",
        "Always 1; which instance it is and whose, to be joined with other metrics on node, gpu and gi",
    );
    family(encoder, &head, |family| {
        for slice in &snapshot.slices {
            let mut labels = of(slice);
            labels.push(("uuid", slice.uuid.clone()));
            labels.push(("profile", slice.profile.clone()));
            labels.push(("first_slice", slice.placement.start.to_string()));
            labels.push(("jobid", job(slice)));
            family.value(&labels, 1.0)?;
        }
        Ok(())
    })?;
    let bytes = |name, help| Head {
        name,
        unit: "bytes",
        help,
        counter: false,
    };
    let known = |family: &mut Family<'_>, pick: fn((u64, u64)) -> u64| {
        let each = snapshot.slices.iter();
        let mut each = each.filter_map(|slice| Some((slice, slice.memory_mib?)));
        each.try_for_each(|(slice, memory)| family.value(&of(slice), pick(memory) as f64 * MIB))
    };
    let head = bytes("gpuos_mig_memory_total", "Memory of the instance");
    family(encoder, &head, |family| known(family, |(total, _)| total))?;
    let head = bytes(
        "gpuos_mig_memory_used",
        "Memory of the instance that is used",
    );
    family(encoder, &head, |family| known(family, |(_, used)| used))?;
    let ratio = |name, help| Head {
        name,
        unit: "ratio",
        help,
        counter: false,
    };
    let busy = |family: &mut Family<'_>, pick: fn(&MigLoad) -> Option<Percent>| {
        let each = snapshot.slices.iter();
        let mut each = each.filter_map(|slice| Some((slice, pick(&slice.load)?)));
        each.try_for_each(|(slice, share)| family.value(&of(slice), share.ratio()))
    };
    let head = ratio(
        "gpuos_mig_sm_utilization",
        "Multiprocessors of the instance that worked, since the poll before",
    );
    family(encoder, &head, |family| {
        busy(family, |load| load.sm_percent)
    })?;
    let head = ratio(
        "gpuos_mig_memory_bandwidth_utilization",
        "Memory bandwidth that the instance used, since the poll before",
    );
    family(encoder, &head, |family| {
        busy(family, |load| load.bandwidth_percent)
    })
}
