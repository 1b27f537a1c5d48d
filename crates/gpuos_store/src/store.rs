//! The folders of all jobs beneath one folder of root's.
//!
//! ```text
//! ROOT/JOB/owner                             whose job it is
//! ROOT/JOB/drill                             the drill that has copied all of it in, to go with it
//! ROOT/JOB/over                              since when the job is over
//! ROOT/JOB/CURRENT                           which checkpoints are committed; the last is the current one
//! ROOT/JOB/NUMBER-ATTEMPT/segment            extents of this node
//! ROOT/JOB/NUMBER-ATTEMPT/manifest           what they are
//! ROOT/JOB/NUMBER-ATTEMPT/copy-NODE.manifest that of the neighbour
//! ROOT/JOB/NUMBER-ATTEMPT/shard-STRIPE-PLACE parity of other nodes
//! ROOT/JOB/guest-NODES-INDEX/                the part of a node that the job has no more
//! ```
//!
//! One process at a time writes to a store.

use std::collections::BTreeMap;

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_core::job::JobId;

use crate::coding::Coding;
use crate::disk::{Disk, Form, Space};
use crate::error::{Error, Kind, Result, Tried, shown};
use crate::inventory::Found;
use crate::job::JobStore;
use crate::key::{KeyIds, SiteKey};
use crate::names::{CURRENT, OWNER};
use crate::pace::Pace;
use crate::reading::{Reading, Readings};
use crate::room::{Bound, Room, reserve, usable};
use crate::small::{make_or_open, read_whole, remove_if_there, replace, there};

/// Jobs in a store at most; own choice.
const MAX_JOBS: usize = 1 << 16;

/// What a job takes on the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobUsage {
    /// The job.
    pub job: JobId,
    /// Its user; `None`: the note of its owner does not hold.
    pub owner: Option<u32>,
    /// Bytes on the disk, of all that is in its folder.
    pub bytes: u64,
    /// Whether a checkpoint of it was committed.
    pub committed: bool,
}

/// All that is kept on a disk of this node.
pub struct Store<D: Disk> {
    disk: D,
    root: D::Folder,
    key: SiteKey,
    pace: Option<Box<Pace>>,
    coding: Coding,
    readings: Readings,
}

impl<D: Disk> Store<D> {
    /// Opens a store in a folder that only the running user can enter, and removes what crashes have left.
    ///
    /// # Errors
    /// The folder is another user's or open to others, or cannot be read. What is wrong within a job is in [`Found`].
    pub fn open(disk: D, root: D::Folder, key: SiteKey) -> Result<(Store<D>, Found)> {
        check(&disk, &root)?;
        let tried = || "open the store of checkpoints".to_string();
        let store = Store {
            disk,
            root,
            key,
            pace: None,
            coding: Coding::default(),
            readings: Readings::default(),
        };
        let mut found = Found::default();
        for name in store.disk.list(&store.root, MAX_JOBS).tried(tried)? {
            match store.tidy(&name) {
                Ok(Some(job)) => {
                    job.tidy(&mut found);
                    match store.guests(&job) {
                        Ok(all) => all.iter().for_each(|guest| guest.parts.tidy(&mut found)),
                        Err(error) => found.faults.push(error.to_string()),
                    }
                }
                Ok(None) => found.removed.push(format!("folder {}", shown(&name))),
                Err(error) => found.faults.push(error.to_string()),
            }
        }
        Ok((store, found))
    }

    /// The names of its keys.
    pub fn key_ids(&self) -> KeyIds {
        self.key.ids(self.coding.encrypt)
    }

    /// A store in another place with the same keys, in which nothing is looked after.
    ///
    /// # Errors
    /// The folder is another user's or open to others, or cannot be read.
    pub(crate) fn beside<B: Disk>(&self, disk: B, root: B::Folder) -> Result<Store<B>> {
        check(&disk, &root)?;
        let key = self.key.again();
        Ok(Store {
            disk,
            root,
            key,
            pace: None,
            coding: Coding::default(),
            readings: Readings::default(),
        })
    }

    /// Has it wait for `pace` before it moves bytes of segments and shards.
    #[must_use]
    pub fn at_pace(self, pace: Box<Pace>) -> Store<D> {
        let pace = Some(pace);
        Store { pace, ..self }
    }

    /// Says that a checkpoint of a job is being read until what is answered is dropped: [`JobStore::is_read`].
    #[must_use]
    pub fn read(&self, job: &JobId, id: CheckpointId) -> Reading {
        self.readings.begin(job, id)
    }

    /// Has extents and manifests that are written from now on kept in this form.
    #[must_use]
    pub fn coded(self, coding: Coding) -> Store<D> {
        Store { coding, ..self }
    }

    pub(crate) fn disk(&self) -> &D {
        &self.disk
    }

    pub(crate) fn root(&self) -> &D::Folder {
        &self.root
    }

    /// The same job in another folder of this store.
    pub(crate) fn within(&self, job: &JobStore<'_, D>, folder: D::Folder) -> JobStore<'_, D> {
        self.of(job.job.clone(), job.uid, folder)
    }

    /// A user's job in an open folder.
    fn of(&self, job: JobId, uid: u32, folder: D::Folder) -> JobStore<'_, D> {
        let keys = self.key.of_job(&job, uid);
        let how = (self.pace.as_deref(), self.coding, self.readings.clone());
        JobStore::new(&self.disk, folder, job, uid, keys, how)
    }

    /// The job of a folder. `None`: nothing was in it, and it is gone.
    fn tidy(&self, name: &[u8]) -> Result<Option<JobStore<'_, D>>> {
        let tried = || format!("open {} in the store of checkpoints", shown(name));
        let job = std::str::from_utf8(name)
            .ok()
            .and_then(|text| text.parse::<JobId>().ok());
        let Some(job) = job else {
            let next = "remove it: nothing but folders of jobs belongs there";
            return Err(Error::refused(tried(), "it is no id of a job", next));
        };
        let folder = self.disk.open_folder(&self.root, name).tried(tried)?;
        let names = self.disk.list(&folder, MAX_JOBS).tried(tried)?;
        if names.iter().all(|name| name.starts_with(OWNER)) {
            for name in &names {
                self.disk.unlink(&folder, name).tried(tried)?;
            }
            self.disk.remove_folder(&self.root, name).tried(tried)?;
            self.disk.sync_folder(&self.root).tried(tried)?;
            return Ok(None);
        }
        let uid = self.owner(&folder, &job)?;
        Ok(Some(self.of(job, uid, folder)))
    }

    /// Ids of the jobs that have a folder, in their order.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn jobs(&self) -> Result<Vec<JobId>> {
        let names = self.disk.list(&self.root, MAX_JOBS);
        let names = names.tried(|| "list the jobs in the store of checkpoints".into())?;
        let texts = names
            .iter()
            .filter_map(|name| std::str::from_utf8(name).ok());
        let mut jobs: Vec<JobId> = texts.filter_map(|text| text.parse().ok()).collect();
        jobs.sort_unstable();
        Ok(jobs)
    }

    /// A job that has checkpoints, by whose it is here.
    ///
    /// # Errors
    /// It has none, or the note of its owner does not hold.
    pub fn existing(&self, job: &JobId) -> Result<JobStore<'_, D>> {
        let tried = || format!("open the checkpoints of job {job}");
        let name = job.to_string();
        let folder = self.disk.open_folder(&self.root, name.as_bytes());
        let folder = folder.tried(tried)?;
        let uid = self.owner(&folder, job)?;
        Ok(self.of(job.clone(), uid, folder))
    }

    /// A job of a user, which gets a folder if it has none.
    ///
    /// # Errors
    /// The folder cannot be made, or is that of a job of the same id of another user.
    pub fn job(&self, job: &JobId, uid: u32) -> Result<JobStore<'_, D>> {
        let tried = || format!("make the folder for checkpoints of job {job}");
        let name = job.to_string();
        let folder = make_or_open(&self.disk, &self.root, name.as_bytes());
        let folder = folder.tried(tried)?;
        match self.owner(&folder, job) {
            Ok(owner) if owner == uid => self.sign_owner(&folder, job, uid).tried(tried)?,
            Ok(owner) => {
                let why = format!("it is there as one of user {owner}, not {uid}");
                let next = "remove the checkpoints of the earlier job of this id first";
                return Err(Error::refused(tried(), why, next));
            }
            Err(error) if error.kind == Kind::Missing => {
                let note = self.owner_note(job, uid);
                replace(&self.disk, &folder, OWNER, &note).tried(tried)?;
            }
            Err(error) => return Err(error),
        }
        Ok(self.of(job.clone(), uid, folder))
    }

    fn owner_note(&self, job: &JobId, uid: u32) -> Vec<u8> {
        let code = self.key.owner_code(job, uid);
        [&uid.to_le_bytes()[..], &code].concat()
    }

    /// Signs whose job it is anew, where another key of the site has: that one may be forgotten.
    fn sign_owner(&self, folder: &D::Folder, job: &JobId, uid: u32) -> std::io::Result<()> {
        if !self.key.has_others() {
            return Ok(());
        }
        let note = self.owner_note(job, uid);
        match read_whole(&self.disk, folder, OWNER, note.len())? == note {
            true => Ok(()),
            false => replace(&self.disk, folder, OWNER, &note),
        }
    }

    fn owner(&self, folder: &D::Folder, job: &JobId) -> Result<u32> {
        let tried = || format!("read whose job {job} is");
        let note = read_whole(&self.disk, folder, OWNER, 36).tried(tried)?;
        let parts = note
            .split_first_chunk::<4>()
            .and_then(|(uid, code)| Some((u32::from_le_bytes(*uid), code.try_into().ok()?)));
        match parts {
            Some((uid, code)) if self.key.owner_holds(job, uid, code) => Ok(uid),
            _ => Err(Error::damaged(tried(), "the note does not hold")),
        }
    }

    /// Whether a job has a folder.
    pub(crate) fn has_folder(&self, job: &JobId) -> Result<bool> {
        let tried = || format!("open the checkpoints of job {job}");
        let folder = self
            .disk
            .open_folder(&self.root, job.to_string().as_bytes());
        Ok(there(folder).tried(tried)?.is_some())
    }

    /// Whether nothing is in the folder of a job.
    pub(crate) fn is_empty(&self, job: &JobId) -> Result<bool> {
        let tried = || format!("open the checkpoints of job {job}");
        let folder = self
            .disk
            .open_folder(&self.root, job.to_string().as_bytes());
        let folder = folder.tried(tried)?;
        let names = self.disk.list(&folder, MAX_JOBS).tried(tried)?;
        Ok(names.is_empty())
    }

    /// Removes everything of a job, what is committed first: see [`crate::owned`].
    pub(crate) fn remove_job(&self, job: &JobId) -> Result<()> {
        let tried = || format!("remove the checkpoints of job {job}");
        let name = job.to_string();
        let folder = match self.disk.open_folder(&self.root, name.as_bytes()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            folder => folder.tried(tried)?,
        };
        remove_if_there(&self.disk, &folder, CURRENT).tried(tried)?;
        self.disk.sync_folder(&folder).tried(tried)?;
        self.drop_guests(&folder).tried(tried)?;
        let names = self.disk.list(&folder, MAX_JOBS).tried(tried)?;
        // The owner goes last: without him nothing of a job can be read.
        for name in names.iter().filter(|name| *name != OWNER) {
            let facts = self.disk.look(&folder, name).tried(tried)?;
            if facts.form != Form::Folder {
                self.disk.unlink(&folder, name).tried(tried)?;
                continue;
            }
            let inner = self.disk.open_folder(&folder, name).tried(tried)?;
            for name in self.disk.list(&inner, usize::MAX).tried(tried)? {
                self.disk.unlink(&inner, &name).tried(tried)?;
            }
            self.disk.remove_folder(&folder, name).tried(tried)?;
        }
        self.disk.sync_folder(&folder).tried(tried)?;
        remove_if_there(&self.disk, &folder, OWNER).tried(tried)?;
        let gone = self.disk.remove_folder(&self.root, name.as_bytes());
        gone.tried(tried)?;
        self.disk.sync_folder(&self.root).tried(tried)
    }

    /// Bytes that checkpoints take on the disk, by user; jobs whose owner is not known stand under `None`.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn usage(&self) -> Result<BTreeMap<Option<u32>, u64>> {
        let mut usage = BTreeMap::new();
        for job in self.usage_of_jobs()? {
            *usage.entry(job.owner).or_insert(0u64) += job.bytes;
        }
        Ok(usage)
    }

    /// What each job that has a folder takes on the disk, in the order of their ids. What others remove meanwhile may be counted or not.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn usage_of_jobs(&self) -> Result<Vec<JobUsage>> {
        let mut usage = Vec::new();
        for job in self.jobs()? {
            let tried = || format!("count what checkpoints of job {job} take");
            let name = job.to_string();
            let folder = self.disk.open_folder(&self.root, name.as_bytes());
            let Some(folder) = there(folder).tried(tried)? else {
                continue;
            };
            let current = there(self.disk.look(&folder, CURRENT)).tried(tried)?;
            usage.push(JobUsage {
                owner: self.owner(&folder, &job).ok(),
                bytes: self.taken(&folder, 2).tried(tried)?,
                committed: current.is_some(),
                job,
            });
        }
        Ok(usage)
    }

    fn taken(&self, folder: &D::Folder, deeper: u8) -> std::io::Result<u64> {
        let mut sum = 0u64;
        for name in self.disk.list(folder, usize::MAX)? {
            let Some(facts) = there(self.disk.look(folder, &name))? else {
                continue;
            };
            sum = sum.saturating_add(facts.taken);
            if facts.form == Form::Folder
                && deeper > 0
                && let Some(inner) = there(self.disk.open_folder(folder, &name))?
            {
                sum = sum.saturating_add(self.taken(&inner, deeper - 1)?);
            }
        }
        Ok(sum)
    }

    /// How much fits on the disk.
    ///
    /// # Errors
    /// The file system does not say.
    pub fn space(&self) -> Result<Space> {
        let space = self.disk.space(&self.root);
        space.tried(|| "ask how much space the store of checkpoints has".into())
    }
}

/// Nobody but the running user can enter the folder of a store.
fn check<D: Disk>(disk: &D, root: &D::Folder) -> Result<()> {
    let tried = || "open the store of checkpoints".to_string();
    let facts = disk.folder_facts(root).tried(tried)?;
    if facts.uid != disk.user() || facts.mode & 0o077 != 0 {
        let why = format!(
            "its folder is owned by user {} with mode {:04o}",
            facts.uid, facts.mode
        );
        let next = "have it owned by the user that gpuos_mover runs as, root, with mode 0700";
        return Err(Error::refused(tried(), why, next));
    }
    Ok(())
}

impl<D: Disk> Store<D> {
    /// How much a part of a checkpoint may add. `most`: what the user's checkpoints may take here, in bytes; 0: no limit. `data` of `all`
    /// bytes that it costs on this node are its own, the others are parity; neither is 0.
    ///
    /// Other parts that are made at the same time are not known of: they count when they are there.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn room(&self, uid: u32, most: u64, (data, all): (u8, u8)) -> Result<Room> {
        let space = self.space()?;
        let own =
            |bytes: u64| (u128::from(bytes) * u128::from(data) / u128::from(all.max(1))) as u64;
        let disk = Room {
            bytes: own(usable(space)),
            bound: Bound::Disk {
                free: space.free,
                reserve: reserve(space),
            },
        };
        if most == 0 {
            return Ok(disk);
        }
        let used = self.usage()?.get(&Some(uid)).copied().unwrap_or(0);
        let quota = Room {
            bytes: own(most.saturating_sub(used)),
            bound: Bound::Quota { uid, most, used },
        };
        Ok(if quota.bytes <= disk.bytes {
            quota
        } else {
            disk
        })
    }
}
