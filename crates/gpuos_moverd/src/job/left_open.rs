//! A checkpoint that was being made when the movers of the job gather anew: its programs wait to hear what became of it.
//!
//! Where this node has no part of it they are told at once, for all nodes need theirs before it is committed. Else node 0 says it, once all
//! nodes have said what they have, and what was told there: ranks decide by it, and each has to hear the same.

use std::sync::Arc;

use gpuos_store::inventory::{Held, Part};

use super::Worker;
use crate::folder::JobFolder;

/// Says that what was left open came to nothing, for this reason, if that is known here.
pub(super) fn settle(worker: &Worker, why: &str) {
    if let Some((folder, number)) = open(worker)
        && recorded(worker, number) == Some(None)
    {
        close(worker, (folder, number), Some(why));
    }
}

/// There are no checkpoints in this run any more, so nothing else will say what became of it: it exists if this node has recorded that.
pub(super) fn give_up(worker: &Worker, why: &str) {
    if let Some((folder, number)) = open(worker) {
        let exists = recorded(worker, number) == Some(Some(true));
        close(worker, (folder, number), (!exists).then_some(why));
    }
}

fn close(worker: &Worker, (folder, number): (&JobFolder, u32), failed: Option<&str>) {
    if let Err(error) = folder.close(number, failed) {
        worker.note(&format!(
            "cannot write to {}: {error}",
            folder.path().display()
        ));
    }
}

/// Whether this node has recorded that what was left open is committed.
pub(super) fn is_committed(worker: &Worker) -> bool {
    open(worker).is_some_and(|(_, number)| recorded(worker, number) == Some(Some(true)))
}

fn open(worker: &Worker) -> Option<(&Arc<JobFolder>, u32)> {
    let folder = worker.folder.as_ref()?;
    Some((folder, folder.left_open()?))
}

/// Whether this node's part of a checkpoint is recorded as committed, if it has one; `None`: that cannot be known now.
fn recorded(worker: &Worker, number: u32) -> Option<Option<bool>> {
    let parts = worker.shared.store.job(&worker.start.job, worker.start.uid);
    match parts.and_then(|parts| parts.list()) {
        Ok(held) => {
            let all = || held.iter().filter(|held| held.id.number == number);
            if all().any(|held| held.part == Part::Damaged && !held.committed) {
                return None;
            }
            let own = |held: &&Held| held.committed || matches!(held.part, Part::Prepared(_));
            Some(all().filter(own).map(|held| held.committed).max())
        }
        Err(error) => {
            worker.note(&error.to_string());
            None
        }
    }
}
