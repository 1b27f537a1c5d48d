//! What a run of the job has come to is noted in the job's record at the workload manager, which outlives the nodes: that its movers serve it, that a
//! checkpoint is asked for, that one was made. The next run looks there.
//!
//! Seat 0 notes that the run has begun, whatever becomes of it, and the node that leads what follows. A thread does it, as the workload manager may
//! be slow; what it does not take is tried again. A checkpoint that is asked for takes longer than a note, so that none exists of which the record
//! says nothing, unless the workload manager is away for so long.

use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::made::{Progress, Run};
use gpuos_workload::action::Outcome;

use super::{Phase, Worker};
use crate::event::Event;

/// The workload manager is told again so long after it took nothing.
const AGAIN: Duration = Duration::from_secs(5);

/// What is noted, as far as this node knows.
#[derive(Default)]
pub struct Noting {
    noted: Option<Progress>,
    /// A thread is at it.
    runs: bool,
    /// Not before this.
    due: Option<Instant>,
    /// That it was not taken has been said.
    said: bool,
}

/// Has noted what has not been.
pub(super) fn look(worker: &mut Worker) {
    let progress = progress(worker);
    let noting = &mut worker.noting;
    let is_due = noting.due.is_none_or(|due| Instant::now() >= due);
    let Some(progress) = progress.filter(|it| is_new(noting.noted, *it)) else {
        return;
    };
    if noting.runs || !is_due {
        return;
    }
    noting.runs = true;
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
    let run = Run {
        run: worker.start.run,
        nodes: nodes.into_iter().flatten().cloned().collect(),
        progress,
    };
    let note = move || {
        let result = match manager.note_checkpoints(&job, &run) {
            Outcome::Done(_) | Outcome::Nothing(_) => Ok(()),
            Outcome::NotYet(why) | Outcome::NoAnswer(why) => Err((why, true)),
            Outcome::Refused(why) => Err((why, false)),
        };
        let _ = to.send(Event::Noted { progress, result });
    };
    let thread = thread::Builder::new().name("note".into()).spawn(note);
    if let Err(error) = thread {
        noted(worker, progress, Err((error.to_string(), true)));
    }
}

/// It is noted, or not.
pub(super) fn noted(worker: &mut Worker, progress: Progress, result: Result<(), (String, bool)>) {
    let noting = &mut worker.noting;
    noting.runs = false;
    let Err((why, again)) = result else {
        noting.noted = noting.noted.max(Some(progress));
        (noting.due, noting.said) = (None, false);
        return;
    };
    match again {
        true => noting.due = Some(Instant::now() + AGAIN),
        false => noting.noted = noting.noted.max(Some(progress)),
    }
    if !std::mem::replace(&mut noting.said, true) {
        let job = &worker.start.job;
        tracing::warn!(
            %job,
            "job {job}: its record does not say where its checkpoints are: {why}{}",
            if again { "; it is tried again" } else { "" }
        );
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
