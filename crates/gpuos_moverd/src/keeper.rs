//! The thread that looks after the folder of level 3: whether it can be used, and what ended jobs have left there.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gpuos_store::disk::LinuxDisk;
use gpuos_store::drained::DrainedStore;
use gpuos_store::owned::{OwnedDrained, Owner};
use gpuos_workload::WorkloadManager;

use crate::audit::removed;
use crate::clock::seconds;
use crate::jobs::{Jobs, Standing};
use crate::level3::{AGAIN, Level3, Unwanted};
use crate::sweeper::OverSince;

/// What clients want removed is looked for so often ...
const LOOK: Duration = Duration::from_secs(5);
/// ... and what ended jobs have left so often.
const SWEEP: Duration = Duration::from_secs(600);
/// Another mover removes what the one that led has not removed so many seconds after it should have.
const OTHERS: u64 = 86_400;

/// Starts the thread.
///
/// # Errors
/// It cannot be made.
pub fn start(
    level3: Arc<Level3>,
    jobs: Arc<Jobs>,
    manager: Arc<dyn WorkloadManager>,
) -> std::io::Result<()> {
    let keeper = Keeper {
        level3,
        jobs,
        manager,
        over: OverSince::default(),
    };
    let thread = thread::Builder::new().name("level 3".into());
    thread.spawn(move || keeper.run())?;
    Ok(())
}

/// The state of the thread.
struct Keeper {
    level3: Arc<Level3>,
    jobs: Arc<Jobs>,
    manager: Arc<dyn WorkloadManager>,
    over: OverSince,
}

impl Keeper {
    fn run(mut self) {
        let (mut looked, mut swept) = (None::<Instant>, None::<Instant>);
        let due = |at: Option<Instant>, every| at.is_none_or(|at| at.elapsed() >= every);
        loop {
            if self.level3.why_off().is_some() && due(looked, AGAIN) {
                self.level3.look(self.manager.cluster());
                looked = Some(Instant::now());
            }
            if self.level3.why_off().is_none() {
                let unwanted = self.level3.unwanted();
                unwanted.iter().for_each(|what| self.remove(what));
                if due(swept, SWEEP) {
                    self.sweep();
                    swept = Some(Instant::now());
                }
            }
            thread::sleep(LOOK);
        }
    }

    fn remove(&self, what: &Unwanted) {
        let job = &what.job;
        let standing = self.jobs.standing(job, &*self.manager);
        let goes = matches!(
            (&standing, what.anew),
            (Standing::Over, _) | (Standing::Waits(_), true)
        );
        if !goes {
            tracing::warn!(%job, "what is drained of job {job} stays: {standing}");
            return;
        }
        let owned = |store: &DrainedStore<LinuxDisk>| {
            // It was asked while the folder was away, and the job has run since.
            let drained = store.existing(job).ok().flatten();
            let newest = drained.and_then(|drained| drained.complete(1).ok()?.into_iter().next());
            if newest.is_some_and(|newest| newest.time > what.asked_s) {
                return Ok(None);
            }
            let owned = store.owned(job, what.by)?;
            owned.map(OwnedDrained::remove).transpose()
        };
        let gone = self.level3.open().and_then(|store| owned(&store));
        match gone {
            Ok(Some(uid)) => removed(
                job,
                uid,
                &format!("on the parallel file system; {standing}"),
            ),
            Ok(None) => {}
            Err(error) => tracing::warn!(%job, "{error}"),
        }
    }

    /// Removes what jobs have left that are over: the mover that led does, and any other long after.
    fn sweep(&mut self) {
        let found = self.level3.open().and_then(|store| {
            let jobs = store.jobs()?;
            Ok((store, jobs))
        });
        let (store, jobs) = match found {
            Ok(found) => found,
            Err(error) => return tracing::warn!("{error}"),
        };
        let now = seconds();
        self.over.retain(&jobs);
        for job in jobs {
            // What cannot be read has no time, and is left to an administrator.
            let Ok(Some(drained)) = store.existing(&job) else {
                continue;
            };
            let Ok(complete) = drained.complete(1) else {
                continue;
            };
            let newest = complete.first().map_or(0, |newest| newest.time);
            let own = drained
                .led_by()
                .is_some_and(|node| node == self.level3.node);
            let wait = self.level3.ended_s + if own { 0 } else { OTHERS };
            let noted = drained.over_since();
            let last = noted.as_ref().ok().copied().flatten().unwrap_or(0);
            // Nothing goes yet at another mover's hand: who led asks, so that not all movers ask about all that is drained.
            if !own && now.saturating_sub(newest.max(last)) < wait {
                continue;
            }
            let is_over = self.jobs.is_over(&job, &*self.manager);
            let note = |time| drained.note_over(time);
            let Some(since) = self.over.since(&job, is_over, noted, note, now) else {
                continue;
            };
            if now.saturating_sub(since.max(newest)) >= wait {
                self.remove(&Unwanted {
                    by: Owner::user(drained.uid()),
                    job,
                    anew: false,
                    asked_s: now,
                });
            }
        }
    }
}
