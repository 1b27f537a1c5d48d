//! What a job has on this node, and its removal.

use std::collections::BTreeSet;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::{Coded, Counts, Kind as Extents, Manifest, NodeSet, ranks};
use gpuos_checkpoint::refusal::Refusal;

use crate::disk::Disk;
use crate::error::{Error, Kind, Result, Tried, shown};
use crate::job::JobStore;
use crate::names::{self, MANIFEST, Named, SEGMENT};

/// Names in a folder of a job or checkpoint at most: shards of all stripes and places, with room; own choice.
const MAX_NAMES: usize = 1 << 20;

/// What was found when a store was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// What crashes had left, and was removed.
    pub removed: Vec<String>,
    /// What is not as it should be, and was left alone.
    pub faults: Vec<String>,
}

/// One checkpoint of a job, as it is on this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// Which.
    pub id: CheckpointId,
    /// This node's part.
    pub part: Part,
    /// It was committed.
    pub committed: bool,
    /// Neighbours whose manifests are here and hold.
    pub copies: Vec<NodeIndex>,
    /// Shards that are here, by stripe and place; not looked into.
    pub shards: Vec<(u32, u16)>,
    /// What is wrong with manifests here, in sentences.
    pub faults: Vec<String>,
    /// Bytes that all of it takes on the disk.
    pub taken: u64,
}

/// A checkpoint whose own part is here, for a list that people read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Which.
    pub id: CheckpointId,
    /// Nodes that it was made on.
    pub nodes: u16,
    /// Ranks of the program, as the folders of files on this node say. `None`: there are none.
    pub ranks: Option<u16>,
    /// It was committed.
    pub committed: bool,
    /// When it was taken, in seconds since 1970, UTC.
    pub time: u64,
    /// Files of the program on this node.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Bytes that it takes on the disk, with what is kept for other nodes.
    pub taken: u64,
    /// In which form its extents are kept.
    pub forms: Forms,
    /// Who could not load it.
    pub refused: Option<Refusal>,
}

/// In which form the extents of a part are kept, in its own segment and in earlier ones. What is all zero, and so is not kept, does not count;
/// what is kept once and is there several times counts each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forms {
    /// Bytes in files.
    pub plain: u64,
    /// Bytes in segments.
    pub kept: u64,
    /// Whether any is compressed.
    pub compressed: bool,
    /// Bytes in segments that are encrypted.
    pub encrypted: u64,
}

impl Forms {
    fn of(manifest: &Manifest) -> Forms {
        let mut forms = Forms::default();
        for extent in manifest.files.iter().flat_map(|file| &file.extents) {
            let Some(stored) = extent.kind.stored() else {
                continue;
            };
            let length = u64::from(stored.length);
            forms.plain += extent.raw;
            forms.kept += length;
            if let Extents::Coded(coded) = &extent.kind {
                forms.compressed |= coded.packing != Coded::AS_IT_IS;
                forms.encrypted += coded.nth.map_or(0, |_| length);
            }
        }
        forms
    }
}

/// How much of a checkpoint's own part is here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Nothing of its own: shards, or manifests of others.
    Nothing,
    /// A segment without a manifest: not prepared, or kept since later checkpoints refer to it.
    SegmentOnly,
    /// A manifest that holds. Whether the data does, [`crate::verify::verify`] says.
    Prepared(Summary),
    /// A manifest that does not hold.
    Damaged,
}

/// What a manifest says, without its files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The node whose part it is.
    pub node: NodeIndex,
    /// Nodes of the job.
    pub nodes: u16,
    /// When it was taken, in seconds since 1970.
    pub time: u64,
    /// Totals.
    pub counts: Counts,
    /// Bytes of its own segment.
    pub segment: u64,
    /// Earlier checkpoints whose segments it needs.
    pub needs: Vec<CheckpointId>,
}

impl Summary {
    fn of(manifest: &Manifest) -> Summary {
        let earlier = manifest.segments.iter().skip(1);
        Summary {
            node: manifest.node,
            nodes: manifest.nodes,
            time: manifest.time,
            counts: manifest.counts,
            segment: manifest.segments[0].length,
            needs: earlier.map(|segment| segment.id).collect(),
        }
    }
}

/// What becomes of shards and of neighbours' manifests when a checkpoint is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Others {
    /// They go.
    Remove,
    /// They stay: a later checkpoint of some node refers to a segment of this one, which is rebuilt of them.
    Keep,
}

/// Segments that manifests refer to. `None`: a manifest is damaged, so any may be needed.
type Needed = Option<BTreeSet<CheckpointId>>;

impl<D: Disk> JobStore<'_, D> {
    /// All checkpoints that have something here, in the order of their ids.
    ///
    /// # Errors
    /// A folder or the note of what is committed cannot be read.
    pub fn list(&self) -> Result<Vec<Held>> {
        let committed = self.committed()?;
        let ids = self.ids()?;
        ids.into_iter()
            .map(|id| self.held(id, &committed))
            .collect()
    }

    /// Checkpoints whose own manifest is here and holds, in the order of their ids. What is kept for other nodes is counted and not
    /// looked into, so it costs less than [`JobStore::list`].
    ///
    /// # Errors
    /// As there.
    pub fn kept(&self) -> Result<Vec<Kept>> {
        let committed = self.committed()?;
        let mut kept = Vec::new();
        for id in self.ids()? {
            let tried = || self.tried("list", id);
            let Ok(manifest) = self.manifest(id) else {
                continue;
            };
            let folder = self.folder(id).tried(tried)?;
            let mut taken = 0u64;
            for name in self.disk.list(&folder, MAX_NAMES).tried(tried)? {
                let facts = self.disk.look(&folder, &name).tried(tried)?;
                taken = taken.saturating_add(facts.taken);
            }
            kept.push(Kept {
                id,
                nodes: manifest.nodes,
                ranks: ranks(&manifest).first().map(|(_, size)| *size),
                committed: committed.contains(&id),
                time: manifest.time,
                files: manifest.counts.files,
                bytes: manifest.counts.bytes,
                taken,
                forms: Forms::of(&manifest),
                // A mark that does not hold is none.
                refused: self.refusal(id).unwrap_or_default(),
            });
        }
        Ok(kept)
    }

    /// Which node of the job this one is, how many there are, and its set, as the newest checkpoint says whose own manifest is here
    /// and holds, committed or not. `None`: there is none.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn claim(&self) -> Result<Option<(CheckpointId, NodeIndex, u16, NodeSet)>> {
        Ok(self.claims()?.into_iter().next())
    }

    /// The same for each number of nodes that the job had when it made what is here; the newest first.
    ///
    /// # Errors
    /// As there.
    pub fn claims(&self) -> Result<Vec<(CheckpointId, NodeIndex, u16, NodeSet)>> {
        let mut claims: Vec<(CheckpointId, NodeIndex, u16, NodeSet)> = Vec::new();
        for id in self.ids()?.into_iter().rev() {
            if let Ok(manifest) = self.manifest(id)
                && claims
                    .iter()
                    .all(|(_, _, nodes, _)| *nodes != manifest.nodes)
            {
                claims.push((id, manifest.node, manifest.nodes, manifest.set));
            }
        }
        Ok(claims)
    }

    pub(crate) fn ids(&self) -> Result<Vec<CheckpointId>> {
        let tried = || format!("list the checkpoints of job {}", self.job);
        let names = self.disk.list(&self.folder, MAX_NAMES).tried(tried)?;
        let mut ids: Vec<_> = names
            .iter()
            .filter_map(|name| names::checkpoint(name))
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    fn held(&self, id: CheckpointId, committed: &[CheckpointId]) -> Result<Held> {
        let tried = || self.tried("list", id);
        let folder = self.folder(id).tried(tried)?;
        let mut held = Held {
            id,
            part: Part::Nothing,
            committed: false,
            copies: Vec::new(),
            shards: Vec::new(),
            faults: Vec::new(),
            taken: 0,
        };
        // In order of bytes: "manifest" comes before "segment", and copies before both.
        for name in self.disk.list(&folder, MAX_NAMES).tried(tried)? {
            let facts = self.disk.look(&folder, &name).tried(tried)?;
            held.taken = held.taken.saturating_add(facts.taken);
            match names::read(&name) {
                Named::Manifest => match self.manifest(id) {
                    Ok(manifest) => held.part = Part::Prepared(Summary::of(&manifest)),
                    Err(error) => {
                        held.part = Part::Damaged;
                        held.faults.push(error.to_string());
                    }
                },
                Named::Segment if held.part == Part::Nothing => held.part = Part::SegmentOnly,
                Named::Copy(node) => match self.copy(id, node) {
                    Ok(_) => held.copies.push(node),
                    Err(error) => held.faults.push(error.to_string()),
                },
                Named::Shard(stripe, place) => held.shards.push((stripe, place)),
                Named::Unknown => held
                    .faults
                    .push(format!("{} does not belong there", shown(&name))),
                Named::Segment | Named::Unfinished | Named::Refused => {}
            }
        }
        let own = match &held.part {
            Part::Prepared(summary) => Some(summary.node),
            _ => None,
        };
        // Its own manifest as a neighbour's, or a neighbour's in place of its own.
        if let Some(own) = own.filter(|own| held.copies.contains(own)) {
            held.part = Part::Damaged;
            let what = format!("{} has two manifests of node {own}", self.tried("", id));
            held.faults.push(what.trim_start().to_string());
        }
        held.committed = committed.contains(&id) && matches!(held.part, Part::Prepared(_));
        held.shards.sort_unstable();
        Ok(held)
    }

    fn needed(&self, ids: &[CheckpointId]) -> Result<Needed> {
        let mut needed = BTreeSet::new();
        for id in ids {
            match self.manifest(*id) {
                Ok(manifest) => needed.extend(manifest.segments.iter().map(|segment| segment.id)),
                Err(error) if error.kind == Kind::Missing => {}
                Err(error) if matches!(error.kind, Kind::Damaged | Kind::Refused) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(needed))
    }

    /// Removes a checkpoint: its manifest first, so that nothing half removed is ever used. Segments stay as long as manifests
    /// here refer to them, and go with the last of these. What is not there is removed already.
    ///
    /// # Errors
    /// It is the current one, or the disk fails; another call goes on.
    pub fn remove_keeping(&self, id: CheckpointId, others: Others) -> Result<()> {
        let tried = || self.tried("remove", id);
        if self.current()? == Some(id) {
            let next = "commit another one first, or remove all of the job";
            return Err(Error::refused(tried(), "it is the current one", next));
        }
        match self.folder(id) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            folder => {
                let folder = folder.tried(tried)?;
                self.unlink(&folder, &[MANIFEST.to_vec()]).tried(tried)?;
                self.disk.sync_folder(&folder).tried(tried)?;
                if others == Others::Remove {
                    let mut names = self.disk.list(&folder, MAX_NAMES).tried(tried)?;
                    names.retain(|name| name != SEGMENT);
                    self.unlink(&folder, &names).tried(tried)?;
                }
            }
        }
        self.sweep().map(|_| ())
    }

    /// As [`JobStore::remove_keeping`], with shards and neighbours' manifests. Not while a part of the job is being made: what has no
    /// manifest yet is taken for something that a crash has left.
    ///
    /// # Errors
    /// As there.
    pub fn remove(&self, id: CheckpointId) -> Result<()> {
        self.remove_keeping(id, Others::Remove)
    }

    /// Removes segments that nothing refers to, of checkpoints that have no manifest. Gives the ids of what is gone.
    fn sweep(&self) -> Result<Vec<CheckpointId>> {
        let ids = self.ids()?;
        let mut gone = Vec::new();
        let Some(needed) = self.needed(&ids)? else {
            return Ok(gone);
        };
        for id in ids.into_iter().filter(|id| !needed.contains(id)) {
            let tried = || self.tried("remove", id);
            let folder = self.folder(id).tried(tried)?;
            let names = self.disk.list(&folder, MAX_NAMES).tried(tried)?;
            let kept = |name: &Vec<u8>| {
                matches!(
                    names::read(name),
                    Named::Manifest | Named::Copy(_) | Named::Unknown
                )
            };
            if names.iter().any(kept) {
                continue;
            }
            self.unlink(&folder, &names).tried(tried)?;
            let name = id.to_string();
            let removed = self.disk.remove_folder(&self.folder, name.as_bytes());
            removed.tried(tried)?;
            gone.push(id);
        }
        if !gone.is_empty() {
            let tried = || format!("remove checkpoints of job {}", self.job);
            self.disk.sync_folder(&self.folder).tried(tried)?;
        }
        Ok(gone)
    }

    /// Removes what a crash has left, when nothing of the job is being written.
    pub(crate) fn tidy(&self, found: &mut Found) {
        if let Err(error) = self.remove_unfinished(found) {
            found.faults.push(error.to_string());
        }
        match self.sweep() {
            Ok(gone) => {
                found.removed.extend(gone.iter().map(|id| {
                    format!("checkpoint {id} of job {}, which has no manifest", self.job)
                }))
            }
            Err(error) => found.faults.push(error.to_string()),
        }
        match self.list() {
            Ok(all) => found
                .faults
                .extend(all.into_iter().flat_map(|held| held.faults)),
            Err(error) => found.faults.push(error.to_string()),
        }
        match self.current() {
            Ok(Some(id)) => {
                if let Err(error) = self.manifest(id).map(|_| ()) {
                    found.faults.push(error.to_string());
                }
            }
            Ok(None) => {}
            // The list has told it already.
            Err(_) => {}
        }
    }

    fn remove_unfinished(&self, found: &mut Found) -> Result<()> {
        let tried = || format!("remove unfinished files of job {}", self.job);
        let mut remove = |folder: &D::Folder, place: &str| -> Result<()> {
            let names = self.disk.list(folder, MAX_NAMES).tried(tried)?;
            let names = names.into_iter();
            let unfinished: Vec<_> = names
                .filter(|name| names::read(name) == Named::Unfinished)
                .collect();
            self.unlink(folder, &unfinished).tried(tried)?;
            if !unfinished.is_empty() {
                self.disk.sync_folder(folder).tried(tried)?;
            }
            let named = |name: &Vec<u8>| format!("file {} of job {}{place}", shown(name), self.job);
            found.removed.extend(unfinished.iter().map(named));
            Ok(())
        };
        remove(&self.folder, "")?;
        for id in self.ids()? {
            remove(
                &self.folder(id).tried(tried)?,
                &format!(", checkpoint {id}"),
            )?;
        }
        Ok(())
    }
}
