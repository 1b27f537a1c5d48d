//! What is remembered of a node and its GPUs.
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use gpuos_model::gpu_index::GresGpu;
use gpuos_model::node_gpu::NodeGpu;
use serde::{Deserialize, Serialize};

use super::event::{Job, RecoveryAction, Sample, Verb};
use super::extra::ExtraPart;
use super::holding::Holding;
use super::logged::{LogRate, Logged};
use super::rules::{Action, Authority, Cure, JobsAre};
use super::trend::{Usual, Watch};
use crate::job::JobId;

/// Where a GPU stands, for people.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuState {
    /// No job has it.
    Available,
    /// A job has it and does not use it just now.
    Allocated,
    /// A job computes on it.
    InUse,
    /// It works, jobs take others first; see its causes.
    Degraded,
    /// It gets no more jobs, and still has some.
    Draining,
    /// It gets no jobs and has none.
    Drained,
    /// It is being reset or checked.
    Resetting,
    /// It waits for an administrator.
    Offline,
}

impl GpuState {
    /// The word for people.
    pub fn word(self) -> &'static str {
        match self {
            GpuState::Available => "available",
            GpuState::Allocated => "allocated",
            GpuState::InUse => "in use",
            GpuState::Degraded => "degraded",
            GpuState::Draining => "draining",
            GpuState::Drained => "drained",
            GpuState::Resetting => "resetting",
            GpuState::Offline => "offline",
        }
    }

    /// Whether it gets no jobs.
    pub fn is_out(self) -> bool {
        self >= GpuState::Draining
    }
}

/// Whether a GPU serves; [`GpuState`] follows from this and the jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Service {
    /// It gets jobs.
    #[default]
    In,
    /// It gets no more, and still has some.
    Draining,
    /// It gets none and has none.
    Drained,
    /// It is being reset.
    Resetting,
    /// It is being checked.
    Checking,
    /// It waits for an administrator.
    Offline,
}

/// Why a GPU is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cause {
    /// The rule.
    pub rule: String,
    /// What happened, with figure and threshold, for people.
    pub text: String,
    /// The figure.
    pub figure: u64,
    /// Its threshold.
    pub threshold: u64,
    /// What the rule does.
    pub action: Action,
    /// What it does with jobs.
    pub jobs: JobsAre,
    /// What brings the GPU back.
    pub cure: Cure,
    /// Who said so.
    pub authority: Authority,
    /// When first, as given to [`super::step`], in ms.
    pub since_ms: u64,
    /// When last, on the node's own clock.
    pub(super) last: u64,
}

/// An administrator's word about a GPU or a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hold {
    /// What was wanted: drain or offline.
    pub verb: Verb,
    /// Who.
    pub uid: u32,
    /// Why; may be empty.
    pub reason: String,
    /// When, as given to [`super::step`], in ms.
    pub at_ms: u64,
}

/// One GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GpuHealth {
    /// Whether it serves.
    pub service: Service,
    /// Why it is not as it should be.
    pub causes: Vec<Cause>,
    /// What an administrator wanted.
    pub hold: Option<Hold>,
    /// Why it waits for an administrator, when gpuos itself set it offline.
    pub offline: Option<String>,
    /// The last poll.
    pub last: Option<Sample>,
    /// When it came back by itself of late, on the node's own clock.
    pub returns: Vec<u64>,
    /// Failed resets or checks in a row.
    pub attempts: u32,
    /// What NVML wanted last.
    pub(super) recovery: Option<RecoveryAction>,
    /// When the last poll was.
    pub(super) sampled: Option<u64>,
    /// Since when it is in its service.
    pub(super) since: u64,
    /// A reset or check is not begun before this.
    pub(super) not_before: u64,
    /// It was reset since it went out; only the check is missing.
    pub(super) was_reset: bool,
    /// The command said that the check was passed; a poll has to agree.
    pub(super) passed: bool,
    /// Since when no job was seen on it, with slurmctld knowing that it is out.
    pub(super) idle_since: Option<u64>,
    /// MIG instances on a GPU of a pool, and when they were counted.
    #[serde(default)]
    pub(super) instances: Option<(u32, u64)>,
    /// How warm it has been.
    pub(super) usual: Usual,
    /// Since when polls of it get no answer, or say that it is lost.
    #[serde(default)]
    pub(super) unheard: Option<u64>,
    /// It was said to be lost, and no poll was answered since.
    #[serde(default)]
    pub(super) lost: bool,
    /// When NVML's figures about its memory got worse last.
    #[serde(default)]
    pub(super) memory_worse: Option<u64>,
    /// Xids of the kernel's log that NVML does not tell, by rule.
    #[serde(default)]
    pub(super) logged: BTreeMap<String, Logged>,
    /// What rules remember, by name.
    pub(super) watches: BTreeMap<String, Watch>,
    /// When rules spoke last, by part of the GPU and authority.
    pub(super) spoken: BTreeMap<String, (Authority, u64)>,
}

/// A job that is to be killed or requeued.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Act {
    pub job: JobId,
    /// `None` = requeue the job; else kill this step.
    pub kill: Option<Option<u32>>,
    pub gpu: NodeGpu,
    pub reason: String,
    /// Since when, on the node's own clock.
    pub since: u64,
    /// When it was told last.
    pub tried: Option<u64>,
}

/// What was told to slurmctld, and what it knows.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Publishing {
    /// The last publication's number.
    pub revision: u64,
    /// The one under way: what it says, and since when.
    pub under_way: Option<(ExtraPart, u64)>,
    /// What slurmctld has; `None` = not known.
    pub confirmed: Option<ExtraPart>,
    /// There are words in it that cannot be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
    /// The next is not before this.
    pub not_before: Option<u64>,
    /// Failures in a row.
    pub failures: u32,
    /// Tokens in thousandths, and when they were counted.
    pub tokens: u64,
    pub counted: u64,
}

impl Publishing {
    /// Whether `part`, which slurmctld has, is all of what is wanted of GPUs.
    pub fn is_as(&self, part: &ExtraPart, wanted: &ExtraPart) -> bool {
        part.has_same_gpus(wanted) && !self.damaged
    }
}

/// Our drain of the node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeDrain {
    /// The reason that Slurm shows.
    pub reason: String,
    /// When, as given to [`super::step`], in ms.
    pub at_ms: u64,
    /// Since when nothing speaks for it any more.
    pub(super) over: Option<u64>,
    /// Slurm showed it.
    pub(super) seen: bool,
    /// An administrator resumed the node in Slurm: it is not drained again for this.
    pub overruled: bool,
    /// When it was told last.
    pub(super) tried: u64,
    /// It is over, and Slurm still shows it, as far as is known.
    #[serde(default)]
    pub(super) leaving: bool,
}

/// A node. [`super::step`] is the only way to change it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeHealth {
    /// Its GPUs of GRES gpu, by index.
    pub gpus: Vec<GpuHealth>,
    /// Those of its pool.
    #[serde(default)]
    pub pool: BTreeMap<NodeGpu, GpuHealth>,
    /// Steps and jobs with GPUs, as told last.
    pub jobs: Vec<Job>,
    /// Our drain of the whole node.
    pub drain: Option<NodeDrain>,
    /// An administrator's drain of the whole node, given to gpuos.
    pub hold: Option<Hold>,
    /// Troubles of the node.
    pub causes: Vec<Cause>,
    /// Time that went by in small steps, in ms: a clock that jumps moves it little.
    pub(super) clock: u64,
    /// The last time given.
    pub(super) wall: Option<u64>,
    /// When slurmctld's word about jobs came last.
    pub(super) jobs_at: Option<u64>,
    /// When anybody's word about jobs came last.
    #[serde(default)]
    pub(super) heard_at: Option<u64>,
    pub(super) silent: bool,
    /// Network adapters that are down, with their GPUs.
    pub(super) nics: BTreeMap<String, Vec<NodeGpu>>,
    pub(super) memory: BTreeMap<u32, (u64, u64)>,
    pub(super) stalls: BTreeMap<String, u64>,
    /// Lines about the kernel's log that were said of late.
    #[serde(default)]
    pub(super) telling: LogRate,
    pub(super) watches: BTreeMap<String, Watch>,
    pub(super) acts: Vec<Act>,
    pub(super) publishing: Publishing,
    #[serde(default)]
    pub(super) holding: Holding,
    /// Source of the spread of publications.
    pub(super) seed: u64,
}

impl NodeHealth {
    /// A node with sound GPUs, none of them in a pool. `seed` spreads publications of many nodes: give each node another.
    pub fn new(gpus: u8, seed: u64) -> NodeHealth {
        let gpus = usize::from(gpus).min(gpuos_model::gpuset::MAX_GPUS);
        NodeHealth {
            gpus: vec![GpuHealth::default(); gpus],
            pool: BTreeMap::new(),
            jobs: Vec::new(),
            drain: None,
            hold: None,
            causes: Vec::new(),
            clock: 0,
            wall: None,
            jobs_at: None,
            heard_at: None,
            silent: false,
            nics: BTreeMap::new(),
            memory: BTreeMap::new(),
            stalls: BTreeMap::new(),
            telling: LogRate::default(),
            watches: BTreeMap::new(),
            acts: Vec::new(),
            publishing: Publishing::default(),
            holding: Holding::default(),
            seed,
        }
    }

    /// Where a GPU stands; a GPU that the node does not have is offline.
    pub fn state(&self, gpu: NodeGpu) -> GpuState {
        let Some(health) = self.gpu(gpu) else {
            return GpuState::Offline;
        };
        match health.service {
            Service::Draining => GpuState::Draining,
            Service::Drained => GpuState::Drained,
            Service::Resetting | Service::Checking => GpuState::Resetting,
            Service::Offline => GpuState::Offline,
            Service::In if health.causes.iter().any(|cause| cause.action.degrades()) => {
                GpuState::Degraded
            }
            Service::In if !self.has_job(gpu) => GpuState::Available,
            Service::In if health.busy() => GpuState::InUse,
            Service::In => GpuState::Allocated,
        }
    }

    /// What slurmctld is to know.
    pub fn part(&self) -> ExtraPart {
        let gres = || (0..self.gpus.len()).map_while(GresGpu::new);
        let out = |gpu: NodeGpu| self.state(gpu).is_out();
        let degraded = |gpu: NodeGpu| self.state(gpu) == GpuState::Degraded;
        let pool = self.pool.keys().filter(|gpu| out(**gpu));
        ExtraPart {
            out: gres().filter(|gpu| out((*gpu).into())).collect(),
            degraded: gres().filter(|gpu| degraded((*gpu).into())).collect(),
            pool_out: pool.filter_map(|gpu| gpu.pool()).collect(),
            short: self.holding.is_short(),
            held: self.holding.part(),
            held_more: self.holding.has_more(),
        }
    }

    /// Says before the next [`super::step`], at `now_ms`, how many ms went by since the last one, for who knows better
    /// than a wall clock that may have been set.
    pub fn set_elapsed(&mut self, now_ms: u64, passed_ms: u64) {
        self.wall = Some(now_ms.saturating_sub(passed_ms));
    }

    /// Whether a job has the GPU, as told last.
    pub fn has_job(&self, gpu: NodeGpu) -> bool {
        self.jobs.iter().any(|job| job.gpus.contains(&gpu))
    }

    /// Whether slurmctld has confirmed all that it is to know of GPUs.
    pub fn is_confirmed(&self) -> bool {
        let wanted = self.part();
        let confirmed = self.publishing.confirmed.as_ref();
        confirmed.map_or(wanted.is_empty(), |part| {
            self.publishing.is_as(part, &wanted)
        })
    }

    /// Whether slurmctld has confirmed that the GPU gets no jobs.
    pub fn confirmed_out(&self, gpu: NodeGpu) -> bool {
        let confirmed = self.publishing.confirmed.as_ref();
        confirmed.is_some_and(|part| part.has_out(gpu))
    }

    /// A GPU; `None`: the node does not have it.
    pub fn gpu(&self, gpu: NodeGpu) -> Option<&GpuHealth> {
        match gpu {
            NodeGpu::Pool(_) => self.pool.get(&gpu),
            NodeGpu::Gres(gpu) => self.gpus.get(gpu.index()),
        }
    }

    pub(super) fn gpu_mut(&mut self, gpu: NodeGpu) -> Option<&mut GpuHealth> {
        match gpu {
            NodeGpu::Pool(_) => self.pool.get_mut(&gpu),
            NodeGpu::Gres(gpu) => self.gpus.get_mut(gpu.index()),
        }
    }

    /// A GPU is in no pool any more: it has no instances that could be counted before it is reset.
    pub fn undivided(&mut self, gpu: NodeGpu) {
        if let Some(health) = self.gpu_mut(gpu) {
            health.instances = None;
        }
    }

    /// All GPUs, those of the pool last.
    pub fn numbers(&self) -> Vec<NodeGpu> {
        let gres = (0..self.gpus.len()).map_while(GresGpu::new);
        gres.map(NodeGpu::Gres)
            .chain(self.pool.keys().copied())
            .collect()
    }
}

/// A GPU that the node has.
impl Index<NodeGpu> for NodeHealth {
    type Output = GpuHealth;

    fn index(&self, gpu: NodeGpu) -> &GpuHealth {
        match gpu {
            NodeGpu::Pool(_) => &self.pool[&gpu],
            NodeGpu::Gres(gpu) => &self.gpus[gpu.index()],
        }
    }
}

impl IndexMut<NodeGpu> for NodeHealth {
    fn index_mut(&mut self, gpu: NodeGpu) -> &mut GpuHealth {
        match gpu {
            NodeGpu::Pool(_) => self.pool.entry(gpu).or_default(),
            NodeGpu::Gres(gpu) => &mut self.gpus[gpu.index()],
        }
    }
}

impl GpuHealth {
    /// Whether it serves, and nobody and nothing speaks against it.
    pub fn is_healthy(&self) -> bool {
        self.service == Service::In && self.causes.is_empty() && self.hold.is_none()
    }

    /// Whether it computed at the last poll, or processes were on it.
    pub fn busy(&self) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|sample| sample.busy_percent > Some(0) || sample.processes > Some(0))
    }
}
