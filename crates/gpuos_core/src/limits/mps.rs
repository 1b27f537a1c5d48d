//! One daemon of NVIDIA's MPS for each job that asks for it, and one for the jobs of a user that share a GPU: when it is
//! started, and how it ends.
//!
//! As with power and clocks, what is about to be started stands on the disk first, and stands there until it
//! is known to have ended. A daemon that dies while its job runs is not started again: programs of the job may
//! have lost their work with it, and are not to be joined by others that know nothing of that.
use std::collections::{BTreeMap, BTreeSet};

use gpuos_model::gpu_index::GresGpu;
use serde::{Deserialize, Serialize};

use super::mps_client::MpsClient;
use super::state::Holder;
use crate::health::Audit;
use crate::job::JobId;

/// Wait after the first attempt at ending one that failed, in ms; twice as much after each further one.
const AGAIN_MS: u64 = 10_000;
/// So often the wait is doubled: up to about ten minutes.
const DOUBLED: u32 = 6;
/// After so many attempts at removing its folder, the folder is left where it is: it is the user's, who can see to it
/// that it cannot be removed.
pub const REMOVALS: u8 = 5;

/// A process, by two numbers that no other has until the next boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it was started, in the kernel's ticks since boot.
    pub started: u64,
}

/// The daemon of a job: on the disk before it is started and until it has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Serving {
    /// The job's user, as whom it runs.
    pub uid: u32,
    /// The job's group.
    pub gid: u32,
    /// GPUs that it serves.
    pub gpus: BTreeSet<GresGpu>,
    /// What the job asked for, in percent of a GPU's threads; of several jobs each has its own.
    pub percent: u8,
    /// Its process, once it runs.
    pub process: Option<Process>,
    /// It died while the job was there.
    #[serde(default)]
    pub died: bool,
    /// Attempts at ending it that failed.
    #[serde(default)]
    pub tried: u32,
    /// Attempts at removing its folder that failed.
    #[serde(default)]
    pub removals: u8,
}

/// Why the end of a daemon is not complete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotEnded {
    /// Processes of it live.
    Lives(String),
    /// They have ended, and their folder could not be removed.
    Left(String),
}

impl Serving {
    /// In words: `mps 50 %`.
    pub fn text(&self) -> String {
        match self.percent {
            100 => "mps".into(),
            percent => format!("mps {percent} %"),
        }
    }
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MpsEvent {
    /// gpuosd started with the state that it had saved.
    Started {
        /// The node was booted since: nothing runs any more.
        rebooted: bool,
    },
    /// All jobs with GPUs, as they are now.
    Jobs(Vec<Holder>),
    /// [`MpsEffect::Save`] came to its end.
    Saved {
        /// Its revision.
        revision: u64,
        /// Why it could not be written.
        result: Result<(), String>,
    },
    /// [`MpsEffect::Start`] came to its end; after an error nothing is left of it.
    Running {
        /// Whom it serves.
        whom: MpsClient,
        /// The daemon, or why there is none.
        result: Result<Process, String>,
    },
    /// A daemon is not there any more.
    Died {
        /// Whom it served.
        whom: MpsClient,
        /// Which.
        process: Process,
    },
    /// [`MpsEffect::End`] came to its end.
    Ended {
        /// Whom it serves.
        whom: MpsClient,
        /// Why not.
        result: Result<(), NotEnded>,
    },
    /// Time went by.
    Tick,
}

/// One thing to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MpsEffect {
    /// Write the state; answer with [`MpsEvent::Saved`].
    Save {
        /// Number of this state.
        revision: u64,
    },
    /// Start a daemon; answer with [`MpsEvent::Running`], and later with [`MpsEvent::Died`].
    Start {
        /// Whom it serves.
        whom: MpsClient,
        /// As whom, and for what.
        serving: Serving,
    },
    /// Look after one that an earlier gpuosd started: [`MpsEvent::Died`] when it is gone.
    Adopt {
        /// Whom it serves.
        whom: MpsClient,
        /// Which.
        process: Process,
    },
    /// End it, and remove its folder; answer with [`MpsEvent::Ended`].
    End {
        /// Whom it serves.
        whom: MpsClient,
        /// What is known of it.
        serving: Serving,
    },
    /// A line for the audit log.
    Audit(Audit),
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Phase {
    /// Read from the disk, and not looked at yet.
    #[default]
    Open,
    Saving(u64),
    Starting,
    /// It runs, and that is being written down: a step that used it before might lose it with gpuosd.
    Noting(u64),
    Running,
    Ending,
    /// It could not be ended; again at this time.
    Again(u64),
}

/// All daemons of a node. [`mps_step`] is the only way to change it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Mps {
    #[serde(rename = "kept")]
    serving: BTreeMap<MpsClient, Serving>,
    #[serde(skip)]
    phases: BTreeMap<MpsClient, Phase>,
    /// Who has none, and why, so that it is not tried again; for sharers, until another job joins them.
    #[serde(skip)]
    failed: BTreeMap<MpsClient, String>,
    #[serde(skip)]
    holders: Vec<Holder>,
    #[serde(skip)]
    told: bool,
    #[serde(skip)]
    revision: u64,
}

impl Mps {
    /// What runs, or is about to, by whom it serves.
    pub fn servers(&self) -> &BTreeMap<MpsClient, Serving> {
        &self.serving
    }

    /// What a step on these GPUs is told: that it may use the daemon, or why not. `None`: not known yet.
    pub fn outcome(
        &self,
        whom: &MpsClient,
        gpus: &BTreeSet<GresGpu>,
    ) -> Option<Result<(), String>> {
        if let Some(why) = self.failed.get(whom) {
            return Some(Err(why.clone()));
        }
        let (serving, phase) = (self.serving.get(whom)?, self.phases.get(whom)?);
        match phase {
            Phase::Running if serving.died => Some(Err("its daemon has died".into())),
            Phase::Running if !gpus.is_subset(&serving.gpus) => Some(Err(
                "its daemon serves the GPUs of the job's first step, and this one has others"
                    .into(),
            )),
            Phase::Running => Some(Ok(())),
            _ => None,
        }
    }

    /// Forgets why sharers have no daemon once another job is about to be one of them: it is tried again for that job.
    fn join(&mut self, holders: &[Holder]) {
        let of = |one: &Holder| MpsClient::of(&one.job, one.uid, &one.gpus, &one.asked);
        for holder in holders {
            let sharers = of(holder).filter(|whom| matches!(whom, MpsClient::Sharers { .. }));
            let mut known = self.holders.iter();
            if let Some(whom) = &sharers
                && !known.any(|old| old.job == holder.job && of(old) == sharers)
            {
                self.failed.remove(whom);
            }
        }
    }

    /// Whether somebody is to have a daemon; the error says why he cannot.
    fn wanted(&self, whom: &MpsClient) -> Option<Result<Serving, String>> {
        match whom {
            MpsClient::Job(job) => self.wanted_by_job(whom, job),
            MpsClient::Sharers { gpu, uid } => self.wanted_by_sharers(whom, *gpu, *uid).map(Ok),
        }
    }

    fn wanted_by_job(&self, whom: &MpsClient, job: &JobId) -> Option<Result<Serving, String>> {
        let holder = self.holders.iter().find(|holder| holder.job == *job)?;
        let mps = holder.asked.mps.filter(|mps| !mps.joint)?;
        let others = |gpu: &&GresGpu| {
            let mut others = self.holders.iter().filter(|other| other.job != *job);
            others.any(|other| !other.resting && other.gpus.contains(gpu))
        };
        if holder.asked.shared {
            return Some(Err("its GPUs are shared with other jobs".into()));
        }
        // Who comes later is told of those who were first, and not the other way round.
        if !self.serving.contains_key(whom)
            && let Some(gpu) = holder.gpus.iter().find(others)
        {
            return Some(Err(format!("GPU {gpu} is shared with other jobs")));
        }
        Some(Ok(Serving {
            uid: holder.uid,
            gid: mps.gid,
            gpus: holder.gpus.clone(),
            percent: mps.percent,
            process: None,
            died: false,
            tried: 0,
            removals: 0,
        }))
    }

    /// As long as one of them is there. The group is that of the first of them.
    fn wanted_by_sharers(&self, whom: &MpsClient, gpu: GresGpu, uid: u32) -> Option<Serving> {
        let mut sharers = self.holders.iter().filter(|one| {
            MpsClient::of(&one.job, one.uid, &one.gpus, &one.asked).as_ref() == Some(whom)
                && one.asked.shared
        });
        let gid = sharers.next()?.asked.mps?.gid;
        Some(Serving {
            uid,
            gid,
            gpus: [gpu].into(),
            percent: 100,
            process: None,
            died: false,
            tried: 0,
            removals: 0,
        })
    }
}

struct Ctx {
    now_ms: u64,
    wall_ms: u64,
    effects: Vec<MpsEffect>,
}

impl Ctx {
    fn audit(&mut self, whom: &MpsClient, text: String) {
        let (job, gpu, uid) = match whom {
            MpsClient::Job(job) => (Some(job.clone()), None, None),
            MpsClient::Sharers { gpu, uid } => (None, Some((*gpu).into()), Some(*uid)),
        };
        self.effects.push(MpsEffect::Audit(Audit {
            at_ms: self.wall_ms,
            job,
            gpu,
            uid,
            text,
            ..Audit::default()
        }));
    }

    fn save(&mut self, mps: &mut Mps) -> u64 {
        mps.revision += 1;
        let revision = mps.revision;
        self.effects.push(MpsEffect::Save { revision });
        revision
    }

    fn fail(&mut self, mps: &mut Mps, whom: MpsClient, why: String) {
        let run = match whom {
            MpsClient::Job(_) => "runs",
            MpsClient::Sharers { .. } => "run",
        };
        self.audit(&whom, format!("{} {run} without MPS: {why}", whom.text()));
        mps.failed.insert(whom, why);
    }
}

/// What follows from an event. Clocks as for [`super::step`]; effects are to be done in their order.
pub fn mps_step(mps: &mut Mps, event: MpsEvent, now_ms: u64, wall_ms: u64) -> Vec<MpsEffect> {
    let mut ctx = Ctx {
        now_ms,
        wall_ms,
        effects: Vec::new(),
    };
    match event {
        MpsEvent::Started { rebooted } => {
            mps.told = false;
            if rebooted {
                // The folders went with the boot; where they did not, they are removed.
                mps.serving.values_mut().for_each(|one| one.process = None);
            }
        }
        MpsEvent::Jobs(holders) => {
            mps.join(&holders);
            mps.holders = holders;
            mps.told = true;
        }
        MpsEvent::Saved {
            revision,
            result: told,
        } => saved(mps, &mut ctx, revision, &told),
        MpsEvent::Running { whom, result: told } => running(mps, &mut ctx, whom, told),
        MpsEvent::Died { whom, process } => died(mps, &mut ctx, whom, process),
        MpsEvent::Ended { whom, result: told } => ended(mps, &mut ctx, whom, told),
        MpsEvent::Tick => {}
    }
    if mps.told {
        let mut all: Vec<MpsClient> = mps.serving.keys().cloned().collect();
        let of = |one: &Holder| {
            // A job that asks for nothing may have left a daemon, or a note of why there is none.
            MpsClient::of(&one.job, one.uid, &one.gpus, &one.asked)
                .unwrap_or(MpsClient::Job(one.job.clone()))
        };
        all.extend(mps.holders.iter().map(of));
        all.sort_unstable();
        all.dedup();
        mps.failed.retain(|whom, _| all.contains(whom));
        for whom in all {
            advance(mps, &mut ctx, whom);
        }
    }
    ctx.effects
}

fn saved(mps: &mut Mps, ctx: &mut Ctx, revision: u64, told: &Result<(), String>) {
    for phase in mps.phases.values_mut() {
        // A full disk now takes nobody's daemon away.
        if matches!(phase, Phase::Noting(of) if *of <= revision) {
            *phase = Phase::Running;
        }
    }
    let waits = |phase: &Phase| matches!(phase, Phase::Saving(of) if *of <= revision);
    let all = mps.phases.iter().filter(|(_, phase)| waits(phase));
    let all: Vec<MpsClient> = all.map(|(whom, _)| whom.clone()).collect();
    for whom in all {
        let wanted = matches!(mps.wanted(&whom), Some(Ok(_)));
        match (told, mps.serving.get(&whom)) {
            (Ok(()), Some(serving)) if wanted => {
                let serving = serving.clone();
                mps.phases.insert(whom.clone(), Phase::Starting);
                ctx.effects.push(MpsEffect::Start { whom, serving });
            }
            // Nothing was started: nothing has to be undone.
            _ => {
                mps.serving.remove(&whom);
                mps.phases.remove(&whom);
                if let Err(why) = told {
                    ctx.fail(mps, whom, format!("it could not be written down: {why}"));
                }
            }
        }
    }
}

fn running(mps: &mut Mps, ctx: &mut Ctx, whom: MpsClient, told: Result<Process, String>) {
    let Some(serving) = mps.serving.get_mut(&whom) else {
        return;
    };
    match told {
        Ok(process) => {
            serving.process = Some(process);
            let has = match whom {
                MpsClient::Job(_) => "has",
                MpsClient::Sharers { .. } => "have",
            };
            let text = format!(
                "{} {has} {} for uid {} (pid {})",
                whom.text(),
                serving.text(),
                serving.uid,
                process.pid
            );
            ctx.audit(&whom, text);
            let revision = ctx.save(mps);
            mps.phases.insert(whom, Phase::Noting(revision));
        }
        Err(why) => {
            mps.serving.remove(&whom);
            mps.phases.remove(&whom);
            ctx.fail(mps, whom, why);
            ctx.save(mps);
        }
    }
}

fn died(mps: &mut Mps, ctx: &mut Ctx, whom: MpsClient, process: Process) {
    let phase = mps.phases.get(&whom);
    let running = matches!(phase, Some(Phase::Running | Phase::Noting(_)));
    let wanted = matches!(mps.wanted(&whom), Some(Ok(_)));
    let Some(serving) = mps.serving.get_mut(&whom) else {
        return;
    };
    if running && wanted && serving.process == Some(process) && !serving.died {
        serving.died = true;
        let text = format!(
            "the MPS daemon of {} (pid {}) has died and is not started again",
            whom.text(),
            process.pid
        );
        ctx.audit(&whom, text);
        ctx.save(mps);
    }
}

fn ended(mps: &mut Mps, ctx: &mut Ctx, whom: MpsClient, told: Result<(), NotEnded>) {
    let Some(serving) = mps.serving.get_mut(&whom) else {
        mps.phases.remove(&whom);
        return;
    };
    let (uid, first) = (serving.uid, serving.tried == 0);
    let text = match told {
        Ok(()) => {
            mps.phases.remove(&whom);
            mps.serving.remove(&whom);
            ctx.audit(
                &whom,
                format!("the MPS daemon of {} has ended", whom.text()),
            );
            ctx.save(mps);
            return;
        }
        Err(NotEnded::Left(why)) => {
            serving.removals = serving.removals.saturating_add(1);
            if serving.removals >= REMOVALS {
                mps.phases.remove(&whom);
                mps.serving.remove(&whom);
                let text = format!(
                    "the MPS daemon of {} has ended, and its folder is left: it could not be removed {REMOVALS} times \
                     ({why}). It is of uid {uid}: look what is in it, unmount what is mounted there, and remove it \
                     with that user's rights",
                    whom.text()
                );
                ctx.audit(&whom, text);
                ctx.save(mps);
                return;
            }
            format!(
                "the folder of the MPS daemon of {} could not be removed, and is tried again: {why}",
                whom.text()
            )
        }
        Err(NotEnded::Lives(why)) => format!(
            "the MPS daemon of {} could not be ended, and is tried again: {why}",
            whom.text()
        ),
    };
    let wait = AGAIN_MS << serving.tried.min(DOUBLED);
    serving.tried = serving.tried.saturating_add(1);
    if first {
        ctx.audit(&whom, text);
    }
    let again = ctx.now_ms.saturating_add(wait);
    mps.phases.insert(whom, Phase::Again(again));
    // So that a gpuosd that is started anew goes on counting.
    ctx.save(mps);
}

fn advance(mps: &mut Mps, ctx: &mut Ctx, whom: MpsClient) {
    let wanted = mps.wanted(&whom);
    if wanted.is_none() {
        mps.failed.remove(&whom);
    }
    let phase = mps.phases.get(&whom).copied().unwrap_or_default();
    match (mps.serving.get(&whom).cloned(), wanted) {
        (None, Some(Ok(serving))) if !mps.failed.contains_key(&whom) => {
            mps.serving.insert(whom.clone(), serving);
            let revision = ctx.save(mps);
            mps.phases.insert(whom, Phase::Saving(revision));
        }
        (None, Some(Err(why))) if !mps.failed.contains_key(&whom) => ctx.fail(mps, whom, why),
        (Some(serving), Some(Ok(_))) if phase == Phase::Open && serving.process.is_some() => {
            mps.phases.insert(whom.clone(), Phase::Running);
            if let Some(process) = serving.process.filter(|_| !serving.died) {
                ctx.effects.push(MpsEffect::Adopt { whom, process });
            }
        }
        // The job is gone, or nobody knows how far a gpuosd came that was killed while it started this one.
        (Some(serving), wanted) => {
            let due = match phase {
                Phase::Open => true,
                Phase::Running => !matches!(wanted, Some(Ok(_))),
                Phase::Again(at) => ctx.now_ms >= at,
                Phase::Saving(_) | Phase::Starting | Phase::Noting(_) | Phase::Ending => false,
            };
            if due {
                mps.phases.insert(whom.clone(), Phase::Ending);
                ctx.effects.push(MpsEffect::End { whom, serving });
            }
        }
        (None, _) => {}
    }
}

#[cfg(test)]
mod tests;
