//! A checkpoint that was being made when the movers of the job gather anew: its programs wait to hear what became of it.
//!
//! Where this node has no part of it they are told at once, for all nodes need theirs before it is committed. Else node 0 says it, once all
//! nodes have said what they have, and what was told there: ranks decide by it, and each has to hear the same.

use std::sync::Arc;

use super::Worker;
use crate::folder::JobFolder;

/// Says that what was left open came to nothing, for this reason, if that is known here.
pub(super) fn settle(worker: &Worker, why: &str) {
    if let Some((folder, number)) = open(worker)
        && recorded(worker, number) == Some(None)
        && let Err(error) = folder.close(number, Some(why))
    {
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
    match parts.and_then(|parts| parts.kept()) {
        Ok(kept) => {
            let own = kept.iter().filter(|part| part.id.number == number);
            Some(own.map(|part| part.committed).max())
        }
        Err(error) => {
            worker.note(&error.to_string());
            None
        }
    }
}
