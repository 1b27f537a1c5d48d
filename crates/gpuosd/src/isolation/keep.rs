//! What the loop holds of isolation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpuos_core::isolation::{Effect, Finding, Holding, Plan, Policy, Process, Seen, Watch, step};
use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_core::wire::{IsolationStatus, ProcessStatus};
use gpuos_model::gpu_index::GresGpu;
use gpuos_workload::job::Job;

use crate::jobs::Table;

/// Processes that are told of one GPU.
const SHOWN: usize = 64;

/// Policy, findings and who was seen last.
#[derive(Debug, Default)]
pub struct Keeper {
    policy: Policy,
    watch: Watch,
    seen: Vec<Process>,
    scanned: bool,
    blind: Option<String>,
    /// Jobs as Slurm told them, those included that are ending.
    jobs: Vec<Holding>,
    /// When it was asked for them.
    asked: Option<Instant>,
    /// The first round: times are counted from there.
    began: Option<Instant>,
}

impl Keeper {
    /// Takes `[isolation]` of gpuos.toml.
    pub fn set(&mut self, policy: &Policy) {
        self.policy = policy.clone();
    }

    /// Slurm told the jobs of this node, `asked` for then. `slices` has the GPUs of GRES `gpu` of which a job has slices.
    pub fn jobs(
        &mut self,
        node: &str,
        jobs: &[Job],
        slices: impl Fn(&Job) -> Vec<GresGpu>,
        asked: Instant,
    ) {
        let holding = |job: &Job| Holding {
            job: job.id.clone(),
            uid: job.uid,
            gpus: job
                .gpus_on(node)
                .iter()
                .filter_map(GresGpu::new)
                .chain(slices(job))
                .collect(),
            steps: BTreeMap::new(),
            shares: job.shares,
        };
        let before = std::mem::take(&mut self.jobs);
        let running = jobs.iter().filter(|job| job.is_running());
        let told = running.map(|job| match job.unreadable.is_empty() {
            true => holding(job),
            // What it had stays its own.
            false => before
                .iter()
                .find(|one| one.job == job.id)
                .cloned()
                .unwrap_or_else(|| holding(job)),
        });
        self.jobs = told.collect();
        self.asked = Some(asked);
    }

    /// A round came: what is to be done about it.
    pub fn round(
        &mut self,
        seen: Seen,
        blind: Option<String>,
        table: &Table,
        now: Instant,
    ) -> Vec<Effect> {
        let began = *self.began.get_or_insert(now);
        let since = |at: Instant| milliseconds(at.saturating_duration_since(began));
        let plan = Plan {
            jobs: self.holdings(table),
            asked_ms: self.asked.map_or(0, since),
        };
        let effects = step(&mut self.watch, &self.policy, &plan, &seen, since(now));
        self.seen = seen.processes;
        self.scanned = true;
        self.blind = blind;
        effects
    }

    /// Who holds what, by Slurm, and which of it its steps named.
    fn holdings(&self, table: &Table) -> Vec<Holding> {
        let mut all: BTreeMap<JobId, Holding> = BTreeMap::new();
        for told in &self.jobs {
            all.insert(told.job.clone(), told.clone());
        }
        for (job, held) in &table.jobs {
            let one = all.entry(job.clone()).or_insert_with(|| Holding {
                job: job.clone(),
                uid: held.uid,
                ..Holding::default()
            });
            one.gpus.extend(&held.gpus);
            one.gpus.extend(held.steps.values().flatten());
            let steps = held.steps.iter();
            one.steps = steps
                .map(|(step, gpus)| (StepId::name(*step), gpus.clone()))
                .collect();
        }
        all.into_values().collect()
    }

    /// Users of the jobs of this node.
    pub fn users(&self, table: &Table) -> BTreeMap<JobId, u32> {
        let told = self.jobs.iter().map(|job| (job.job.clone(), job.uid));
        let held = table.jobs.iter().map(|(job, held)| (job.clone(), held.uid));
        told.chain(held).collect()
    }

    /// Foreign processes by GPU.
    pub fn foreign(&self) -> BTreeMap<GresGpu, u64> {
        let mut counts = BTreeMap::new();
        for finding in self.watch.findings().filter(|one| one.pid.is_some()) {
            *counts.entry(finding.gpu).or_default() += 1;
        }
        counts
    }

    /// GPU memory in MiB of each job's processes, by GPU.
    pub fn job_memory(&self) -> BTreeMap<(GresGpu, JobId), u64> {
        let mut sums: BTreeMap<(GresGpu, JobId), u64> = BTreeMap::new();
        for process in &self.seen {
            if let (Some((job, _)), Some(mib)) = (&process.step, process.memory_mib) {
                *sums.entry((process.gpu, job.clone())).or_default() += mib;
            }
        }
        sums
    }

    /// Processes on a GPU, as clients see them.
    pub fn on(&self, gpu: GresGpu) -> Vec<ProcessStatus> {
        let here = self.seen.iter().filter(|process| process.gpu == gpu);
        let status = |process: &Process| ProcessStatus {
            pid: process.pid,
            uid: process.uid,
            program: process.program.clone(),
            job: process.step.as_ref().map(|(job, _)| job.clone()),
            step: process.step.as_ref().map(|(_, step)| step.clone()),
            gpu_instance: process.instance,
            memory_mib: process.memory_mib,
            foreign: self.watch.is_foreign(process),
        };
        here.take(SHOWN).map(status).collect()
    }

    /// The numbers of a job's processes on GPUs.
    pub fn pids(&self, job: &JobId, step: &str) -> Vec<u32> {
        let own = |process: &&Process| {
            process
                .step
                .as_ref()
                .is_some_and(|(of, name)| *of == *job && name == step)
        };
        let pids: BTreeSet<u32> = self.seen.iter().filter(own).map(|one| one.pid).collect();
        pids.into_iter().collect()
    }

    /// How things stand, as clients see it.
    pub fn status(&self) -> IsolationStatus {
        IsolationStatus {
            devices: match (&self.blind, self.scanned) {
                (_, false) => "not looked yet".into(),
                (None, true) => "checked".into(),
                (Some(why), true) => format!("unknown: {why}"),
            },
            findings: self.watch.findings().cloned().collect::<Vec<Finding>>(),
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
