//! The store on a file system of all nodes, to which checkpoints are drained.
//!
//! ```text
//! ROOT/JOB/owner                                     whose job it is, as in the store of a node
//! ROOT/JOB/led-by                                    the node whose mover removes it all after the job
//! ROOT/JOB/over                                      since when the job is over
//! ROOT/JOB/node-INDEX/NUMBER-ATTEMPT/segment         as in the store of that node
//! ROOT/JOB/node-INDEX/NUMBER-ATTEMPT/manifest
//! ```
//!
//! Each node writes in its own folder alone, and nothing notes what is complete: a checkpoint counts if the parts of all its nodes
//! are there. Keys are the site's, so whoever could write there could take something away, and add or change nothing that counts.

use std::collections::BTreeSet;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::NodeSet;
use gpuos_checkpoint::refusal::Refusal;
use gpuos_core::job::JobId;

use crate::disk::{Disk, Form};
use crate::error::{Error, Kind, Result, Tried};
use crate::job::JobStore;
use crate::marks;
use crate::names::CLUSTER;
use crate::small::{make_or_open, read_whole, remove_if_there, replace, there};
use crate::store::Store;
use crate::transfer::looks_whole;

/// The node whose mover removes what is left of a job.
const LED_BY: &[u8] = b"led-by";
/// How the name of a node's folder begins.
const NODE: &str = "node-";
/// The longest name of a node that is read.
const MAX_NAME: usize = 256;
/// Names in a folder at most: one for each node, and some.
const MAX_NAMES: usize = 1 << 17;

/// What is drained of all jobs.
pub struct DrainedStore<D: Disk>(Store<D>);

/// What is drained of one job.
pub struct DrainedJob<'a, D: Disk>(JobStore<'a, D>, &'a Store<D>);

/// A checkpoint of which all parts are there, as far as can be told without reading their data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Complete {
    /// Which.
    pub id: CheckpointId,
    /// When it was taken, in seconds since 1970, UTC.
    pub time: u64,
    /// The set of each of its nodes, by index.
    pub sets: Vec<NodeSet>,
    /// Who could not load it, if the part of any node is marked.
    pub refused: Option<Refusal>,
}

/// Bytes of the note of a cluster's name. Slurm's names are shorter.
const MOST_CLUSTER: usize = 1024;

impl<D: Disk> DrainedStore<D> {
    /// Opens the store in a folder that only the running user can enter, with the keys of this node's own store.
    ///
    /// # Errors
    /// The folder is another user's or open to others, or cannot be read.
    pub fn open<K: Disk>(beside: &Store<K>, disk: D, root: D::Folder) -> Result<DrainedStore<D>> {
        Ok(DrainedStore(beside.beside(disk, root)?))
    }

    /// Writes a file as `name` and removes it.
    ///
    /// # Errors
    /// It cannot be written, or is not the running user's then, as where an export squashes root.
    pub fn probe(&self, name: &str) -> Result<()> {
        let tried = || "write to the folder to which checkpoints are drained".to_string();
        let (disk, root) = (self.0.disk(), self.0.root());
        let name = format!(".probe-{name}").into_bytes();
        replace(disk, root, &name, b"gpuos").tried(tried)?;
        let facts = disk.look(root, &name).tried(tried)?;
        remove_if_there(disk, root, &name).tried(tried)?;
        if facts.uid == disk.user() {
            return Ok(());
        }
        let why = format!("what root writes there is owned by user {}", facts.uid);
        let next = "export it without root squash to the nodes (no_root_squash, or a nodemap of Lustre that trusts them)";
        Err(Error::refused(tried(), why, next))
    }

    /// Notes that the folder has jobs of this cluster, whose numbers another one has, too.
    ///
    /// # Errors
    /// It has those of another one, or the file system fails.
    pub fn claim(&self, cluster: &str) -> Result<()> {
        let tried = || "see of which cluster the drained checkpoints are".to_string();
        let (disk, root) = (self.0.disk(), self.0.root());
        let noted = there(read_whole(disk, root, CLUSTER, MOST_CLUSTER)).tried(tried)?;
        match noted.as_deref().map(|noted| noted.trim_ascii()) {
            Some(noted) if noted == cluster.as_bytes() => Ok(()),
            Some(noted) => {
                let noted = String::from_utf8_lossy(noted);
                let why = format!(
                    "they are those of cluster {}, and this is {cluster}: jobs of both have the same numbers",
                    noted.escape_debug()
                );
                let next = "name another folder, one for each cluster; if the cluster has a new name, remove .cluster there";
                Err(Error::refused(tried(), why, next))
            }
            None => replace(disk, root, CLUSTER, format!("{cluster}\n").as_bytes()).tried(tried),
        }
    }

    /// Jobs that have something here.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn jobs(&self) -> Result<Vec<JobId>> {
        self.0.jobs()
    }

    /// A job of a user, which gets a folder if it has none. One node at a time makes it.
    ///
    /// # Errors
    /// The folder cannot be made, or is that of a job of the same id of another user.
    pub fn make(&self, job: &JobId, uid: u32) -> Result<DrainedJob<'_, D>> {
        Ok(DrainedJob(self.0.job(job, uid)?, &self.0))
    }

    /// A job that has something here. `None`: nothing is here.
    ///
    /// # Errors
    /// The note of its owner does not hold, or the file system fails.
    pub fn existing(&self, job: &JobId) -> Result<Option<DrainedJob<'_, D>>> {
        match self.0.existing(job) {
            Ok(store) => Ok(Some(DrainedJob(store, &self.0))),
            Err(error) if error.kind == Kind::Missing => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The folders of jobs and the notes of whose they are, as in a store of a node.
    pub(crate) fn store(&self) -> &Store<D> {
        &self.0
    }

    /// Removes everything of a job, manifests first: see [`crate::owned`].
    pub(crate) fn remove_job(&self, job: &JobId) -> Result<()> {
        let tried = || format!("remove what is drained of job {job}");
        let (disk, root) = (self.0.disk(), self.0.root());
        let name = job.to_string();
        let folder = match disk.open_folder(root, name.as_bytes()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            folder => folder.tried(tried)?,
        };
        for name in disk.list(&folder, MAX_NAMES).tried(tried)? {
            // A node's folder, and in it those of checkpoints.
            if gone(disk.look(&folder, &name))
                .tried(tried)?
                .is_some_and(|it| it.form == Form::Folder)
            {
                remove_tree(disk, &folder, &name, 1).tried(tried)?;
            }
        }
        // The owner goes last: without him nothing of a job can be read.
        let mut names = disk.list(&folder, MAX_NAMES).tried(tried)?;
        names.sort_by_key(|name| name.as_slice() == b"owner");
        for name in names {
            remove_if_there(disk, &folder, &name).tried(tried)?;
        }
        gone(disk.remove_folder(root, name.as_bytes())).tried(tried)?;
        disk.sync_folder(root).tried(tried)
    }
}

/// What is not there any more is as good as done.
fn gone<T>(done: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match done {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}

pub(crate) fn remove_tree<D: Disk>(
    disk: &D,
    at: &D::Folder,
    name: &[u8],
    deeper: u8,
) -> std::io::Result<()> {
    let Some(folder) = gone(disk.open_folder(at, name))? else {
        return Ok(());
    };
    for name in disk.list(&folder, usize::MAX)? {
        let is_folder = gone(disk.look(&folder, &name))?.is_some_and(|it| it.form == Form::Folder);
        match is_folder && deeper > 0 {
            true => remove_tree(disk, &folder, &name, deeper - 1)?,
            false => remove_if_there(disk, &folder, &name)?,
        }
    }
    gone(disk.remove_folder(at, name)).map(|_| ())
}

impl<'a, D: Disk> DrainedJob<'a, D> {
    /// Whose job it is.
    pub fn uid(&self) -> u32 {
        self.0.uid()
    }

    /// Notes whose mover removes it all after the job.
    ///
    /// # Errors
    /// The file system fails.
    pub fn lead(&self, node: &str) -> Result<()> {
        let tried = || format!("note who leads job {}", self.0.job);
        replace(self.0.disk, &self.0.folder, LED_BY, node.as_bytes()).tried(tried)
    }

    /// Since when the job is over, in seconds since 1970, as was noted; `None`: that is not noted.
    ///
    /// # Errors
    /// The note cannot be read or does not hold.
    pub fn over_since(&self) -> Result<Option<u64>> {
        marks::over_since(&self.0)
    }

    /// Notes since when the job is over; `None`: it is not.
    ///
    /// # Errors
    /// The file system fails.
    pub fn note_over(&self, since: Option<u64>) -> Result<()> {
        marks::note_over(&self.0, since)
    }

    /// Whose that is. `None`: nothing that can be read says so.
    pub fn led_by(&self) -> Option<String> {
        let name = read_whole(self.0.disk, &self.0.folder, LED_BY, MAX_NAME).ok()?;
        String::from_utf8(name).ok()
    }

    /// The part of a node, whose folder is made if it is not there.
    ///
    /// # Errors
    /// The file system fails.
    pub fn part(&self, node: NodeIndex) -> Result<JobStore<'a, D>> {
        let tried = || format!("make a folder for what is drained of job {}", self.0.job);
        let name = format!("{NODE}{node}");
        let folder = make_or_open(self.0.disk, &self.0.folder, name.as_bytes()).tried(tried)?;
        Ok(self.1.within(&self.0, folder))
    }

    /// Marks a node's part of a checkpoint as refused, if it is there.
    ///
    /// # Errors
    /// The file system fails.
    pub fn refuse(&self, node: NodeIndex, id: CheckpointId, refusal: &Refusal) -> Result<()> {
        match self.part(node)?.refuse(id, refusal) {
            Err(error) if error.kind == Kind::Missing => Ok(()),
            done => done,
        }
    }

    /// The parts that are there, by their nodes.
    fn parts(&self) -> Result<Vec<(NodeIndex, JobStore<'a, D>)>> {
        let tried = || format!("list what is drained of job {}", self.0.job);
        let names = self.0.disk.list(&self.0.folder, MAX_NAMES).tried(tried)?;
        let mut parts = Vec::new();
        for name in names {
            let text = std::str::from_utf8(&name).ok();
            let index = text.and_then(|text| text.strip_prefix(NODE)?.parse().ok());
            if let Some(index) = index {
                let folder = self
                    .0
                    .disk
                    .open_folder(&self.0.folder, &name)
                    .tried(tried)?;
                parts.push((NodeIndex(index), self.1.within(&self.0, folder)));
            }
        }
        parts.sort_by_key(|(index, _)| *index);
        Ok(parts)
    }

    /// Checkpoints that have all their parts, the newest first, `most` of them.
    ///
    /// # Errors
    /// The file system fails.
    pub fn complete(&self, most: usize) -> Result<Vec<Complete>> {
        let parts = self.parts()?;
        let Some((NodeIndex(0), first)) = parts.first() else {
            return Ok(Vec::new());
        };
        let mut complete = Vec::new();
        for id in first.ids()?.into_iter().rev() {
            if complete.len() == most {
                break;
            }
            complete.extend(whole(&parts, id)?);
        }
        Ok(complete)
    }

    /// Removes older checkpoints than the newest `keep` complete ones, and what of others was begun before the newest. Nothing may be
    /// written meanwhile.
    ///
    /// # Errors
    /// The file system fails; another call goes on.
    pub fn prune(&self, keep: usize) -> Result<()> {
        let complete = self.complete(keep.max(1))?;
        let Some(newest) = complete.first() else {
            return Ok(());
        };
        for (_, part) in self.parts()? {
            let mut kept: BTreeSet<CheckpointId> = complete.iter().map(|it| it.id).collect();
            let mut open: Vec<CheckpointId> = kept.iter().copied().collect();
            // An earlier segment counts only beside its own manifest.
            while let Some(id) = open.pop() {
                let manifest = part.manifest(id);
                let segments = manifest
                    .map(|manifest| manifest.segments)
                    .unwrap_or_default();
                open.extend(
                    segments
                        .iter()
                        .map(|it| it.id)
                        .filter(|id| kept.insert(*id)),
                );
            }
            for id in part.ids()? {
                if id.number < newest.id.number && !kept.contains(&id) {
                    part.remove(id)?;
                }
            }
        }
        Ok(())
    }
}

/// The checkpoint, if all its parts are there.
fn whole<D: Disk>(
    parts: &[(NodeIndex, JobStore<'_, D>)],
    id: CheckpointId,
) -> Result<Option<Complete>> {
    let (mut sets, mut facts, mut refused) = (Vec::new(), None, None);
    for (at, (index, part)) in (0u16..).zip(parts) {
        if facts.is_some_and(|(nodes, _)| at == nodes) {
            break;
        }
        let Some(manifest) = looks_whole(part, id, *index)?.filter(|_| index.0 == at) else {
            return Ok(None);
        };
        let known = facts.get_or_insert((manifest.nodes, manifest.time));
        if known.0 != manifest.nodes {
            return Ok(None);
        }
        sets.push(manifest.set);
        // A mark that does not hold is none.
        refused = refused.or_else(|| part.refusal(id).unwrap_or_default());
    }
    let complete = facts.filter(|(nodes, _)| usize::from(*nodes) == sets.len());
    Ok(complete.map(|(_, time)| Complete {
        id,
        time,
        sets,
        refused,
    }))
}
