//! One daemon of NVIDIA's MPS for each job that asks for it: when it is started, and how it ends.
//!
//! As with power and clocks, what is about to be started stands on the disk first, and stands there until it
//! is known to have ended. A daemon that dies while its job runs is not started again: programs of the job may
//! have lost their work with it, and are not to be joined by others that know nothing of that.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::state::Holder;
use crate::health::Audit;

/// Wait after an attempt at ending one that failed, in ms.
const AGAIN_MS: u64 = 10_000;

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
    pub gpus: BTreeSet<u8>,
    /// What the job asked for, in percent of a GPU's threads.
    pub percent: u8,
    /// Its process, once it runs.
    pub process: Option<Process>,
    /// It died while the job was there.
    #[serde(default)]
    pub died: bool,
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
        told: Result<(), String>,
    },
    /// [`MpsEffect::Start`] came to its end; after an error nothing is left of it.
    Running {
        /// The job.
        job: u32,
        /// The daemon, or why there is none.
        told: Result<Process, String>,
    },
    /// A daemon is not there any more.
    Died {
        /// Its job.
        job: u32,
        /// Which.
        process: Process,
    },
    /// [`MpsEffect::End`] came to its end.
    Ended {
        /// The job.
        job: u32,
        /// Why not.
        told: Result<(), String>,
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
        /// The job.
        job: u32,
        /// As whom, and for what.
        serving: Serving,
    },
    /// Look after one that an earlier gpuosd started: [`MpsEvent::Died`] when it is gone.
    Adopt {
        /// The job.
        job: u32,
        /// Which.
        process: Process,
    },
    /// End it, and remove its folder; answer with [`MpsEvent::Ended`].
    End {
        /// The job.
        job: u32,
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
    /// With whether it was tried before.
    Ending(bool),
    /// It could not be ended; again at this time.
    Again(u64),
}

/// All daemons of a node. [`mps_step`] is the only way to change it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Mps {
    kept: BTreeMap<u32, Serving>,
    #[serde(skip)]
    phases: BTreeMap<u32, Phase>,
    /// Jobs that have none, and why, so that it is not tried again.
    #[serde(skip)]
    failed: BTreeMap<u32, String>,
    #[serde(skip)]
    holders: Vec<Holder>,
    #[serde(skip)]
    told: bool,
    #[serde(skip)]
    revision: u64,
}

impl Mps {
    /// What runs, or is about to, by job.
    pub fn kept(&self) -> &BTreeMap<u32, Serving> {
        &self.kept
    }

    /// What a step on these GPUs is told: that it may use its job's daemon, or why not. `None`: not known yet.
    pub fn settled(&self, job: u32, gpus: &BTreeSet<u8>) -> Option<Result<(), String>> {
        if let Some(why) = self.failed.get(&job) {
            return Some(Err(why.clone()));
        }
        let (serving, phase) = (self.kept.get(&job)?, self.phases.get(&job)?);
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

    /// Whether a job is to have a daemon; the error says why it cannot.
    fn wanted(&self, job: u32) -> Option<Result<Serving, String>> {
        let holder = self.holders.iter().find(|holder| holder.job == job)?;
        let mps = holder.asked.mps?;
        let others = |gpu: &&u8| {
            let mut others = self.holders.iter().filter(|other| other.job != job);
            others.any(|other| !other.resting && other.gpus.contains(gpu))
        };
        if holder.asked.shared {
            return Some(Err("its GPUs are shared with other jobs".into()));
        }
        // Who comes later is told of those who were first, and not the other way round.
        if !self.kept.contains_key(&job)
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
        }))
    }
}

struct Ctx {
    now_ms: u64,
    wall_ms: u64,
    effects: Vec<MpsEffect>,
}

impl Ctx {
    fn audit(&mut self, job: u32, text: String) {
        self.effects.push(MpsEffect::Audit(Audit {
            at_ms: self.wall_ms,
            job: Some(job),
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

    fn fail(&mut self, mps: &mut Mps, job: u32, why: String) {
        self.audit(job, format!("job {job} runs without MPS: {why}"));
        mps.failed.insert(job, why);
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
                mps.kept.values_mut().for_each(|one| one.process = None);
            }
        }
        MpsEvent::Jobs(holders) => {
            mps.holders = holders;
            mps.told = true;
        }
        MpsEvent::Saved { revision, told } => saved(mps, &mut ctx, revision, &told),
        MpsEvent::Running { job, told } => running(mps, &mut ctx, job, told),
        MpsEvent::Died { job, process } => died(mps, &mut ctx, job, process),
        MpsEvent::Ended { job, told } => ended(mps, &mut ctx, job, told),
        MpsEvent::Tick => {}
    }
    if mps.told {
        let mut jobs: Vec<u32> = mps.kept.keys().copied().collect();
        jobs.extend(mps.holders.iter().map(|holder| holder.job));
        jobs.sort_unstable();
        jobs.dedup();
        mps.failed.retain(|job, _| jobs.contains(job));
        for job in jobs {
            advance(mps, &mut ctx, job);
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
    let jobs = mps.phases.iter().filter(|(_, phase)| waits(phase));
    let jobs: Vec<u32> = jobs.map(|(job, _)| *job).collect();
    for job in jobs {
        let wanted = matches!(mps.wanted(job), Some(Ok(_)));
        match (told, mps.kept.get(&job)) {
            (Ok(()), Some(serving)) if wanted => {
                let serving = serving.clone();
                mps.phases.insert(job, Phase::Starting);
                ctx.effects.push(MpsEffect::Start { job, serving });
            }
            // Nothing was started: nothing has to be undone.
            _ => {
                mps.kept.remove(&job);
                mps.phases.remove(&job);
                if let Err(why) = told {
                    ctx.fail(mps, job, format!("it could not be written down: {why}"));
                }
            }
        }
    }
}

fn running(mps: &mut Mps, ctx: &mut Ctx, job: u32, told: Result<Process, String>) {
    let Some(serving) = mps.kept.get_mut(&job) else {
        return;
    };
    match told {
        Ok(process) => {
            serving.process = Some(process);
            let text = format!(
                "job {job} has {} for uid {} (pid {})",
                serving.text(),
                serving.uid,
                process.pid
            );
            ctx.audit(job, text);
            let revision = ctx.save(mps);
            mps.phases.insert(job, Phase::Noting(revision));
        }
        Err(why) => {
            mps.kept.remove(&job);
            mps.phases.remove(&job);
            ctx.fail(mps, job, why);
            ctx.save(mps);
        }
    }
}

fn died(mps: &mut Mps, ctx: &mut Ctx, job: u32, process: Process) {
    let phase = mps.phases.get(&job);
    let running = matches!(phase, Some(Phase::Running | Phase::Noting(_)));
    let wanted = matches!(mps.wanted(job), Some(Ok(_)));
    let Some(serving) = mps.kept.get_mut(&job) else {
        return;
    };
    if running && wanted && serving.process == Some(process) && !serving.died {
        serving.died = true;
        let text = format!(
            "the MPS daemon of job {job} (pid {}) has died and is not started again",
            process.pid
        );
        ctx.audit(job, text);
        ctx.save(mps);
    }
}

fn ended(mps: &mut Mps, ctx: &mut Ctx, job: u32, told: Result<(), String>) {
    match told {
        Ok(()) => {
            mps.phases.remove(&job);
            if mps.kept.remove(&job).is_some() {
                ctx.audit(job, format!("the MPS daemon of job {job} has ended"));
                ctx.save(mps);
            }
        }
        Err(why) => {
            // Once: a user can see to it that his folder cannot be removed.
            if mps.phases.get(&job) != Some(&Phase::Ending(true)) {
                ctx.audit(
                    job,
                    format!(
                        "the MPS daemon of job {job} could not be ended, and is tried again: {why}"
                    ),
                );
            }
            let again = ctx.now_ms.saturating_add(AGAIN_MS);
            mps.phases.insert(job, Phase::Again(again));
        }
    }
}

fn advance(mps: &mut Mps, ctx: &mut Ctx, job: u32) {
    let wanted = mps.wanted(job);
    if wanted.is_none() {
        mps.failed.remove(&job);
    }
    let phase = mps.phases.get(&job).copied().unwrap_or_default();
    match (mps.kept.get(&job).cloned(), wanted) {
        (None, Some(Ok(serving))) if !mps.failed.contains_key(&job) => {
            mps.kept.insert(job, serving);
            let revision = ctx.save(mps);
            mps.phases.insert(job, Phase::Saving(revision));
        }
        (None, Some(Err(why))) if !mps.failed.contains_key(&job) => ctx.fail(mps, job, why),
        (Some(serving), Some(Ok(_))) if phase == Phase::Open && serving.process.is_some() => {
            mps.phases.insert(job, Phase::Running);
            if let Some(process) = serving.process.filter(|_| !serving.died) {
                ctx.effects.push(MpsEffect::Adopt { job, process });
            }
        }
        // The job is gone, or nobody knows how far a gpuosd came that was killed while it started this one.
        (Some(serving), wanted) => {
            let due = match phase {
                Phase::Open => true,
                Phase::Running => !matches!(wanted, Some(Ok(_))),
                Phase::Again(at) => ctx.now_ms >= at,
                Phase::Saving(_) | Phase::Starting | Phase::Noting(_) | Phase::Ending(_) => false,
            };
            if due {
                let again = matches!(phase, Phase::Again(_));
                mps.phases.insert(job, Phase::Ending(again));
                ctx.effects.push(MpsEffect::End { job, serving });
            }
        }
        (None, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::wish::{Asked, MpsWish};
    use super::*;

    const ONE: Process = Process {
        pid: 41,
        started: 7,
    };

    fn holder(job: u32, gpus: &[u8]) -> Holder {
        Holder {
            job,
            uid: 1000,
            gpus: gpus.iter().copied().collect(),
            asked: Asked {
                mps: Some(MpsWish {
                    percent: 50,
                    gid: 100,
                }),
                ..Asked::default()
            },
            resting: false,
        }
    }

    /// What is done, without lines for the log.
    fn after(mps: &mut Mps, event: MpsEvent) -> Vec<MpsEffect> {
        let mut effects = mps_step(mps, event, 1000, 1000);
        effects.retain(|effect| !matches!(effect, MpsEffect::Audit(_)));
        effects
    }

    fn saved_as(effects: &[MpsEffect]) -> MpsEvent {
        match effects {
            [MpsEffect::Save { revision }] => MpsEvent::Saved {
                revision: *revision,
                told: Ok(()),
            },
            other => panic!("{other:?}"),
        }
    }

    fn running(job: u32) -> Mps {
        let mut mps = Mps::default();
        let saves = after(&mut mps, MpsEvent::Jobs(vec![holder(job, &[0, 1])]));
        let starts = after(&mut mps, saved_as(&saves));
        assert!(matches!(&starts[..], [MpsEffect::Start { serving, .. }]
            if serving.uid == 1000 && serving.gid == 100 && serving.percent == 50));
        assert_eq!(mps.settled(job, &[0].into()), None);
        let told = Ok(ONE);
        let saves = after(&mut mps, MpsEvent::Running { job, told });
        // Not before gpuosd would find it again.
        assert_eq!(mps.settled(job, &[0].into()), None);
        assert_eq!(after(&mut mps, saved_as(&saves)), []);
        assert_eq!(mps.settled(job, &[0].into()), Some(Ok(())));
        mps
    }

    #[test]
    fn it_is_written_down_started_once_and_ended_with_the_job() {
        let mut mps = running(7);
        assert!(mps.settled(7, &[2].into()).unwrap().is_err());
        assert_eq!(
            after(&mut mps, MpsEvent::Jobs(vec![holder(7, &[0, 1])])),
            []
        );
        let ends = after(&mut mps, MpsEvent::Jobs(Vec::new()));
        assert!(matches!(&ends[..], [MpsEffect::End { job: 7, serving }]
            if serving.process == Some(ONE)));
        // It comes again, as after a requeue: the old one ends first.
        assert_eq!(after(&mut mps, MpsEvent::Jobs(vec![holder(7, &[4])])), []);
        let told = Err("busy".into());
        assert_eq!(after(&mut mps, MpsEvent::Ended { job: 7, told }), []);
        let again = mps_step(&mut mps, MpsEvent::Tick, 1000 + AGAIN_MS, 0);
        assert!(matches!(&again[..], [MpsEffect::End { .. }]));
        let told = Ok(());
        let next = after(&mut mps, MpsEvent::Ended { job: 7, told });
        assert_eq!(next.len(), 2);
        assert_eq!(mps.kept()[&7].gpus, [4].into());
    }

    #[test]
    fn what_was_killed_in_between_is_ended_or_taken_over() {
        let mut saved = running(7);
        saved.phases.clear();
        saved.holders.clear();
        let rebooted = false;
        for (jobs, adopts) in [(vec![holder(7, &[0, 1])], true), (Vec::new(), false)] {
            let mut mps = saved.clone();
            assert_eq!(after(&mut mps, MpsEvent::Started { rebooted }), []);
            let effects = after(&mut mps, MpsEvent::Jobs(jobs));
            match &effects[..] {
                [MpsEffect::Adopt { process: ONE, .. }] => assert!(adopts),
                [MpsEffect::End { .. }] => assert!(!adopts),
                other => panic!("{other:?}"),
            }
        }
        // Written down, and not known whether it was started; and after a boot.
        let mut mps = saved.clone();
        after(&mut mps, MpsEvent::Started { rebooted: true });
        let effects = after(&mut mps, MpsEvent::Jobs(vec![holder(7, &[0, 1])]));
        assert!(
            matches!(&effects[..], [MpsEffect::End { serving, .. }] if serving.process.is_none())
        );
    }

    #[test]
    fn one_that_died_is_not_started_again_and_what_failed_is_not_tried_again() {
        let mut mps = running(7);
        let process = ONE;
        assert_eq!(after(&mut mps, MpsEvent::Died { job: 7, process }).len(), 1);
        assert!(mps.settled(7, &[0].into()).unwrap().is_err());
        assert_eq!(after(&mut mps, MpsEvent::Tick), []);
        assert_eq!(after(&mut mps, MpsEvent::Jobs(Vec::new())).len(), 1);

        let mut mps = Mps::default();
        let saves = after(&mut mps, MpsEvent::Jobs(vec![holder(8, &[0])]));
        after(&mut mps, saved_as(&saves));
        let told = Err("no such program".into());
        after(&mut mps, MpsEvent::Running { job: 8, told });
        assert_eq!(after(&mut mps, MpsEvent::Tick), []);
        assert!(mps.kept().is_empty() && mps.settled(8, &[0].into()).unwrap().is_err());
        after(&mut mps, MpsEvent::Jobs(Vec::new()));
        assert_eq!(mps.settled(8, &[0].into()), None);
    }

    #[test]
    fn shared_gpus_get_none() {
        let mut mps = Mps::default();
        let mut shared = holder(7, &[0]);
        shared.asked.shared = true;
        let mut plain = holder(8, &[1]);
        plain.asked = Asked::default();
        let jobs = vec![shared, plain, holder(9, &[1, 2])];
        assert_eq!(after(&mut mps, MpsEvent::Jobs(jobs)), []);
        for job in [7, 9] {
            let told = mps.settled(job, &[1].into()).unwrap().unwrap_err();
            assert!(told.contains("shared with other jobs"), "{told}");
        }
    }
}
