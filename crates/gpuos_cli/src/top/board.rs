//! What `gpuos top` shows: the workload manager's word on the whole cluster, gpuosd's on its own node, and what Prometheus has of the
//! others, as one.

use std::collections::BTreeMap;

use gpuos_core::job::JobId;
use gpuos_core::wire::{GpuStatus, MigInstance, MigLoad, MigStatus, Status};
use gpuos_model::gpu_index::NvmlIndex;
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
    /// Nodes with GPUs, as their workload manager has them.
    pub nodes: Option<Vec<NodeTold>>,
    /// Jobs that have GPUs, or ask for some.
    pub jobs: Vec<JobRow>,
    /// What is to be said of jobs that cannot be read.
    pub unreadable: Option<String>,
    /// What Prometheus has of nodes.
    pub figures: Option<FiguresByNode>,
    /// What was not to be had, in sentences with what to do about it.
    pub missing: Vec<String>,
}

/// A node as its workload manager has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeTold {
    /// Name.
    pub name: String,
    /// State.
    pub state: String,
    /// Why it is in that state; empty: nobody says.
    pub reason: String,
    /// Its GPUs.
    pub gpus: Vec<GpuRow>,
    /// The jobs that hold each GPU, by the number of the GPU.
    pub held: BTreeMap<usize, Vec<String>>,
    /// What is wrong with what was told.
    pub faults: Vec<FaultRow>,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeRow {
    /// Name.
    pub name: String,
    /// The workload manager's state.
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
    /// gpuosd's word for its state; of another node what its record tells: available, allocated, degraded, out, reserved,
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
    /// The workload manager's state, lower case.
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
    /// Nodes with GPUs, in the workload manager's order.
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
            unreadable,
            figures,
            missing,
        } = sources;
        let node = local.as_ref().map(|status| status.node.clone());
        let slices = slices.iter().flat_map(|mig| &mig.gpus);
        let slices = slices.flat_map(|gpu| gpu.instances.iter().map(|one| (gpu.gpu, one)));
        let node = node.unwrap_or_default();
        let slices = slices.map(|(gpu, one)| slice(&node, gpu, one));
        let mut board = Board {
            missing,
            slices: slices.collect(),
            ..Board::default()
        };
        let mut local = local.as_ref();
        let asked = figures.is_some();
        let mut figures = figures.unwrap_or_default();
        for told in nodes.iter().flatten() {
            let status = local.take_if(|status| status.node == told.name);
            board.node(Some(told), status);
            board.measure(told, &figures.remove(&told.name).unwrap_or_default());
        }
        // The workload manager says nothing, or does not know the node.
        if let Some(status) = local {
            board.node(None, Some(status));
        }
        board.add_unmeasured_note(asked);
        board.jobs = jobs;
        board.missing.extend(unreadable);
        board.jobs.sort_by_key(|job| job.gpus == 0);
        board
    }

    fn node(&mut self, told: Option<&NodeTold>, status: Option<&Status>) {
        let name = match (told, status) {
            (Some(told), _) => told.name.clone(),
            (None, Some(status)) => status.node.clone(),
            (None, None) => return,
        };
        let mut reason = told.map_or(String::new(), |told| told.reason.clone());
        let on = |gpu: usize| {
            let held = told.and_then(|told| told.held.get(&gpu));
            held.cloned().unwrap_or_default()
        };
        let first = self.gpus.len();
        match (told, status.filter(|status| !status.gpus.is_empty())) {
            (_, Some(status)) => {
                for gpu in &status.gpus {
                    let label = |job: &JobId| job.to_string();
                    let known = on(number(gpu.index));
                    let jobs = match known.is_empty() {
                        true => {
                            let own = gpu.jobs.iter().map(label);
                            let others = Some(gpu.jobs_of_others).filter(|count| *count > 0);
                            own.chain(others.map(others_of)).collect()
                        }
                        // The workload manager may show more to this user than gpuosd does.
                        false => known,
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
            (Some(told), None) => {
                self.faults.extend(told.faults.iter().cloned());
                self.gpus.extend(told.gpus.iter().cloned());
            }
            (None, None) => {}
        }
        let gpus = &self.gpus[first..];
        let mut jobs: Vec<&String> = gpus.iter().flat_map(|gpu| &gpu.jobs).collect();
        jobs.sort_unstable();
        jobs.dedup();
        let mut row = NodeRow {
            state: told.map_or("unknown".into(), |told| told.state.clone()),
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
    fn measure(&mut self, node_told: &NodeTold, figures: &BTreeMap<usize, Figures>) {
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
            let message = format!("ask on {}: gpuos health", node_told.name);
            let mut rules = told.rules;
            if rules.is_empty() && matches!(gpu.state.as_str(), "out" | "degraded") {
                rules.push(gpu.state.clone());
            }
            self.faults.extend(rules.into_iter().map(|rule| FaultRow {
                node: node_told.name.clone(),
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

/// What gpuosd measured. A GPU that a job has is in use whoever tells of it: gpuosd hears of a job with its first step, and the workload
/// manager knows it before.
fn measured(node: &str, gpu: &GpuStatus, jobs: Vec<String>) -> GpuRow {
    let state = match gpu.state.as_str() {
        "available" if !jobs.is_empty() => "allocated",
        state => state,
    };
    GpuRow {
        node: node.into(),
        index: number(gpu.index),
        kind: gpu.name.clone(),
        state: state.into(),
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
