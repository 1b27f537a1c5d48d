//! What a run of the job has come to is noted in the job's record at the workload manager, which outlives the nodes: that its movers serve it, that a
//! checkpoint is asked for, that one was made. The next run looks there. That checkpoints come to nothing is noted beside it, for the job's user.
//!
//! Seat 0 notes that the run has begun, whatever becomes of it, and the node that leads what follows. A thread does it, as the workload manager may
//! be slow; what it does not take is tried again. A checkpoint that is asked for takes longer than a note, so that none exists of which the record
//! says nothing, unless the workload manager is away for so long.

use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::made::{Progress, Run};
use gpuos_workload::action::Outcome;

use super::{Phase, Worker};
use crate::event::{Event, Note};

/// The workload manager is told again so long after it took nothing.
const AGAIN: Duration = Duration::from_secs(5);
/// That checkpoints come to nothing is noted no sooner than this after it was noted last. Own choice: a job may make one each second, and each note
/// is a change of its record.
const SELDOM: Duration = Duration::from_secs(60);

/// What is noted, as far as this node knows.
#[derive(Default)]
pub struct Noting {
    noted: Option<Progress>,
    /// Why checkpoints come to nothing, as is noted: some reason, or that they do not; `None`: an earlier run, or mover, may have had that noted.
    unsaved: Option<Option<String>>,
    /// A reason is not noted again before this.
    unsaved_due: Option<Instant>,
    /// A thread is at it.
    runs: bool,
    /// Not before this.
    due: Option<Instant>,
    /// That it was not taken has been said.
    said: bool,
}

/// Has noted what has not been.
pub(super) fn look(worker: &mut Worker) {
    let now = Instant::now();
    let noting = &worker.noting;
    if noting.runs || noting.due.is_some_and(|due| now < due) {
        return;
    }
    let progress = progress(worker).filter(|it| is_new(noting.noted, *it));
    let note = progress
        .map(Note::Progress)
        .or_else(|| unsaved(worker, now));
    let Some(note) = note else {
        return;
    };
    worker.noting.runs = true;
    let (manager, job, to) = (
        worker.shared.manager.clone(),
        worker.start.job.clone(),
        worker.to.clone(),
    );
    let nodes = [
        &worker.start.nodes,
        &worker.start.spares,
        &worker.start.lost,
    ];
    let (run, nodes) = (
        worker.start.run,
        nodes.into_iter().flatten().cloned().collect(),
    );
    let told = note.clone();
    let write = move || {
        let outcome = match &note {
            Note::Progress(progress) => {
                let progress = *progress;
                manager.note_checkpoints(
                    &job,
                    &Run {
                        run,
                        nodes,
                        progress,
                    },
                )
            }
            Note::Unsaved(why) => manager.note_unsaved(&job, run, why.as_deref()),
        };
        let result = match outcome {
            Outcome::Done(_) | Outcome::Nothing(_) => Ok(()),
            Outcome::NotYet(why) | Outcome::NoAnswer(why) => Err((why, true)),
            Outcome::Refused(why) => Err((why, false)),
        };
        let _ = to.send(Event::Noted { note, result });
    };
    let thread = thread::Builder::new().name("note".into()).spawn(write);
    if let Err(error) = thread {
        noted(worker, told, Err((error.to_string(), true)));
    }
}

/// It is noted, or not.
pub(super) fn noted(worker: &mut Worker, note: Note, result: Result<(), (String, bool)>) {
    let noting = &mut worker.noting;
    noting.runs = false;
    let again = result.as_ref().err().is_some_and(|(_, again)| *again);
    match (&note, again) {
        (_, true) => noting.due = Some(Instant::now() + AGAIN),
        (Note::Progress(progress), false) => noting.noted = noting.noted.max(Some(*progress)),
        (Note::Unsaved(why), false) => {
            noting.unsaved = Some(why.clone());
            if why.is_some() {
                noting.unsaved_due = Some(Instant::now() + SELDOM);
            }
        }
    }
    let Err((why, _)) = result else {
        (noting.due, noting.said) = (None, false);
        return;
    };
    if !std::mem::replace(&mut noting.said, true) {
        let job = &worker.start.job;
        let what = match note {
            Note::Progress(_) => "where its checkpoints are",
            Note::Unsaved(_) => "whether its checkpoints come to nothing",
        };
        tracing::warn!(
            %job,
            "job {job}: its record does not say {what}: {why}{}",
            if again { "; it is tried again" } else { "" }
        );
    }
}

/// The reason without the number of the checkpoint before it.
fn reason(why: &Option<String>) -> Option<&str> {
    let why = why.as_deref()?;
    Some(why.split_once(": ").map_or(why, |(_, reason)| reason))
}

/// What is to be noted of checkpoints that come to nothing, if anything is.
fn unsaved(worker: &Worker, now: Instant) -> Option<Note> {
    let Phase::Running(running) = &worker.phase else {
        return None;
    };
    if !running.leads() {
        return None;
    }
    let noting = &worker.noting;
    let is_early = noting.unsaved_due.is_some_and(|due| now < due);
    let (in_row, why) = &worker.tally.failing;
    let why = (*in_row > 0).then(|| why.clone());
    match (&noting.unsaved, &why) {
        (Some(noted), why) if reason(noted) == reason(why) => None,
        (_, Some(_)) if is_early => None,
        // Nothing is known yet.
        (None, None) if running.newest.is_none() => None,
        _ => Some(Note::Unsaved(why)),
    }
}

/// How far the run has come, if it is for this node to note that.
fn progress(worker: &Worker) -> Option<Progress> {
    let begun = worker.is_first().then_some(Progress::Begun);
    let Phase::Running(running) = &worker.phase else {
        return begun;
    };
    if !running.leads() || running.ready.is_none() {
        return begun;
    }
    let made = running.newest.map(|(id, _)| Progress::Made(id.number));
    let asked = running.conductor().view().making.map(|_| Progress::Asked);
    made.or(asked).or(begun)
}

/// Whether it is worth a note: of numbers only those that are twice as large as the one that is noted.
fn is_new(noted: Option<Progress>, progress: Progress) -> bool {
    match (noted, progress) {
        (Some(Progress::Made(noted)), Progress::Made(made)) => made / 2 >= noted,
        (noted, progress) => noted < Some(progress),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_noted_as_they_double() {
        let (mut noted, mut notes) = (None, Vec::new());
        let all = [Progress::Begun, Progress::Asked, Progress::Begun];
        for progress in all.into_iter().chain((3..100).map(Progress::Made)) {
            if is_new(noted, progress) {
                noted = Some(progress);
                notes.push(progress);
            }
        }
        let made = [3, 6, 12, 24, 48, 96].map(Progress::Made);
        assert_eq!(
            notes,
            [&[Progress::Begun, Progress::Asked][..], &made].concat()
        );
        assert!(!is_new(Some(Progress::Made(4)), Progress::Asked));
    }
}
