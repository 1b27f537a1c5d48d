//! What `gpuos top` shows: Slurm's word on the whole cluster, gpuosd's on its own node, and what Prometheus has of the
//! others, as one.

use std::collections::BTreeMap;

use gpuos_core::health::ExtraPart;
use gpuos_core::job::JobId;
use gpuos_core::wire::{GpuStatus, MigInstance, MigLoad, MigStatus, Status};
use gpuos_host::slurm::{Job, NodeRecord};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::compress;
use gpuos_model::node_gpu::NodeGpu;

use super::prometheus::{Figures, FiguresByNode};
use crate::health::others as others_of;

/// What was to be had.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// What gpuosd on this node says.
    pub local: Option<Status>,
    /// The MIG instances that it tells of.
    pub slices: Option<MigStatus>,
    /// Slurm's nodes.
    pub nodes: Option<Vec<NodeRecord>>,
    /// Slurm's jobs.
    pub jobs: Option<Vec<Job>>,
    /// What Prometheus has of nodes.
    pub figures: Option<FiguresByNode>,
    /// What was not to be had, in sentences with what to do about it.
    pub missing: Vec<String>,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeRow {
    /// Name.
    pub name: String,
    /// Slurm's state.
    pub state: String,
    /// GPUs that it has.
    pub gpus: usize,
    /// GPUs that jobs hold.
    pub used: usize,
    /// GPUs that get no jobs.
    pub out: usize,
    /// GPUs that get jobs last.
    pub degraded: usize,
    /// Jobs that hold GPUs.
    pub jobs: usize,
    /// Its hottest GPU, in degrees Celsius.
    pub celsius: Option<u32>,
    /// Power of all its GPUs, in milliwatts.
    pub power_mw: Option<u64>,
    /// Who told heat, power and load: `gpuosd`, `prometheus`, or nobody.
    pub figures: Option<&'static str>,
    /// Why it, or a GPU of it, gets no jobs.
    pub reason: String,
}

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GpuRow {
    /// Its node.
    pub node: String,
    /// Which GPU, by the number that [`NodeGpu`] has in JSON.
    pub index: usize,
    /// GRES type, or the board's name.
    pub kind: String,
    /// gpuosd's word for its state; of another node what its record tells: available, allocated, degraded, out,
    /// draining or drained with its node, or unknown on a node that is down.
    pub state: String,
    /// Degrees Celsius.
    pub celsius: Option<u32>,
    /// Milliwatts.
    pub power_mw: Option<u32>,
    /// Percent of time with work.
    pub busy: Option<u32>,
    /// MiB in use.
    pub memory_mib: Option<u64>,
    /// Jobs that hold it, as users write them.
    pub jobs: Vec<String>,
    /// Why, if it is not well.
    pub reason: String,
}

/// A process on a GPU; gpuosd on this node tells of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessRow {
    /// Its node.
    pub node: String,
    /// GRES index of the GPU.
    pub gpu: usize,
    /// MIG instance.
    pub instance: Option<u32>,
    /// Process id.
    pub pid: u32,
    /// User, by number.
    pub uid: u32,
    /// Its name.
    pub program: String,
    /// The job that it belongs to.
    pub job: Option<JobId>,
    /// The step.
    pub step: Option<String>,
    /// MiB of GPU memory.
    pub memory_mib: Option<u64>,
    /// Whether it is on a GPU that it does not own.
    pub foreign: bool,
}

/// A MIG instance; gpuosd on this node tells of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SliceRow {
    /// Its node.
    pub node: String,
    /// NVML's index of the GPU.
    pub gpu: usize,
    /// NVML's id of the GPU instance.
    pub instance: Option<u32>,
    /// Profile.
    pub profile: String,
    /// Memory slices, as `4-7`.
    pub slices: String,
    /// The job that has it.
    pub job: Option<JobId>,
    /// Another user's job has it, whose number is not told.
    pub others: bool,
    /// How far it is: `ready`, …
    pub phase: String,
    /// Used and total MiB.
    pub memory_mib: Option<(u64, u64)>,
    /// Why its memory is not known.
    pub unknown: String,
    /// How busy it is.
    pub load: MigLoad,
}

/// A job that holds GPUs, or waits for some.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobRow {
    /// As users write it.
    pub label: String,
    /// User.
    pub user: String,
    /// Slurm's state, lower case.
    pub state: String,
    /// Nodes that it has, or wants at least.
    pub nodes: usize,
    /// GPUs that it has.
    pub gpus: usize,
    /// How long it has run, in seconds.
    pub seconds: u64,
    /// Its name.
    pub name: String,
    /// Why it waits.
    pub reason: String,
}

/// A fault.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultRow {
    /// Node.
    pub node: String,
    /// GPU; `None`: the node.
    pub gpu: Option<usize>,
    /// The rule that saw it; of another node that Prometheus knows nothing of `out` or `degraded`.
    pub rule: String,
    /// A sentence.
    pub message: String,
}

/// All of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Board {
    /// Nodes with GPUs, in Slurm's order.
    pub nodes: Vec<NodeRow>,
    /// Their GPUs.
    pub gpus: Vec<GpuRow>,
    /// Jobs with GPUs: those that run, then those that wait.
    pub jobs: Vec<JobRow>,
    /// Processes on this node's GPUs.
    pub processes: Vec<ProcessRow>,
    /// MIG instances of this node.
    pub slices: Vec<SliceRow>,
    /// Faults that count at present.
    pub faults: Vec<FaultRow>,
    /// What was not to be had.
    pub missing: Vec<String>,
}

impl Board {
    /// Joins what was to be had.
    pub fn new(sources: Sources) -> Board {
        let Sources {
            local,
            slices,
            nodes,
            jobs,
            figures,
            missing,
        } = sources;
        let node = local.as_ref().map(|status| status.node.clone());
        let slices = slices.iter().flat_map(|mig| &mig.gpus);
        let slices = slices.flat_map(|gpu| gpu.instances.iter().map(|one| (gpu.gpu, one)));
        let node = node.unwrap_or_default();
        let slices = slices.map(|(gpu, one)| slice(&node, gpu, one));
        let jobs = jobs.unwrap_or_default();
        let mut board = Board {
            missing,
            slices: slices.collect(),
            ..Board::default()
        };
        let holders = holders(&jobs);
        let mut local = local.as_ref();
        let asked = figures.is_some();
        let mut figures = figures.unwrap_or_default();
        for record in nodes.iter().flatten().filter(|n| has_gpus(n)) {
            let status = local.take_if(|status| status.node == record.name);
            board.node(Some(record), status, &holders);
            board.measure(record, &figures.remove(&record.name).unwrap_or_default());
        }
        // Slurm says nothing, or does not know the node.
        if let Some(status) = local {
            board.node(None, Some(status), &holders);
        }
        board.add_unmeasured_note(asked);
        board.jobs = jobs.iter().filter_map(job).collect();
        board.missing.extend(unreadable(&jobs));
        board.jobs.sort_by_key(|job| job.gpus == 0);
        board
    }

    fn node(
        &mut self,
        record: Option<&NodeRecord>,
        status: Option<&Status>,
        holders: &BTreeMap<(&str, usize), Vec<&str>>,
    ) {
        let name = match (record, status) {
            (Some(record), _) => record.name.clone(),
            (None, Some(status)) => status.node.clone(),
            (None, None) => return,
        };
        let mut reason = record.map_or(String::new(), |record| record.reason.clone());
        let on = |gpu: usize| {
            let jobs = holders.get(&(name.as_str(), gpu));
            jobs.map_or(Vec::new(), |jobs| {
                jobs.iter().map(|j| j.to_string()).collect()
            })
        };
        let first = self.gpus.len();
        match (record, status.filter(|status| !status.gpus.is_empty())) {
            (_, Some(status)) => {
                for gpu in &status.gpus {
                    let label = |job: &JobId| job.to_string();
                    let told = on(number(gpu.index));
                    let jobs = match told.is_empty() {
                        true => {
                            let own = gpu.jobs.iter().map(label);
                            let others = Some(gpu.jobs_of_others).filter(|count| *count > 0);
                            own.chain(others.map(others_of)).collect()
                        }
                        // Slurm itself may show more to this user than gpuosd does.
                        false => told,
                    };
                    self.gpus.push(measured(&name, gpu, jobs));
                    self.processes
                        .extend(gpu.processes.iter().map(|one| ProcessRow {
                            node: name.clone(),
                            gpu: number(gpu.index),
                            instance: one.gpu_instance,
                            pid: one.pid,
                            uid: one.uid,
                            program: one.program.clone(),
                            job: one.job.clone(),
                            step: one.step.clone(),
                            memory_mib: one.memory_mib,
                            foreign: one.foreign,
                        }));
                    self.faults.extend(gpu.faults.iter().map(|fault| FaultRow {
                        node: name.clone(),
                        gpu: Some(number(gpu.index)),
                        rule: fault.rule.clone(),
                        message: fault.message.clone(),
                    }));
                }
                if let Some(hidden) = &status.hidden
                    && hidden.processes > 0
                {
                    self.missing.push(format!(
                        "processes of other users on this node's GPUs: {}, of which root is told more",
                        hidden.processes
                    ));
                }
                if let Some(why) = &status.node_drained {
                    reason.clone_from(why);
                }
                self.faults
                    .extend(status.daemon.troubles.iter().map(|trouble| FaultRow {
                        node: name.clone(),
                        gpu: None,
                        rule: "gpuosd".into(),
                        message: trouble.clone(),
                    }));
            }
            (Some(record), None) => {
                let (part, wrong) = ExtraPart::read(&record.extra);
                if let Some(e) = wrong {
                    self.faults.push(FaultRow {
                        node: name.clone(),
                        gpu: None,
                        rule: "extra".into(),
                        message: e.to_string(),
                    });
                }
                self.gpus.extend(rows_of_record(record, &part, &on));
            }
            (None, None) => {}
        }
        let gpus = &self.gpus[first..];
        let mut jobs: Vec<&String> = gpus.iter().flat_map(|gpu| &gpu.jobs).collect();
        jobs.sort_unstable();
        jobs.dedup();
        let mut row = NodeRow {
            state: record.map_or("unknown".into(), NodeRecord::state_text),
            gpus: gpus.len(),
            used: gpus.iter().filter(|gpu| !gpu.jobs.is_empty()).count(),
            out: gpus.iter().filter(|gpu| is_out(&gpu.state)).count(),
            degraded: gpus.iter().filter(|gpu| gpu.state == "degraded").count(),
            jobs: jobs.len(),
            figures: status
                .filter(|status| !status.gpus.is_empty())
                .map(|_| "gpuosd"),
            reason,
            name,
            ..NodeRow::default()
        };
        row.sum(gpus);
        self.nodes.push(row);
    }

    /// Fills in what Prometheus has of the node that was added last, unless its own gpuosd has told more.
    fn measure(&mut self, record: &NodeRecord, figures: &BTreeMap<usize, Figures>) {
        let Some(node) = self.nodes.last_mut().filter(|node| node.figures.is_none()) else {
            return;
        };
        let first = self.gpus.len() - node.gpus;
        for gpu in &mut self.gpus[first..] {
            let told = figures.get(&gpu.index).cloned().unwrap_or_default();
            gpu.celsius = told.celsius;
            gpu.power_mw = told.power_mw;
            gpu.busy = told.busy;
            gpu.memory_mib = told.memory_mib;
            let message = format!("ask on {}: gpuos health", record.name);
            let mut rules = told.rules;
            if rules.is_empty() && matches!(gpu.state.as_str(), "out" | "degraded") {
                rules.push(gpu.state.clone());
            }
            self.faults.extend(rules.into_iter().map(|rule| FaultRow {
                node: record.name.clone(),
                gpu: Some(gpu.index),
                rule,
                message: message.clone(),
            }));
        }
        if figures.values().any(|told| told.polled) {
            node.figures = Some("prometheus");
        }
        node.sum(&self.gpus[first..]);
    }

    /// Says of which nodes nobody tells heat, power and load.
    fn add_unmeasured_note(&mut self, asked: bool) {
        let without = self.nodes.iter().filter(|node| node.figures.is_none());
        let names = compress(without.map(|node| node.name.as_str()));
        let others = self.nodes.len() > 1 || self.nodes.iter().any(|node| node.figures.is_some());
        if names.is_empty() || !others {
            return;
        }
        let tried =
            |line: &String| line.starts_with("no temperature, power and load of other nodes");
        if asked {
            self.missing.push(format!(
                "no temperature, power and load of {names}: Prometheus has nothing of them; is gpuosd there, with \
                 [metrics] listen in gpuos.toml, and does Prometheus scrape it?"
            ));
        } else if !self.missing.iter().any(tried) {
            self.missing.push(format!(
                "no temperature, power and load of {names}: give the site's Prometheus with --prometheus, or as \
                 [metrics] prometheus in gpuos.toml"
            ));
        }
    }
}

impl NodeRow {
    /// Heat and power of the node out of those of its GPUs.
    fn sum(&mut self, gpus: &[GpuRow]) {
        self.celsius = gpus.iter().filter_map(|gpu| gpu.celsius).max();
        let powers = gpus.iter().filter_map(|gpu| gpu.power_mw);
        self.power_mw = powers.map(u64::from).reduce(|a, b| a + b);
    }
}

/// Whether a node has GPUs, of GRES gpu or in a pool.
fn has_gpus(record: &NodeRecord) -> bool {
    record.gpu_count() > 0 || !ExtraPart::read(&record.extra).0.pool_out.is_empty()
}

/// The number of a GPU in a row.
pub fn number(gpu: NodeGpu) -> usize {
    u8::from(gpu).into()
}

/// How people call a GPU.
pub fn name(index: usize) -> String {
    let gpu = u8::try_from(index)
        .ok()
        .and_then(|number| NodeGpu::try_from(number).ok());
    gpu.map_or_else(|| index.to_string(), |gpu| gpu.to_string())
}

/// Whether a GPU in that state gets no jobs.
pub fn is_out(state: &str) -> bool {
    matches!(
        state,
        "draining" | "drained" | "resetting" | "offline" | "out"
    )
}

/// What gpuosd measured.
fn measured(node: &str, gpu: &GpuStatus, jobs: Vec<String>) -> GpuRow {
    GpuRow {
        node: node.into(),
        index: number(gpu.index),
        kind: gpu.name.clone(),
        state: gpu.state.clone(),
        celsius: gpu.temperature_c,
        power_mw: gpu.power_mw,
        busy: gpu.utilisation,
        memory_mib: gpu.memory_mib,
        jobs,
        reason: gpu.reason.clone(),
    }
}

fn slice(node: &str, gpu: NvmlIndex, one: &MigInstance) -> SliceRow {
    SliceRow {
        node: node.into(),
        gpu: gpu.index(),
        instance: one.gi,
        profile: one.profile.clone(),
        slices: crate::mig::slices_of(one.placement),
        job: one.job.clone(),
        others: one.others,
        phase: one.phase.clone(),
        memory_mib: one.memory_used_mib.zip(one.memory_total_mib),
        unknown: one.memory_unknown.clone().unwrap_or_default(),
        load: one.load.clone(),
    }
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

/// Which jobs hold which GPU of which node.
fn holders(jobs: &[Job]) -> BTreeMap<(&str, usize), Vec<&str>> {
    let mut held: BTreeMap<(&str, usize), Vec<&str>> = BTreeMap::new();
    for job in jobs.iter().filter(|job| job.is_running()) {
        for part in &job.allocations {
            for node in &part.nodes {
                for gpu in part.gpus.iter() {
                    let labels = held.entry((node, gpu)).or_default();
                    labels.push(&job.label);
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
