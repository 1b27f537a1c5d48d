//! What is known of a mom's host: what its hook told, what pbs_server showed, and what has to be done.

use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use gpuos_core::health::ExtraPart;
use gpuos_core::job::JobId;
use gpuos_core::wire::{MomChoice, MomEnd, MomHost, MomJob, MomReport, MomRoom};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::gpuset::GpuSet;
use gpuos_workload::PoolRoom;
use gpuos_workload::job::{Allocation, Job, JobState, Unplaced};

use super::choices::Choices;
use super::choose::{Choice, Gpus, Holder, Refusal};

/// What mom told is gone by for so long: its hook comes every 5 s.
const SILENT: Duration = Duration::from_secs(60);
/// With something out of service, pbs_server is looked at so often.
pub(super) const LOOK: Duration = Duration::from_secs(15);
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
    /// The GPUs, as they are described.
    pub(super) gpus: Gpus,
    /// What the pool of divided ones has room for; `None`: nobody has said yet.
    pub(super) pool: Option<PoolRoom>,
    /// Which GPUs jobs have is chosen here. A daemon that has no say in that only hears of jobs.
    pub(super) chooses: bool,
    /// What was chosen.
    pub(super) choices: Choices,
    /// Runs of jobs that were here before the first list, and of which it is not known what was chosen.
    pub(super) unknown: BTreeMap<JobId, u64>,
    /// Another one gives the GPUs, and what has to be done is only said.
    pub(super) advise: bool,
    /// Jobs that mom has.
    pub(super) jobs: BTreeMap<JobId, MomJob>,
    /// Jobs of which a program was launched since all were told, and whether one list came since then without them: it may have been made before.
    pub(super) fresh: BTreeMap<JobId, bool>,
    /// Runs of jobs that have left this host and may be in mom's lists still.
    pub(super) left: BTreeMap<JobId, Left>,
    /// The host's own vnode as pbs_server had it, and when.
    pub(super) host: Option<(MomHost, Instant)>,
    /// What mom was told last that PBS is to count and to show.
    pub(super) told_room: Option<MomRoom>,
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
        if let Some(host) = &report.host {
            self.host = Some((host.clone(), Instant::now()));
        }
        let unheard = self.heard.is_none();
        let mut renumbered = false;
        if report.all {
            let known = self.uuids();
            if self.gpus.described() != report.described {
                self.gpus = Gpus::of(report.described.clone());
            }
            renumbered = unheard || self.uuids() != known;
            self.advise = report.advise;
            self.heard = Some(Instant::now());
        }
        self.settle(report, (&before, unheard));
        renumbered
    }

    /// UUIDs of the GPUs that are not divided, in their order.
    pub(super) fn uuids(&self) -> Vec<String> {
        let gpus = self.gpus.described().iter().filter(|gpu| !gpu.divided);
        gpus.map(|gpu| gpu.uuid.clone()).collect()
    }

    /// Frees what runs had that have left, and chooses for those of a report that have nothing yet. `before` are the jobs that were known; `unheard`: no list had come.
    fn settle(&mut self, report: &MomReport, (before, unheard): (&BTreeMap<JobId, MomJob>, bool)) {
        let (jobs, left) = (&self.jobs, &self.left);
        let heard = self.heard.is_some();
        if heard {
            let is_lost = |job: &JobId, run: u64| {
                let gone = !jobs.contains_key(job);
                gone && left.get(job).is_none_or(|left| run > left.run)
            };
            self.choices.lose(is_lost, LINGERS);
        }
        self.choices.retain(|job, run| match jobs.get(job) {
            Some(held) => held.run == run,
            // Before the first list a job may be here of which nobody has told yet.
            None => !heard && left.get(job).is_none_or(|left| run > left.run),
        });
        // A launch tells of one job, and a list in several lines of more in one.
        if unheard && (report.all || report.jobs.len() > 1) {
            let new = report
                .jobs
                .iter()
                .filter(|job| !before.contains_key(&job.job));
            let new = new.filter(|job| self.choices.lacks(job));
            self.unknown
                .extend(new.map(|job| (job.job.clone(), job.run)));
        }
        let told = report.also.iter();
        let told = told.chain(report.jobs.iter().map(|told| &told.job));
        let chooses = self.chooses && !self.advise;
        for job in told.filter(|_| chooses) {
            let held = self.jobs.get(job);
            if held.is_some_and(|held| self.choices.lacks(held)) {
                // It is tried again with each list.
                let _ = self.place(job, false);
            }
        }
        self.choices.save();
    }

    /// Whether a program of a job has to wait for GPUs that are to be chosen for it.
    pub(super) fn waits_for_gpus(&self, job: &MomJob) -> bool {
        let here = self
            .jobs
            .get(&job.job)
            .is_some_and(|held| held.run == job.run);
        let lacks = here && !self.advise && self.choices.lacks(job);
        self.chooses && lacks && self.choices.may_wait(job)
    }

    /// Chooses GPUs for a job that has none yet. `anyway`: also where it is not known which are out of service.
    ///
    /// # Errors
    /// There are none for it now.
    pub(super) fn place(&mut self, job: &JobId, anyway: bool) -> Result<(), Refusal> {
        let unknown = |why: &str| Refusal {
            why: why.into(),
            unfit: true,
        };
        let Some(held) = self.jobs.get(job) else {
            return Err(Refusal {
                why: format!("pbs_mom has told that this run of job {job} has left this host"),
                unfit: false,
            });
        };
        if self.heard.is_none() {
            return Err(unknown(
                "pbs_mom has not told gpuosd yet which GPUs this host has",
            ));
        }
        let out = match self.known_out() {
            Some(out) => out,
            None if anyway => GpuSet::EMPTY,
            None => {
                return Err(unknown(
                    "gpuosd does not know yet which GPUs are out of service",
                ));
            }
        };
        let others = self.holders(Some(job));
        let choice = self.gpus.choose(held, &others, out);
        let choice = choice.map_err(|why| self.misfit(held).unwrap_or(why))?;
        if self.unknown.remove(job) == Some(choice.run) {
            let all: GpuSet = choice.all().collect();
            self.choices.warn(&format!(
                "job {job} of PBS runs here, and it is not known which GPUs were chosen for it: GPU {all} counts as its own from now on"
            ));
        }
        self.choices.insert(job, choice);
        Ok(())
    }

    /// Whether PBS counts more than is described of the host: as much is nobody's to choose, and PBS goes on as without gpuos.
    fn misfit(&self, job: &MomJob) -> Option<Refusal> {
        let has = self.gpus.described().len() as u64;
        let counted = self.seen().map_or(0, |host| host.counted);
        let counted = counted.max(u64::from(job.count));
        (job.count > 0 && counted > has).then(|| Refusal {
            why: format!(
                "PBS counts {counted} GPUs of this host, and by gpus.json it has {has}: describe the host as it is, and run `gpuos pbs install` again"
            ),
            unfit: true,
        })
    }

    /// What jobs here have, without one of them.
    pub(super) fn holders(&self, but: Option<&JobId>) -> Vec<Holder> {
        let here = self.jobs.values().filter(|held| Some(&held.job) != but);
        let here = here.map(|held| holder(held, self.choices.of_run(held)));
        // Before the first list has come.
        let unheard = self.choices.all();
        let unheard = unheard.filter(|(job, _)| Some(*job) != but && !self.jobs.contains_key(*job));
        let unheard = unheard.map(|(_, choice)| holder(&MomJob::default(), Some(choice)));
        let lost = self.choices.lost();
        // They count where GPUs are chosen, and are free for PBS.
        let lost = lost
            .filter(|(job, _)| but.is_some_and(|but| *job != but) && !self.jobs.contains_key(*job));
        let lost = lost.map(|(_, choice)| Holder {
            suspended: true,
            ..holder(&MomJob::default(), Some(choice))
        });
        here.chain(unheard).chain(lost).collect()
    }

    /// What is said to programs that are about to start.
    pub(super) fn chosen(&mut self, report: &MomReport) -> BTreeMap<JobId, MomChoice> {
        let mut all = BTreeMap::new();
        if !self.chooses || self.advise {
            return all;
        }
        for told in &report.jobs {
            let lacks = self.choices.lacks(told);
            let counts = told.count > 0 || told.parts > 0;
            if !counts && told.gpus.is_empty() && told.shared.is_empty() {
                continue;
            }
            // One alone has waited.
            let anyway = report.jobs.len() == 1;
            let refused = match lacks {
                true => self.place(&told.job, anyway).err(),
                false => None,
            };
            let choice = match refused {
                Some(Refusal { why, unfit }) => MomChoice {
                    gpus: Vec::new(),
                    refused: why,
                    as_stock: unfit,
                },
                None => {
                    let own: GpuSet = has(told, self.choices.of_run(told)).collect();
                    MomChoice {
                        gpus: own.iter().filter_map(GresGpu::new).collect(),
                        ..MomChoice::default()
                    }
                }
            };
            all.insert(told.job.clone(), choice);
        }
        self.choices.save();
        all
    }

    /// Takes out what has ended: this run of a job, and any before it. A later one goes on, whose end this late word does not tell.
    fn over(&mut self, ended: &[MomEnd]) {
        for MomEnd { job, run } in ended {
            if self.jobs.get(job).is_some_and(|held| held.run > *run) {
                continue;
            }
            let held = self.jobs.remove(job);
            if let (Some(_), Some(pool)) = (held.and_then(|held| held.slices), &mut self.pool) {
                // Its slices go within a moment. Until it is known what there is room for then, a start is tried rather than missed.
                pool.fits = pool.memory;
            }
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
        let choice = self.choices.of_run(held);
        let whole = choice.into_iter().flat_map(|choice| &choice.gpus);
        let shared = choice.and_then(|choice| choice.shared);
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
                gpus: held.gpus.iter().chain(whole).copied().collect(),
                shared: held.shared.iter().copied().chain(shared).collect(),
                memory_mib: held.memory_mib,
                ..Allocation::default()
            }],
            unplaced: held.slices.as_ref().map(|slices| Unplaced {
                request: slices.request.clone(),
                gpus: slices.gpus.iter().copied().collect(),
                chunks: slices.chunks,
                compute: slices.compute,
                memory: slices.memory,
            }),
            ..Job::default()
        }
    }
}

/// What a job has of a host.
fn holder(held: &MomJob, choice: Option<&Choice>) -> Holder {
    let chosen = choice.into_iter().flat_map(|choice| &choice.gpus);
    let parts = choice.and_then(|choice| Some((choice.shared?, Some(choice.parts))));
    let before = held.shared.iter();
    let before = before.map(|gpu| (*gpu, (held.parts > 0).then_some(held.parts)));
    Holder {
        whole: held.gpus.iter().chain(chosen).copied().collect(),
        parts: before.chain(parts).collect(),
        suspended: held.suspended,
    }
}

/// The GPUs that a job has, as a whole or in part.
pub(super) fn has(held: &MomJob, choice: Option<&Choice>) -> impl Iterator<Item = GresGpu> {
    let before = held.gpus.iter().chain(&held.shared).copied();
    before.chain(choice.into_iter().flat_map(Choice::all))
}
