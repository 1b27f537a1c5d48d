//! Removing all that is kept of a job. Nothing else can: who removes has an [`Owner`], and it is held against the signed note of whose the job is.
//!
//! ```text
//!  Owner (kernel, workload manager, signed note) ─► Store::owned ─► Owned ─► Owned::remove
//! ```
//!
//! The number of a job, which anybody can name, is no proof of anything.

use gpuos_core::job::JobId;
use gpuos_core::wire::{Peer, is_root};

use crate::disk::Disk;
use crate::drained::DrainedStore;
use crate::error::{Error, Kind, Result};
use crate::job::JobStore;
use crate::store::Store;

/// At whose word something is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(Who);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    User(u32),
    Administrator,
}

impl Owner {
    /// A user, as the kernel, the workload manager or a signed note has named him; never one whom a user's own text names.
    pub fn user(uid: u32) -> Owner {
        Owner(Who::User(uid))
    }

    /// Who is at the other end of a connection of a daemon that runs as `daemon_uid`. The administrator may remove what is damaged, too.
    pub fn of(peer: Peer, daemon_uid: u32) -> Owner {
        match is_root(peer.uid, daemon_uid) {
            true => Owner(Who::Administrator),
            false => Owner::user(peer.uid),
        }
    }

    /// The user; `None`: the administrator, at whose word anybody's may go.
    pub fn uid(self) -> Option<u32> {
        match self.0 {
            Who::Administrator => None,
            Who::User(uid) => Some(uid),
        }
    }

    /// Whether what is this user's may go at his word; `None`: nothing says whose it is.
    fn may(self, uid: Option<u32>) -> bool {
        match self.0 {
            Who::Administrator => true,
            Who::User(own) => uid == Some(own),
        }
    }

    fn refusal(self, job: &JobId, uid: Option<u32>) -> Error {
        let tried = format!("remove the checkpoints of job {job}");
        let why = match uid {
            Some(_) => "they are another user's".to_string(),
            None => "the note of whose they are does not hold".to_string(),
        };
        let next = match uid {
            Some(_) => "name a job of your own",
            None => "root alone can remove them",
        };
        Error::refused(tried, why, next)
    }
}

/// What is kept of a job on this node, of which was shown that it may be removed.
pub struct Owned<'a, D: Disk> {
    store: &'a Store<D>,
    job: JobId,
    uid: Option<u32>,
    parts: Option<JobStore<'a, D>>,
}

/// What is drained of a job, of which the same was shown.
pub struct OwnedDrained<'a, D: Disk> {
    store: &'a DrainedStore<D>,
    owned: Owned<'a, D>,
}

/// Whose a job is by its note. `Ok(None)`: nothing says so.
fn uid_of(found: Result<u32>) -> Result<Option<u32>> {
    match found {
        Ok(uid) => Ok(Some(uid)),
        Err(error) if matches!(error.kind, Kind::Missing | Kind::Damaged | Kind::Refused) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl<D: Disk> Store<D> {
    /// What is kept of a job, if it is `by` who may have it removed. `None`: nothing is kept.
    ///
    /// # Errors
    /// It is another user's, or nothing says whose it is; the disk fails.
    pub fn owned(&self, job: &JobId, by: Owner) -> Result<Option<Owned<'_, D>>> {
        if !self.has_folder(job)? {
            return Ok(None);
        }
        let parts = self.existing(job);
        let uid = uid_of(parts.as_ref().map(JobStore::uid).map_err(Clone::clone))?;
        // A removal that did not come to its end has left it without a note, and with nothing else.
        let is_empty = || self.is_empty(job);
        if !(by.may(uid) || uid.is_none() && is_empty()?) {
            return Err(by.refusal(job, uid));
        }
        Ok(Some(Owned {
            store: self,
            job: job.clone(),
            uid,
            parts: parts.ok(),
        }))
    }
}

impl<'a, D: Disk> Owned<'a, D> {
    /// Whose it is by the signed note; `None`: the note does not hold.
    pub fn uid(&self) -> Option<u32> {
        self.uid
    }

    /// What is kept; `None`: the note does not hold.
    pub fn parts(&self) -> Option<&JobStore<'a, D>> {
        self.parts.as_ref()
    }

    /// Removes everything of the job from this node, what is committed first. Gives whose it was.
    ///
    /// # Errors
    /// Something cannot be removed; what is left is not used any more, and another call goes on. By now the number is another user's.
    pub fn remove(self) -> Result<Option<u32>> {
        self.check()?;
        self.store.remove_job(&self.job).map(|()| self.uid)
    }

    /// What is removed is opened by its name once more, under which another user's job may lie since this was made.
    fn check(&self) -> Result<()> {
        if !self.store.has_folder(&self.job)? {
            return Ok(());
        }
        let now = self.store.existing(&self.job);
        let uid = uid_of(now.as_ref().map(JobStore::uid).map_err(Clone::clone))?;
        match uid == self.uid {
            true => Ok(()),
            false => Err(Error::refused(
                format!("remove the checkpoints of job {}", self.job),
                "they became another user's meanwhile".to_string(),
                "try again, if they are yours",
            )),
        }
    }
}

impl<D: Disk> DrainedStore<D> {
    /// What is drained of a job, if it is `by` who may have it removed. `None`: nothing is drained.
    ///
    /// # Errors
    /// It is another user's, or nothing says whose it is; the file system fails.
    pub fn owned(&self, job: &JobId, by: Owner) -> Result<Option<OwnedDrained<'_, D>>> {
        let owned = self.store().owned(job, by)?;
        Ok(owned.map(|owned| OwnedDrained { store: self, owned }))
    }
}

impl<D: Disk> OwnedDrained<'_, D> {
    /// Whose it is by the signed note; `None`: the note does not hold.
    pub fn uid(&self) -> Option<u32> {
        self.owned.uid()
    }

    /// Removes everything of the job from the shared folder. Gives whose it was.
    ///
    /// # Errors
    /// As [`Owned::remove`].
    pub fn remove(self) -> Result<Option<u32>> {
        self.owned.check()?;
        self.store
            .remove_job(&self.owned.job)
            .map(|()| self.owned.uid)
    }
}
