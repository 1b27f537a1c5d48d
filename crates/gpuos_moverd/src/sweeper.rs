//! What jobs have left in the store of this node that are over: it is removed some hours after their end.
//!
//! A job of which the workload manager says that it waits, in whatever way, may come back, and so may one of which it does not tell. One that has
//! ended can be requeued by its user, so that the hours count from its end, and not from its last checkpoint.

use std::collections::BTreeMap;

use gpuos_core::job::JobId;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::error::Result as Stored;
use gpuos_store::job::JobStore;
use gpuos_store::marks::{drill, note_over, over_since};
use gpuos_store::owned::Owner;

use crate::audit::removed;
use crate::job::Shared;

/// Since when jobs are over, in seconds since 1970: what is noted on the disk, also where it does not take the note.
#[derive(Default)]
pub struct OverSince(BTreeMap<JobId, u64>);

impl OverSince {
    /// Of jobs that nothing is kept of nothing is known any more.
    pub fn retain(&mut self, jobs: &[JobId]) {
        self.0.retain(|job, _| jobs.contains(job));
    }

    /// Since when the job is over, as far as is known; `None`: it is not over. `noted` on the disk; `note` writes that, or removes it.
    pub fn since(
        &mut self,
        job: &JobId,
        is_over: bool,
        noted: Stored<Option<u64>>,
        note: impl Fn(Option<u64>) -> Stored<()>,
        now: u64,
    ) -> Option<u64> {
        let write = |time| note(time).unwrap_or_else(|error| tracing::warn!(%job, "{error}"));
        if !is_over {
            self.0.remove(job);
            if !matches!(noted, Ok(None)) {
                write(None);
            }
            return None;
        }
        let noted = noted.unwrap_or_default();
        let since = noted.or_else(|| self.0.get(job).copied());
        // A clock that was set back would keep it for ever.
        let since = since.filter(|since| *since <= now).unwrap_or(now);
        self.0.insert(job.clone(), since);
        if noted != Some(since) {
            write(Some(since));
        }
        Some(since)
    }
}

/// Removes what is kept on this node.
#[derive(Default)]
pub struct Sweeper {
    over: OverSince,
}

impl Sweeper {
    /// Looks at all that is kept. `is_over`: whether a job is, by the word of the workload manager; `now`: in seconds since 1970.
    pub fn sweep(&mut self, shared: &Shared, is_over: impl Fn(&JobId) -> bool, now: u64) {
        let Ok(jobs) = shared.store.jobs() else {
            return;
        };
        self.over.retain(&jobs);
        for job in jobs {
            // What cannot be read is left to an administrator.
            let Ok(store) = shared.store.existing(&job) else {
                continue;
            };
            let swept = self.look(shared, (&job, &store), &is_over, now);
            if let Err(error) = swept {
                tracing::warn!(%job, "{error}");
            }
        }
    }

    fn look(
        &mut self,
        shared: &Shared,
        (job, store): (&JobId, &JobStore<'_, LinuxDisk>),
        is_over: impl Fn(&JobId) -> bool,
        now: u64,
    ) -> Stored<()> {
        let owner = Owner::user(store.uid());
        // The mover was away at the end of the drill.
        if let Some(by) = drill(store).unwrap_or_default()
            && is_over(&by)
        {
            shared.end_drill(job, &by, owner);
            return Ok(());
        }
        // Of one that nobody was asked about yet the next look knows more.
        let Some(heard) = shared.ended.is_over(job) else {
            return Ok(());
        };
        let note = |time| note_over(store, time);
        let since = self.over.since(job, heard, over_since(store), note, now);
        let Some(since) = since else {
            return Ok(());
        };
        let newest = store.kept()?.iter().map(|kept| kept.time).max();
        let since = since.max(newest.unwrap_or(0));
        let limit = u64::from(shared.config.ended_hours) * 3600;
        // What was heard may be of before the job was requeued.
        if now.saturating_sub(since) < limit || !is_over(job) {
            return Ok(());
        }
        if let Some(owned) = shared.store.owned(job, owner)? {
            let uid = owned.remove()?;
            let hours = shared.config.ended_hours;
            removed(
                job,
                uid,
                &format!("it has been over for {hours} h (ended-hours)"),
            );
        }
        Ok(())
    }
}
