//! What is known of a mom's host: what its hook told, what pbs_server showed, and what has to be done.

use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use gpuos_core::health::ExtraPart;
use gpuos_core::job::JobId;
use gpuos_core::wire::{HostOrder, MomEnd, MomJob, MomOrders, MomReport, MomVnodes};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::gpuset::GpuSet;
use gpuos_workload::job::{Allocation, Job, JobState, Unplaced};

/// What mom told is gone by for so long: its hook comes every 5 s.
const SILENT: Duration = Duration::from_secs(60);
/// With a vnode offline, pbs_server is looked at so often.
const LOOK: Duration = Duration::from_secs(15);
/// So long a run that has left may still be in mom's lists. Of a job of several hosts the first one's mom keeps it, until the others have answered or for 4 to 6 min, after
/// pbs_server has given its vnodes away.
pub(super) const LINGERS: Duration = Duration::from_secs(600);

/// A run of a job that has left this host, by mom's word.
#[derive(Clone, Copy)]
pub(super) struct Left {
    /// Its number; runs before it have left as well.
    run: u64,
    /// When mom said so.
    pub(super) at: Instant,
}

/// What is known, and what has to be done.
#[derive(Default)]
pub(super) struct State {
    /// When mom told all its jobs last.
    pub(super) heard: Option<Instant>,
    /// UUIDs of the GPUs, in the order of their vnodes.
    pub(super) gpus: Vec<String>,
    /// GPUs that are divided and have a vnode.
    pub(super) pool: Vec<NvmlIndex>,
    /// Another one gives the GPUs, and what has to be done is only said.
    pub(super) advise: bool,
    /// Jobs that mom has.
    pub(super) jobs: BTreeMap<JobId, MomJob>,
    /// Jobs of which a program was launched since all were told, and whether one list came since then without them: it may have been made before.
    pub(super) fresh: BTreeMap<JobId, bool>,
    /// Runs of jobs that have left this host and may be in mom's lists still.
    pub(super) left: BTreeMap<JobId, Left>,
    /// The vnodes as pbs_server had them, and when.
    pub(super) vnodes: Option<(MomVnodes, Instant)>,
    /// The state of the GPUs as it has to be; `None`: nobody has said yet.
    pub(super) wanted: Option<ExtraPart>,
    /// The same of the whole host.
    pub(super) drain: Option<Option<String>>,
    /// Jobs that have to run again or to end, and how often mom was told.
    pub(super) rerun: BTreeMap<JobId, u32>,
    pub(super) end: BTreeMap<JobId, u32>,
    /// Somebody waits for pbs_server to show something.
    pub(super) awaited: u32,
}

impl State {
    /// Why what is known cannot be gone by.
    pub(super) fn silence(&self) -> Option<String> {
        let missing = "see that the hook of `gpuos pbs install` is in use and that pbs_mom runs";
        match self.heard {
            None => Some(format!(
                "pbs_mom has told nothing yet since gpuosd started; {missing}"
            )),
            Some(at) if at.elapsed() > SILENT => Some(format!(
                "pbs_mom told something last {} s ago; {missing}",
                at.elapsed().as_secs()
            )),
            Some(_) => None,
        }
    }

    /// All GPUs that have a vnode.
    pub(super) fn all(&self) -> impl Iterator<Item = GresGpu> + use<> {
        (0..self.gpus.len()).filter_map(GresGpu::new)
    }

    /// Vnodes that have to be offline by a state of the GPUs, by their numbers.
    pub(super) fn out(&self, part: &ExtraPart) -> Vec<GresGpu> {
        let whole = part.out.iter().filter(|gpu| gpu.index() < self.gpus.len());
        let pool = self.pool.iter().filter(|gpu| part.pool_out.contains(gpu));
        let pool = pool.filter_map(|gpu| GresGpu::new(gpu.index()));
        whole.copied().chain(pool).collect()
    }

    /// The vnodes as pbs_server had them last.
    pub(super) fn seen(&self) -> Option<&MomVnodes> {
        self.vnodes.as_ref().map(|(vnodes, _)| vnodes)
    }

    /// Whether pbs_server has the vnodes as they have to be.
    pub(super) fn is_shown(&self) -> bool {
        let Some(seen) = self.seen() else {
            return false;
        };
        if self.advise {
            return self.is_advice_shown(seen);
        }
        let whole = match &self.drain {
            None => true,
            Some(Some(_)) => seen.whole,
            Some(None) => seen.drained.is_none(),
        };
        let gpus = self.wanted.as_ref().is_none_or(|wanted| {
            let out = self.out(wanted);
            let offline = out.iter().all(|gpu| seen.offline.contains(gpu));
            offline && seen.own.iter().all(|gpu| out.contains(gpu))
        });
        whole && gpus
    }

    /// Whether pbs_server is to be asked how the vnodes are.
    pub(super) fn looks(&self) -> bool {
        let Some((seen, at)) = &self.vnodes else {
            return true;
        };
        let out = !seen.own.is_empty() || seen.drained.is_some();
        let wanted = self
            .wanted
            .as_ref()
            .is_some_and(|part| !self.out(part).is_empty());
        !self.is_shown() || (out || wanted) && at.elapsed() > LOOK
    }

    /// What mom is to do.
    pub(super) fn orders(&self) -> MomOrders {
        if self.advise {
            return self.advised_orders();
        }
        MomOrders {
            out: self.wanted.as_ref().map(|part| self.out(part)),
            host: match &self.drain {
                None => HostOrder::Leave,
                Some(None) => HostOrder::Online,
                Some(Some(reason)) => HostOrder::Offline(reason.clone()),
            },
            look: self.looks(),
            rerun: self.rerun.clone(),
            end: self.end.clone(),
        }
    }

    /// What is published of the GPUs by the state of their vnodes. What PBS has no place for counts as published.
    pub(super) fn published(&self, seen: &MomVnodes) -> ExtraPart {
        let mut part = self.wanted.clone().unwrap_or_default();
        if self.advise {
            return self.advised_part(part);
        }
        let wanted = self.out(&part);
        let out = |gpu: &GresGpu| match wanted.contains(gpu) {
            true => seen.offline.contains(gpu),
            false => seen.own.contains(gpu),
        };
        part.out = self.all().filter(out).collect();
        let pool = self.pool.iter();
        let pool = pool.filter(|gpu| GresGpu::new(gpu.index()).as_ref().is_some_and(out));
        part.pool_out = pool.copied().collect();
        part
    }

    /// Takes what mom has told. Returns whether GPUs have other numbers now.
    pub(super) fn take(&mut self, report: &MomReport) -> bool {
        self.over(&report.ended);
        if report.all {
            self.keep_left(report);
        }
        let before = std::mem::take(&mut self.jobs);
        match report.all {
            true => {
                let still = report.also.iter();
                let still = still.filter_map(|job| Some((job.clone(), before.get(job)?.clone())));
                self.jobs.extend(still);
            }
            false => self.jobs.clone_from(&before),
        }
        for job in &report.jobs {
            let left = self.left.get(&job.job);
            if left.is_some_and(|left| job.run <= left.run) {
                continue;
            }
            let mut job = job.clone();
            // Where pbs_server was not asked both are what they were.
            let known = before.get(&job.job).filter(|known| known.run == job.run);
            job.is_held = job.is_held.or(known.and_then(|known| known.is_held));
            job.may_rerun = job.may_rerun.or(known.and_then(|known| known.may_rerun));
            self.jobs.insert(job.job.clone(), job);
        }
        match report.all {
            true => self.keep_fresh(&before, report.asked),
            false => {
                let launched = report.jobs.iter().map(|job| (job.job.clone(), false));
                self.fresh.extend(launched);
            }
        }
        // A job that runs again is another one for what was to be done with it.
        let now = &self.jobs;
        let same = |job: &JobId| {
            let run = |jobs: &BTreeMap<JobId, MomJob>| jobs.get(job).map(|held| held.run);
            run(now).is_some() && run(now) == run(&before)
        };
        self.rerun.retain(|job, _| same(job));
        self.end.retain(|job, _| same(job));
        if let Some(vnodes) = &report.vnodes {
            self.vnodes = Some((vnodes.clone(), Instant::now()));
        }
        if !report.all {
            return false;
        }
        let renumbered = self.heard.is_none() || self.gpus != report.gpus;
        self.gpus.clone_from(&report.gpus);
        self.pool.clone_from(&report.pool);
        self.advise = report.advise;
        self.heard = Some(Instant::now());
        renumbered
    }

    /// Takes out what has ended: this run of a job, and any before it. A later one goes on, whose end this late word does not tell.
    fn over(&mut self, ended: &[MomEnd]) {
        for MomEnd { job, run } in ended {
            if self.jobs.get(job).is_some_and(|held| held.run > *run) {
                continue;
            }
            self.jobs.remove(job);
            self.fresh.remove(job);
            let known = self.left.get(job).map_or(0, |left| left.run);
            let (run, at) = (known.max(*run), Instant::now());
            self.left.insert(job.clone(), Left { run, at });
        }
    }

    /// A list has come. A run that it lacks comes in no later one. What it has of a run that has left is no sign of life, however often it comes: mom says
    /// that a run has left at her own end of it, and lists it for as long as she keeps its record.
    fn keep_left(&mut self, report: &MomReport) {
        if report.asked {
            // It is the list of before once more.
            return;
        }
        let has = |job: &JobId| {
            let mut jobs = report.jobs.iter().map(|held| &held.job);
            jobs.any(|one| one == job) || report.also.contains(job)
        };
        self.left
            .retain(|job, left| has(job) && left.at.elapsed() <= LINGERS);
    }

    /// Keeps jobs that were launched while this list was made, which has them not or as they were. `again`: it is the list of before once more.
    pub(super) fn keep_fresh(&mut self, before: &BTreeMap<JobId, MomJob>, again: bool) {
        let jobs = &mut self.jobs;
        self.fresh.retain(|job, lacked| {
            let Some(launched) = before.get(job) else {
                return false;
            };
            if jobs.get(job).is_some_and(|told| told.run >= launched.run) {
                return false;
            }
            if *lacked && !again {
                return false;
            }
            *lacked = true;
            jobs.insert(job.clone(), launched.clone());
            true
        });
    }

    /// The record of a job that mom has.
    pub(super) fn job(&self, node: &str, held: &MomJob) -> Job {
        let set = |gpus: &[GresGpu]| {
            let numbers = gpus.iter().map(|gpu| gpu.index());
            numbers.fold(GpuSet::EMPTY, GpuSet::with)
        };
        let (state, word) = match held.suspended {
            true => (JobState::Stopped, "S"),
            false => (JobState::Running, "R"),
        };
        Job {
            id: held.job.clone(),
            user: held.user.clone(),
            uid: held.uid,
            state,
            state_word: word.into(),
            nodes: vec![node.into()],
            script_on: node.into(),
            // The hook asks pbs_server before it has a job run again.
            may_requeue: true,
            // PBS's first run has the number 1.
            restarts: u32::try_from(held.run.saturating_sub(1)).unwrap_or(u32::MAX),
            ends_in_s: held.ends_in_s,
            // It goes on until it is run again: nothing but that takes it out of the hands of mom.
            preempted: held.is_held == Some(true) && held.may_rerun == Some(true),
            allocations: vec![Allocation {
                nodes: vec![node.into()],
                gpus: set(&held.gpus),
                shared: set(&held.shared),
                memory_mib: held.memory_mib,
                ..Allocation::default()
            }],
            unplaced: held.slices.as_ref().map(|slices| Unplaced {
                request: slices.request.clone(),
                gpus: slices.gpus.iter().copied().collect(),
                compute: slices.compute,
                memory: slices.memory,
            }),
            ..Job::default()
        }
    }
}
