//! A snapshot as text that Prometheus reads (OpenMetrics 1.0). A pure function.

use std::fmt;
use std::sync::Arc;

use gpuos_core::health::{GpuState, RecoveryAction};
use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::node_gpu::NodeGpu;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::count::{Act, OTHER};
use super::table::{CLOCK_REASONS, METRICS};
use super::{Gpu, Snapshot, checkpoints, memory, slices};
use crate::RELEASE;

/// What the text is, for HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the daemon uses itself.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Process {
    /// Memory in RAM, in bytes.
    pub resident_bytes: u64,
    /// Time on CPUs, in seconds.
    pub cpu_seconds: f64,
}

/// The text.
pub fn text(snapshot: &Arc<Snapshot>, process: Option<Process>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(View {
        snapshot: Arc::clone(snapshot),
        process,
    }));
    let mut text = String::new();
    // Writing into memory does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

const STATES: [GpuState; 8] = [
    GpuState::Available,
    GpuState::Allocated,
    GpuState::InUse,
    GpuState::Degraded,
    GpuState::Draining,
    GpuState::Drained,
    GpuState::Resetting,
    GpuState::Offline,
];

const RECOVERIES: [RecoveryAction; 6] = [
    RecoveryAction::None,
    RecoveryAction::GpuReset,
    RecoveryAction::NodeReboot,
    RecoveryAction::DrainP2p,
    RecoveryAction::DrainAndReset,
    RecoveryAction::Other(0),
];

pub(super) type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
struct View {
    snapshot: Arc<Snapshot>,
    process: Option<Process>,
}

/// A family of metrics whose heading is written.
pub(super) struct Family<'a> {
    encoder: MetricEncoder<'a>,
    counter: bool,
}

impl Family<'_> {
    pub(super) fn value(&mut self, labels: &Labels, value: f64) -> fmt::Result {
        // Without labels it writes no braces.
        if labels.is_empty() {
            return write(&mut self.encoder, self.counter, value);
        }
        write(
            &mut self.encoder.encode_family(labels)?,
            self.counter,
            value,
        )
    }

    fn flag(&mut self, labels: &Labels, set: bool) -> fmt::Result {
        self.value(labels, if set { 1.0 } else { 0.0 })
    }
}

fn write(one: &mut MetricEncoder<'_>, counter: bool, value: f64) -> fmt::Result {
    match counter {
        true => one.encode_counter::<NoLabelSet, f64, f64>(&value, None),
        false => one.encode_gauge(&value),
    }
}

/// Heading of a family.
pub(super) struct Head<'a> {
    pub(super) name: &'a str,
    pub(super) unit: &'a str,
    pub(super) help: &'a str,
    pub(super) counter: bool,
}

pub(super) fn family(
    encoder: &mut DescriptorEncoder<'_>,
    head: &Head<'_>,
    write: impl FnOnce(&mut Family<'_>) -> fmt::Result,
) -> fmt::Result {
    let unit = (!head.unit.is_empty()).then(|| Unit::Other(head.unit.into()));
    let kind = match head.counter {
        true => MetricType::Counter,
        false => MetricType::Gauge,
    };
    let encoder = encoder.encode_descriptor(head.name, head.help, unit.as_ref(), kind)?;
    write(&mut Family {
        encoder,
        counter: head.counter,
    })
}

pub(super) const fn gauge<'a>(name: &'a str, help: &'a str) -> Head<'a> {
    Head {
        name,
        unit: "",
        help,
        counter: false,
    }
}

const fn counter<'a>(name: &'a str, help: &'a str) -> Head<'a> {
    Head {
        name,
        unit: "",
        help,
        counter: true,
    }
}

impl Collector for View {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.polls(encoder)?;
        self.states(encoder)?;
        self.jobs(encoder)?;
        slices::encode(&self.snapshot, &self.node(), encoder)?;
        memory::encode(&self.snapshot, &self.node(), encoder)?;
        checkpoints::encode(&self.snapshot, &self.node(), encoder)?;
        self.counts(encoder)?;
        self.daemon(encoder)
    }
}

impl View {
    fn of(&self, gpu: NodeGpu) -> Labels {
        let known = self.snapshot.gpus.iter().find(|one| one.index == gpu);
        let uuid = known.map_or_else(String::new, |one| one.uuid.clone());
        vec![
            ("node", self.snapshot.node.clone()),
            ("gpu", gpu.to_string()),
            ("uuid", uuid),
        ]
    }

    fn with(&self, gpu: NodeGpu, label: &'static str, value: impl Into<String>) -> Labels {
        let mut labels = self.of(gpu);
        labels.push((label, value.into()));
        labels
    }

    fn node(&self) -> Labels {
        vec![("node", self.snapshot.node.clone())]
    }

    fn gpus(&self) -> &[Gpu] {
        &self.snapshot.gpus
    }

    /// What the polls found.
    fn polls(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for metric in METRICS {
            let name = format!("gpuos_gpu_{}", metric.name);
            let head = Head {
                name: &name,
                unit: metric.unit,
                help: metric.help,
                counter: metric.counter,
            };
            family(encoder, &head, |family| {
                for gpu in self.gpus() {
                    let Some(sample) = &gpu.sample else { continue };
                    for (label, get) in metric.values {
                        let Some(value) = get(sample) else { continue };
                        let labels = match metric.label {
                            "" => self.of(gpu.index),
                            name => self.with(gpu.index, name, *label),
                        };
                        family.value(&labels, value)?;
                    }
                }
                Ok(())
            })?;
        }
        let head = gauge(
            "gpuos_gpu_clock_event",
            "1 for each reason that holds clocks down at present",
        );
        family(encoder, &head, |family| {
            for gpu in self.gpus() {
                let Some(reasons) = gpu.sample.as_ref().and_then(|s| s.clock_reasons) else {
                    continue;
                };
                for (name, bit) in CLOCK_REASONS {
                    family.flag(&self.with(gpu.index, "reason", name), reasons & bit != 0)?;
                }
            }
            Ok(())
        })?;
        let head = gauge(
            "gpuos_gpu_recovery_action",
            "1 for what the driver wants done to recover the GPU, 0 for the others",
        );
        family(encoder, &head, |family| {
            for gpu in self.gpus() {
                let Some(number) = gpu.sample.as_ref().and_then(|s| s.recovery_action) else {
                    continue;
                };
                let wanted = RecoveryAction::from_nvml(number).word();
                for action in RECOVERIES {
                    let labels = self.with(gpu.index, "action", action.word());
                    family.flag(&labels, action.word() == wanted)?;
                }
            }
            Ok(())
        })
    }

    /// What gpuos makes of it.
    fn states(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let head = gauge("gpuos_gpu_info", "Always 1; what the GPU is");
        family(encoder, &head, |family| {
            for gpu in self.gpus() {
                let mut labels = self.of(gpu.index);
                labels.push(("name", gpu.name.clone()));
                labels.push(("pci", gpu.pci.clone()));
                family.value(&labels, 1.0)?;
            }
            Ok(())
        })?;
        let head = gauge("gpuos_gpu_polled", "1 while the GPU answers polls");
        family(encoder, &head, |family| {
            let mut gpus = self.gpus().iter();
            gpus.try_for_each(|gpu| family.flag(&self.of(gpu.index), gpu.sample.is_some()))
        })?;
        let head = gauge(
            "gpuos_gpu_state",
            "1 for the state that the GPU is in, 0 for the others",
        );
        family(encoder, &head, |family| {
            for gpu in self.gpus() {
                for state in STATES {
                    let labels = self.with(gpu.index, "state", state.word().replace(' ', "_"));
                    family.flag(&labels, state == gpu.state)?;
                }
            }
            Ok(())
        })?;
        let head = gauge(
            "gpuos_gpu_out_of_service",
            "1 while gpuos keeps jobs off the GPU",
        );
        family(encoder, &head, |family| {
            let mut gpus = self.gpus().iter();
            gpus.try_for_each(|gpu| family.flag(&self.of(gpu.index), gpu.state.is_out()))
        })?;
        let head = gauge(
            "gpuos_gpu_fault",
            "1 for each health rule that speaks against the GPU at present",
        );
        family(encoder, &head, |family| {
            for gpu in self.gpus() {
                let mut rules: Vec<&String> = gpu.faults.iter().collect();
                rules.sort_unstable();
                rules.dedup();
                for rule in rules {
                    family.value(&self.with(gpu.index, "rule", rule), 1.0)?;
                }
            }
            Ok(())
        })?;
        let head = gauge(
            "gpuos_gpu_foreign_processes",
            "Processes on the GPU that do not own it",
        );
        family(encoder, &head, |family| {
            // Processes of the pool are looked at by instance only.
            for gpu in self.gpus() {
                let Some(gres) = gpu.index.gres() else {
                    continue;
                };
                let count = self.snapshot.foreign.get(&gres).copied().unwrap_or(0);
                family.value(&self.of(gpu.index), count as f64)?;
            }
            Ok(())
        })?;
        let head = gauge(
            "gpuos_node_drained",
            "1 while gpuos has drained the whole node",
        );
        family(encoder, &head, |family| {
            family.flag(&self.node(), self.snapshot.node_drained)
        })
    }

    fn jobs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let head = gauge(
            "gpuos_gpu_job_info",
            "Always 1; who holds the GPU, to be joined with other metrics on node and gpu",
        );
        family(encoder, &head, |family| {
            for holder in self
                .snapshot
                .holders
                .iter()
                .filter(|_| !self.snapshot.nameless)
            {
                let mut labels = self.of(holder.gpu);
                labels.push(("jobid", holder.job.to_string()));
                labels.push(("step", step(holder.step)));
                let user = match holder.user.is_empty() {
                    true => holder.uid.to_string(),
                    false => holder.user.clone(),
                };
                labels.push(("user", user));
                family.value(&labels, 1.0)?;
            }
            Ok(())
        })?;
        let head = Head {
            name: "gpuos_gpu_job_memory_used",
            unit: "bytes",
            help: "GPU memory that the processes of a job use",
            counter: false,
        };
        family(encoder, &head, |family| {
            let told = |_: &(&(GresGpu, JobId), &u64)| !self.snapshot.nameless;
            for ((gpu, job), mib) in self.snapshot.job_memory.iter().filter(told) {
                let labels = self.with((*gpu).into(), "jobid", job.to_string());
                family.value(&labels, *mib as f64 * 1_048_576.0)?;
            }
            Ok(())
        })?;
        let mut jobs: Vec<JobId> = self
            .snapshot
            .holders
            .iter()
            .map(|holder| holder.job.clone())
            .collect();
        jobs.extend(
            self.snapshot
                .slices
                .iter()
                .filter_map(|slice| slice.job.clone()),
        );
        jobs.sort_unstable();
        jobs.dedup();
        let head = gauge(
            "gpuos_jobs",
            "Jobs that hold GPUs of the node, or have instances there",
        );
        family(encoder, &head, |family| {
            family.value(&self.node(), jobs.len() as f64)
        })
    }

    fn counts(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counts = &self.snapshot.counts;
        let head = counter("gpuos_gpu_xid_errors", "Xids since gpuosd started");
        family(encoder, &head, |family| {
            for (gpu, codes) in &counts.xids {
                for (code, count) in codes {
                    let code = match *code {
                        OTHER => "other".into(),
                        code => code.to_string(),
                    };
                    family.value(&self.with(*gpu, "code", code), *count as f64)?;
                }
            }
            Ok(())
        })?;
        let head = counter(
            "gpuos_gpu_kernel_log_xids",
            "Xids in the kernel's log that NVIDIA's library did not tell, since gpuosd started",
        );
        family(encoder, &head, |family| {
            for (gpu, count) in &counts.logged {
                family.value(&self.of(*gpu), *count as f64)?;
            }
            Ok(())
        })?;
        let head = counter(
            "gpuos_actions",
            "What gpuosd did since it started, and how it ended",
        );
        family(encoder, &head, |family| {
            for act in Act::ALL {
                let ends = counts.acts.get(&act).copied().unwrap_or_default();
                for (result, count) in ["ok", "failed"].into_iter().zip(ends) {
                    let mut labels = self.node();
                    labels.push(("action", act.name().into()));
                    labels.push(("result", result.into()));
                    family.value(&labels, count as f64)?;
                }
            }
            Ok(())
        })?;
        let head = counter(
            "gpuos_warnings",
            "Warnings of the health rules since gpuosd started",
        );
        family(encoder, &head, |family| {
            family.value(&self.node(), counts.warnings as f64)
        })
    }

    fn daemon(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (snapshot, node) = (&self.snapshot, self.node());
        let head = gauge("gpuosd_build_info", "Always 1; the daemon's release");
        family(encoder, &head, |family| {
            let mut labels = self.node();
            labels.push(("version", RELEASE.into()));
            family.value(&labels, 1.0)
        })?;
        let head = gauge(
            "gpuosd_actions_waiting",
            "Actions that wait for slurmctld or for a GPU",
        );
        family(encoder, &head, |family| {
            family.value(&node, f64::from(snapshot.waiting))
        })?;
        let head = gauge(
            "gpuosd_trouble",
            "1 for each thing that keeps the daemon from its work",
        );
        family(encoder, &head, |family| {
            for what in &snapshot.troubles {
                let mut labels = self.node();
                labels.push(("what", (*what).into()));
                family.value(&labels, 1.0)?;
            }
            Ok(())
        })?;
        let head = gauge(
            "gpuosd_peers",
            "Nodes that share a job of several nodes with this one and are pinged, by state",
        );
        family(encoder, &head, |family| {
            for (state, count) in &snapshot.peers {
                let mut labels = self.node();
                labels.push(("state", (*state).into()));
                family.value(&labels, f64::from(*count))?;
            }
            Ok(())
        })?;
        let seconds = |name, help| Head {
            name,
            unit: "seconds",
            help,
            counter: false,
        };
        let head = seconds(
            "gpuosd_sample_age",
            "Age of the newest answer of NVIDIA's library",
        );
        family(encoder, &head, |family| match snapshot.sampled_ms_ago {
            Some(ago) => family.value(&node, ago as f64 / 1000.0),
            None => Ok(()),
        })?;
        let none = Labels::new();
        let head = seconds(
            "process_start_time",
            "When gpuosd started, in seconds since 1970",
        );
        family(encoder, &head, |family| {
            family.value(&none, snapshot.started_ms as f64 / 1000.0)
        })?;
        let Some(process) = self.process else {
            return Ok(());
        };
        let head = Head {
            name: "process_resident_memory",
            unit: "bytes",
            help: "Memory of gpuosd in RAM",
            counter: false,
        };
        family(encoder, &head, |family| {
            family.value(&none, process.resident_bytes as f64)
        })?;
        let head = Head {
            name: "process_cpu",
            unit: "seconds",
            help: "Time of gpuosd on CPUs",
            counter: true,
        };
        family(encoder, &head, |family| {
            family.value(&none, process.cpu_seconds)
        })
    }
}

/// A step as Slurm writes it.
fn step(step: Option<u32>) -> String {
    match step {
        None => String::new(),
        Some(step) => StepId::name(step),
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
