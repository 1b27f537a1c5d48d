//! Nodes and jobs of Slurm for `gpuos top`.

use std::collections::BTreeMap;

use gpuos_core::health::ExtraPart;
use gpuos_host::Machine;
use gpuos_host::slurm::{self, Job, NodeRecord};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_gpu::NodeGpu;

use super::board::{FaultRow, GpuRow, JobRow, NodeTold, Sources, number};

/// Adds what slurmctld says, or that it says nothing.
pub fn add(machine: &dyn Machine, sources: &mut Sources) {
    let nodes = match slurm::nodes(machine) {
        Ok(nodes) => nodes,
        Err(e) => {
            let sentence = format!("no other nodes and no names of jobs: {e:#}");
            return sources.missing.push(sentence);
        }
    };
    let jobs = match slurm::jobs(machine) {
        Ok(jobs) => jobs,
        Err(e) => {
            sources.missing.push(format!("no jobs: {e:#}"));
            Vec::new()
        }
    };
    let mut held = holders(&jobs);
    let with_gpus = nodes.iter().filter(|node| has_gpus(node));
    let told = with_gpus.map(|record| node(record, held.remove(&record.name[..])));
    sources.nodes = Some(told.collect());
    sources.jobs = jobs.iter().filter_map(job).collect();
    sources.unreadable = unreadable(&jobs);
}

/// A node as its record has it, with the jobs that hold each of its GPUs.
pub fn node(record: &NodeRecord, held: Option<BTreeMap<usize, Vec<String>>>) -> NodeTold {
    let held = held.unwrap_or_default();
    let (part, wrong) = ExtraPart::read(&record.extra);
    let fault = wrong.map(|e| FaultRow {
        node: record.name.clone(),
        gpu: None,
        rule: "extra".into(),
        message: e.to_string(),
    });
    let on = |gpu: usize| held.get(&gpu).cloned().unwrap_or_default();
    NodeTold {
        name: record.name.clone(),
        state: record.state_text(),
        reason: record.reason.clone(),
        gpus: rows_of_record(record, &part, &on),
        faults: fault.into_iter().collect(),
        held,
    }
}

/// Whether a node has GPUs, of GRES gpu or in a pool.
fn has_gpus(record: &NodeRecord) -> bool {
    record.gpu_count() > 0 || !ExtraPart::read(&record.extra).0.pool_out.is_empty()
}

/// What the node's record tells of its GPUs.
fn rows_of_record(
    record: &NodeRecord,
    part: &ExtraPart,
    on: &dyn Fn(usize) -> Vec<String>,
) -> Vec<GpuRow> {
    let mut rows = Vec::new();
    let drains = record.states.iter().any(|state| state.starts_with("DRAIN"));
    let used = GpuSet(record.gpus_used.0 | record.gpus_divided.0);
    let kinds = record.gpus.iter();
    let kinds = kinds.flat_map(|(kind, count)| std::iter::repeat_n(kind, *count));
    for (index, kind) in kinds.enumerate() {
        let listed = |list: &[GresGpu]| list.iter().any(|gpu| gpu.index() == index);
        let jobs = on(index);
        let state = match () {
            () if listed(&part.out) => "out",
            // Slurm's own drain keeps jobs away from all GPUs of the node.
            () if drains && !jobs.is_empty() => "draining",
            () if drains => "drained",
            () if !record.is_up() => "unknown",
            () if listed(&part.degraded) => "degraded",
            () if !jobs.is_empty() || used.contains(index) => "allocated",
            () => "available",
        };
        rows.push(GpuRow {
            node: record.name.clone(),
            index,
            kind: kind.clone(),
            state: state.into(),
            jobs,
            ..GpuRow::default()
        });
    }
    // Of those of a pool the record tells which are out, and no more: not how many there are, where all are.
    let pool = part.pool_out.iter().filter(|_| !part.has_whole_pool_out());
    let pool = pool.map(|nvml| NodeGpu::Pool(*nvml));
    rows.extend(pool.map(|gpu| GpuRow {
        node: record.name.clone(),
        index: number(gpu),
        state: "out".into(),
        ..GpuRow::default()
    }));
    rows
}

/// What is to be said of jobs whose records cannot be read.
fn unreadable(jobs: &[Job]) -> Option<String> {
    let all: Vec<&Job> = jobs
        .iter()
        .filter(|job| !job.unreadable.is_empty())
        .collect();
    let first = all.first()?;
    let labels: Vec<&str> = all.iter().take(8).map(|job| &job.label[..]).collect();
    let more = match all.len() - labels.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "not shown is what these jobs have, for a text of their users looks like a part of their records: {}{more} ({})",
        labels.join(", "),
        first.unreadable
    ))
}

/// Which jobs hold which GPU, by node.
fn holders(jobs: &[Job]) -> BTreeMap<&str, BTreeMap<usize, Vec<String>>> {
    let mut held: BTreeMap<&str, BTreeMap<usize, Vec<String>>> = BTreeMap::new();
    for job in jobs.iter().filter(|job| job.is_running()) {
        for part in &job.allocations {
            for node in &part.nodes {
                for gpu in part.gpus.iter() {
                    let of_node = held.entry(node).or_default();
                    of_node.entry(gpu).or_default().push(job.label.clone());
                }
            }
        }
    }
    held
}

/// A job that has GPUs or asks for some.
fn job(job: &Job) -> Option<JobRow> {
    let running = job.is_running();
    let asks = [
        &job.tres_per_node,
        &job.tres_per_task,
        &job.tres_per_socket,
        &job.tres_per_job,
    ];
    let wants = asks.iter().any(|list| list.contains("gpu"));
    let gpus = if running { job.gpu_count() as usize } else { 0 };
    let unread = !job.unreadable.is_empty() && (running || job.is_pending());
    (gpus > 0 || job.is_pending() && wants || unread).then(|| JobRow {
        label: job.label.clone(),
        user: job.user.clone(),
        state: job.state.to_lowercase(),
        nodes: match running {
            true => job.nodes.len(),
            false => job.min_nodes as usize,
        },
        gpus,
        seconds: job.run_seconds,
        name: job.name.clone(),
        reason: match job.reason.as_str() {
            _ if unread => format!("its record cannot be read: {}", job.unreadable),
            "None" => String::new(),
            reason => reason.into(),
        },
    })
}
