//! A job that begins from a checkpoint of another one.
//!
//! ```text
//!  own checkpoints: none ─► those of the other job are gathered, and one is made whole on the nodes, as at a restart of that job
//!                       ─► the own ones are gathered anew, with that one as what the job begins from
//! ```
//!
//! The other job's parts stay that job's, under its keys; the first checkpoint of the job is written in full and needs none of them.
//! Until then each run begins from the same one. What its program cannot load is noted with the job itself, and marks nothing of the other's.

use std::collections::BTreeMap;
use std::sync::Mutex;

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::refusal::Refusal;
use gpuos_config::options::Restart;
use gpuos_core::job::JobId;
use gpuos_mover::output::Ready;
use gpuos_store::error::Kind;
use gpuos_store::marks;
use gpuos_store::owned::Owner;
use gpuos_store::passed::passed_over;
use gpuos_workload::action::Outcome;

use super::back::Back;
use super::elastic::Elastic;
use super::{Shared, Worker, donors};
use crate::audit::removed;
use crate::carried::{Base, JobRoster, Other};
use crate::jobs::locked;

/// What is to be done with what the nodes have found that they have.
pub enum Next {
    /// The run goes on with it.
    GoOn,
    /// The checkpoints of that job are to be gathered first.
    Gather(Other),
    /// They were, and this is what there is.
    Gathered(Ready),
    /// What another number of nodes has made is as new as nothing of this, and was not looked at.
    Elsewhere(Option<CheckpointId>),
}

/// Decides it, alike on all nodes, after what the job begins from of other numbers of nodes was taken. `asked`: what the job says; `has_saved`: it has made a checkpoint in this run already.
pub fn next(roster: &JobRoster, asked: Restart, has_saved: bool, ready: &mut Ready) -> Next {
    if roster.of.is_some() {
        return Next::Gathered(ready.clone());
    }
    if roster.other_nodes > ready.restore {
        return Next::Elsewhere(ready.restore);
    }
    match (asked, &roster.base) {
        (Restart::No, _) if !has_saved && roster.only.is_none() => {
            if let Some(id) = ready.restore.take() {
                let text = format!(
                    "checkpoint {} is left, as the job asks for with --gpuos-restart=no",
                    id.number
                );
                ready.passed_over.insert(0, text);
            }
            ready.lost = false;
        }
        (Restart::New, _) if ready.restore.is_none() && ready.lost && !has_saved => {
            let text = "the job begins anew, as it asks for with --gpuos-restart=new";
            ready.passed_over.push(text.into());
            ready.lost = false;
        }
        (Restart::From { .. }, Some(base)) if ready.restore.is_none() && !ready.lost => {
            ready.restore = Some(base.id);
            ready.highest = ready.highest.max(base.id.number);
        }
        (Restart::From { job, number, lose }, None) if ready.restore.is_none() && !ready.lost => {
            return Next::Gather(Other {
                job: JobId::from(job),
                number,
                lose,
            });
        }
        _ => {}
    }
    Next::GoOn
}

/// Whose checkpoints the movers gather.
pub(super) fn of(worker: &Worker) -> &JobId {
    let other = worker.other.as_ref();
    other.map_or(&worker.start.job, |other| &other.job)
}

/// The movers gather the checkpoints of this job from now on; `None`: its own.
pub(super) fn turn_to(worker: &mut Worker, other: Option<Other>) {
    if worker.other == other {
        return;
    }
    worker.donors = donors(&worker.shared, &worker.start, &worker.to, other.as_ref());
    worker.elastic = Elastic::default();
    // A drill of what the nodes keep for each other is none of what was drained.
    let alone = other.as_ref().is_some_and(|other| other.losses() > 0);
    worker.other = other;
    let of = (of(worker).clone(), worker.start.uid);
    let level3 = worker.shared.level3.clone().filter(|_| !alone);
    worker.back = Back::new(level3, of, worker.to.clone());
}

/// The roster says that checkpoints of another job are made whole here. Until now its number was what a user has written: nothing was noted of it.
///
/// # Errors
/// It is another user's, or nobody says whose it is: a sentence.
pub(super) fn begin(worker: &mut Worker, other: &Other) -> Result<(), String> {
    let (job, uid) = (&other.job, worker.start.uid);
    match worker.shared.manager.job(job) {
        Ok(Some(record)) if record.uid != uid => return Err(anothers(job)),
        // What the workload manager has forgotten is over; whose it is the keys say by which its parts hold.
        Ok(_) => {}
        Err(outcome) => return Err(untold(job, &outcome)),
    }
    if other.lose.is_none() {
        return Ok(());
    }
    // Neither a drill that ends nor the job itself, which begins, comes between.
    let mut drills = locked(&worker.shared.drills.0);
    let by = &worker.start.job;
    let is_drills = marks::begin_drill(worker.shared.store, job, uid, by);
    if is_drills.map_err(|error| error.to_string())? {
        drills.insert(job.clone(), by.clone());
        worker.drilled = Some(job.clone());
    }
    Ok(())
}

/// Why a job does not begin from another user's checkpoint.
pub(super) fn anothers(job: &JobId) -> String {
    format!("job {job} is another user's: name a job of your own with --gpuos-restart")
}

/// Why it does not begin from that of a job of which nobody tells.
pub(super) fn untold(job: &JobId, outcome: &Outcome) -> String {
    format!(
        "the workload manager does not tell whose job {job} is: {}; submit the job again",
        outcome.words()
    )
}

/// The end of a drill: what it has copied in goes, so that the next one copies it in again. What was here before, and what its job itself has here by
/// now, stays.
pub(super) fn clear(worker: &mut Worker) {
    if let Some(job) = worker.drilled.take() {
        worker
            .shared
            .end_drill(&job, &worker.start.job, Owner::user(worker.start.uid));
    }
}

impl Shared {
    /// The end of the drill `by`, at the word of its user: see [`clear`].
    pub(crate) fn end_drill(&self, job: &JobId, by: &JobId, owner: Owner) {
        let mut drills = locked(&self.drills.0);
        let removed = self.store.owned(job, owner).and_then(|owned| {
            let Some(owned) = owned else {
                return Ok(());
            };
            let drill = owned.parts().map(marks::drill);
            if drill.transpose()?.flatten().as_ref() != Some(by) {
                tracing::info!(%job, "what is kept of job {job} stays after drill {by}, which has not made it");
                return Ok(());
            }
            let uid = owned.remove()?;
            removed(job, uid, &format!("drill {by}, which had copied it in, is over"));
            Ok(())
        });
        if let Err(error) = removed {
            tracing::warn!(%job, "{error}");
        }
        drills.remove(job);
    }

    /// A job begins to run here: what a drill has copied in of it is its own from now on.
    pub(super) fn adopt(&self, job: &JobId, uid: u32) {
        let _drills = locked(&self.drills.0);
        if let Err(error) = marks::adopt(self.store, job, uid) {
            tracing::warn!(%job, "{error}");
        }
    }
}

/// Drills that have copied something in here: whose checkpoint, and the drill's job, both of one user.
#[derive(Default)]
pub struct Drills(Mutex<BTreeMap<JobId, JobId>>);

/// Whether another drill is about to remove what the one of this job would find here: it waits.
pub(super) fn is_busy(worker: &Worker, of: Option<&Other>) -> bool {
    let drills = locked(&worker.shared.drills.0);
    let by = of.and_then(|of| drills.get(&of.job));
    of.is_some_and(|of| of.lose.is_some()) && by.is_some_and(|by| *by != worker.start.job)
}

/// The drill in which the job takes part, by what it asks for: whose checkpoint, which, and how many parts of each set count as gone.
pub(super) fn drill(worker: &Worker) -> Option<Other> {
    match worker.wish.as_ref()?.option.restart {
        Restart::From {
            job,
            number,
            lose: Some(lose),
        } => Some(Other {
            job: JobId::from(job),
            number,
            lose: Some(lose),
        }),
        _ => None,
    }
}

/// Seat 0: what there is of the other job is known, and is whole on all nodes if it can be restored.
///
/// # Errors
/// It cannot: a sentence.
pub(super) fn gathered(worker: &mut Worker, ready: &Ready) -> Result<(), String> {
    let Some(other) = worker.other.clone() else {
        return Ok(());
    };
    let Some(id) = ready.restore else {
        return Err(none_of(&other, &ready.passed_over));
    };
    let job = other.job;
    for (id, by) in &ready.refused {
        let told = format!("checkpoint {} of job {job} is passed over: {by}", id.number);
        if !worker.came.contains(&told) {
            worker.came.push(told);
        }
    }
    turn_to(worker, None);
    worker.base = Some(Base { job, id });
    Ok(())
}

/// What the job's program could not load of the checkpoints that the movers gather, if these are another job's.
pub(super) fn passed(worker: &Worker) -> Option<Vec<(CheckpointId, Refusal)>> {
    let other = worker.other.as_ref()?;
    Some(passed_of(worker, &other.job))
}

/// The same of this other job.
pub(super) fn passed_of(worker: &Worker, of: &JobId) -> Vec<(CheckpointId, Refusal)> {
    let store = worker.shared.store.existing(&worker.start.job);
    match store.and_then(|store| passed_over(&store, of)) {
        Ok(passed) => passed,
        Err(error) if error.kind == Kind::Missing => Vec::new(),
        Err(error) => {
            worker.note(&error.to_string());
            Vec::new()
        }
    }
}

/// Why a job cannot begin from another one's checkpoint.
pub(super) fn none_of(other: &Other, more: &[String]) -> String {
    let what = match other.number {
        Some(number) => format!("checkpoint {number} of job {}", other.job),
        None => format!("a checkpoint of job {}", other.job),
    };
    let more = match more.is_empty() {
        true => "nothing of it is on the job's nodes, on any other that was asked, or on the parallel file system"
            .to_string(),
        false => more.join("; "),
    };
    format!(
        "cannot begin from {what}: {more}; see `gpuos ckpt list` on nodes that it had, or leave --gpuos-restart out to begin from the start"
    )
}

/// Whether the job asks for the checkpoint of another one.
pub(super) fn is_wanted(worker: &Worker) -> bool {
    let asked = worker.wish.as_ref().map(|wish| wish.option.restart);
    matches!(asked, Some(Restart::From { .. }))
}

#[cfg(test)]
mod tests {
    use gpuos_mover::roster::Roster;

    use super::*;
    use crate::carried::FromShared;

    fn roster(of: Option<Other>, base: Option<Base>) -> JobRoster {
        JobRoster {
            gid: 1,
            asked: "10m".into(),
            roster: Roster {
                index_of_seat: Vec::new(),
                sets: Vec::new(),
                notes: Vec::new(),
            },
            drained: FromShared::default(),
            donors: Default::default(),
            only: None,
            of,
            base,
            hosts: None,
            other_nodes: None,
            beyond: 0,
            unhosted: Vec::new(),
        }
    }

    fn id(number: u32) -> CheckpointId {
        CheckpointId { number, attempt: 1 }
    }

    fn ready(restore: Option<u32>, lost: bool) -> Ready {
        Ready {
            restore: restore.map(id),
            passed_over: Vec::new(),
            highest: 2,
            lost,
            refused: Vec::new(),
        }
    }

    const FROM: Restart = Restart::From {
        job: 7,
        number: Some(9),
        lose: None,
    };

    #[test]
    fn another_jobs_checkpoint_is_what_a_job_without_its_own_begins_from() {
        let own = roster(None, None);
        let mut none = ready(None, false);
        let Next::Gather(other) = next(&own, FROM, false, &mut none) else {
            panic!("it has none");
        };
        assert_eq!((other.job.clone(), other.number), (JobId::from(7), Some(9)));
        let theirs = roster(Some(other.clone()), None);
        assert!(matches!(
            next(&theirs, FROM, false, &mut ready(Some(9), false)),
            Next::Gathered(_)
        ));
        let base = Base {
            job: other.job,
            id: id(9),
        };
        let with = roster(None, Some(base));
        assert!(matches!(next(&with, FROM, false, &mut none), Next::GoOn));
        assert_eq!((none.restore, none.highest), (Some(id(9)), 9));
    }

    #[test]
    fn its_own_go_before_it_and_what_is_lost_is_not_replaced() {
        let own = roster(None, None);
        let mut some = ready(Some(2), false);
        assert!(matches!(next(&own, FROM, false, &mut some), Next::GoOn));
        assert_eq!(some.restore, Some(id(2)));
        let mut lost = ready(None, true);
        assert!(matches!(next(&own, FROM, false, &mut lost), Next::GoOn));
        assert!(lost.lost && lost.restore.is_none());
    }

    #[test]
    fn something_newer_of_another_number_of_nodes_is_looked_at_first() {
        let mut own = roster(None, None);
        own.other_nodes = Some(id(4));
        for restore in [None, Some(3)] {
            let next = next(&own, Restart::Auto, false, &mut ready(restore, false));
            assert!(matches!(next, Next::Elsewhere(found) if found == restore.map(id)));
        }
        let next = next(&own, Restart::Auto, false, &mut ready(Some(5), false));
        assert!(matches!(next, Next::GoOn));
    }

    #[test]
    fn a_job_that_wants_none_begins_anew_and_keeps_its_numbers() {
        let own = roster(None, None);
        let mut some = ready(Some(2), false);
        assert!(matches!(
            next(&own, Restart::No, false, &mut some),
            Next::GoOn
        ));
        assert_eq!((some.restore, some.lost, some.highest), (None, false, 2));
        let mut saved = ready(Some(2), false);
        next(&own, Restart::No, true, &mut saved);
        assert_eq!(saved.restore, Some(id(2)), "made in this run");
        let mut lost = ready(None, true);
        next(&own, Restart::No, false, &mut lost);
        assert!(!lost.lost);
    }

    #[test]
    fn a_job_that_would_rather_begin_anew_does_so_where_nothing_is_found_alone() {
        let own = roster(None, None);
        let mut some = ready(Some(2), false);
        next(&own, Restart::New, false, &mut some);
        assert_eq!(some.restore, Some(id(2)));
        let mut lost = ready(None, true);
        next(&own, Restart::New, false, &mut lost);
        assert_eq!((lost.restore, lost.lost, lost.highest), (None, false, 2));
        let mut saved = ready(None, true);
        next(&own, Restart::New, true, &mut saved);
        assert!(saved.lost, "what was made in this run is not begun anew");
    }
}
