//! The checkpoints of one job on this node: how they come to be, are committed, and are read back.
//!
//! Nothing counts before its last step. A checkpoint is prepared when its manifest has its name, after all data is on the
//! disk; it is current when `CURRENT` names it. Both are one rename of a file that is on the disk already, so after a crash
//! either the old or the new state is found. What is between is removed when the store is opened.

use std::fmt;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::{
    Authentic, Counts, Encryption, MAC_BYTES, MAX_MANIFEST, Manifest, NodeSet, Segment, Unsealed,
};
use gpuos_checkpoint::refusal::{MAX_NODE, MAX_SAID, Refusal};
use gpuos_core::job::JobId;

use crate::coding::{Coder, Coding, Known};
use crate::disk::Disk;
use crate::error::{Error, Kind, Result, Tried};
use crate::ingest::{self, Limits};
use crate::key::JobKeys;
use crate::names::{self, CURRENT, MANIFEST, REFUSED, SEGMENT};
use crate::pace::Pace;
use crate::reading::Readings;
use crate::segment::{SegmentWriter, open_segment};
use crate::small::{make_or_open, read_whole, remove_if_there, replace, there};

/// Committed checkpoints that are remembered at most: far more than any retention keeps; own choice.
pub(crate) const MAX_COMMITTED: usize = 4096;
/// Bytes of a mark at most: its texts, with their lengths, a rank and a code.
const MAX_MARK: usize = MAX_NODE + MAX_SAID + 16 + MAC_BYTES;

/// The checkpoints of one job of one user.
pub struct JobStore<'a, D: Disk> {
    pub(crate) disk: &'a D,
    pub(crate) folder: D::Folder,
    pub(crate) job: JobId,
    pub(crate) uid: u32,
    pub(crate) keys: JobKeys,
    pub(crate) pace: Option<&'a Pace>,
    coding: Coding,
    readings: Readings,
}

/// A checkpoint that is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct New {
    /// Its number and attempt.
    pub id: CheckpointId,
    /// This node's place in the job.
    pub node: NodeIndex,
    /// Nodes of the job.
    pub nodes: u16,
    /// The time, in seconds since 1970, UTC.
    pub time: u64,
}

/// A checkpoint whose data is on the disk, and that has no manifest yet: its set's chunks can be cut now that its length is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Draft(Manifest);

impl Draft {
    /// Bytes of the segment, a multiple of 4096.
    pub fn segment_length(&self) -> u64 {
        self.0.segments[0].length
    }

    /// What was read.
    pub fn counts(&self) -> Counts {
        self.0.counts
    }
}

impl<'a, D: Disk> JobStore<'a, D> {
    pub(crate) fn new(
        disk: &'a D,
        folder: D::Folder,
        job: JobId,
        uid: u32,
        keys: JobKeys,
        (pace, coding, readings): (Option<&'a Pace>, Coding, Readings),
    ) -> JobStore<'a, D> {
        JobStore {
            disk,
            folder,
            job,
            uid,
            keys,
            pace,
            coding,
            readings,
        }
    }

    /// Whether a checkpoint is being read, as it waits to be copied elsewhere: retention leaves it.
    pub fn is_read(&self, id: CheckpointId) -> bool {
        self.readings.has(&self.job, id)
    }

    /// Waits until so many bytes may be moved.
    pub(crate) fn paced(&self, bytes: usize) {
        if let Some(pace) = self.pace {
            pace(bytes as u64);
        }
    }

    /// Whose job it is.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Reads a program's folder and has its data on the disk. Extents that `previous` has too are not written again, as long as
    /// the segment that has them is here.
    ///
    /// # Errors
    /// The folder has something that is not taken, or the disk fails; what was written of it is removed then.
    pub fn ingest<S: Disk>(
        &self,
        new: &New,
        source: &S,
        folder: &S::Folder,
        limits: &Limits,
        previous: Option<&Manifest>,
    ) -> Result<Draft> {
        let begun = self.make_segment(new.id)?;
        let written = self.write_segment(new, begun, source, folder, limits, previous);
        if written.is_err() {
            // What cannot be removed now goes when the store is opened.
            let _ = self.remove(new.id);
        }
        written
    }

    fn make_segment(&self, id: CheckpointId) -> Result<D::File> {
        let tried = || self.tried("write the segment of", id);
        if let Ok(folder) = self.folder(id)
            && self.disk.look(&folder, SEGMENT).is_ok()
        {
            let next = "remove it, or take another attempt";
            return Err(Error::refused(tried(), "it is there already", next));
        }
        let name = id.to_string();
        let folder = make_or_open(self.disk, &self.folder, name.as_bytes()).tried(tried)?;
        self.disk.create(&folder, SEGMENT).tried(tried)
    }

    fn write_segment<S: Disk>(
        &self,
        new: &New,
        file: D::File,
        source: &S,
        folder: &S::Folder,
        limits: &Limits,
        previous: Option<&Manifest>,
    ) -> Result<Draft> {
        let tried = || self.tried("write the segment of", new.id);
        let mut own = Segment::new(new.id, 0);
        if self.coding.encrypt {
            own.encryption = Some(self.keys.encryption().tried(tried)?);
        }
        let with = own.encryption;
        let cipher = with.and_then(|with| self.keys.segment_cipher(new.id, &with));
        // Of another job, user or node, its extents would not be found or not verify; of a later number it is not earlier.
        let fits = |it: &&Manifest| {
            (&it.job, it.uid, it.node) == (&self.job, self.uid, new.node)
                && it.id.number < new.id.number
        };
        let previous = previous.filter(fits);
        let present = |segment: &Segment| {
            let file = open_segment(self.disk, &self.folder, segment);
            let facts = file.and_then(|file| self.disk.facts(&file));
            facts.is_ok_and(|facts| facts.size >= segment.length)
        };
        let known = previous.map(|it| Known::of(it, with.as_ref(), present));
        let known = known.unwrap_or_else(Known::none);
        let writer = SegmentWriter::new(self.disk, file, self.pace, own, &known);
        let mut writer = writer.tried(tried)?;
        let coder = Coder {
            keys: &self.keys,
            known: &known,
            cipher: cipher.as_ref(),
        };
        let coding = (coder, self.coding.compress);
        let tree = ingest::read(source, folder, self.uid, limits, coding, &mut writer)?;
        let segments = writer.finish().tried(tried)?;
        // Before the manifest has its name: of two names in a folder a crash may leave the later one alone.
        let folder = self.folder(new.id).tried(tried)?;
        self.disk.sync_folder(&folder).tried(tried)?;
        let counts = Counts::of(&tree.files).unwrap_or_default();
        Ok(Draft(Manifest {
            id: new.id,
            job: self.job.clone(),
            uid: self.uid,
            node: new.node,
            nodes: new.nodes,
            time: new.time,
            set: NodeSet {
                members: vec![new.node],
                parity: 0,
                chunk: 0,
            },
            segments,
            folders: tree.folders,
            files: tree.files,
            counts,
        }))
    }

    /// Writes the manifest: from now on the checkpoint is prepared on this node. Gives the manifest and its bytes, which the
    /// neighbour keeps too.
    ///
    /// # Errors
    /// The set does not fit, or the disk fails; then it is not prepared, or it may be, and another call or a removal follows.
    pub fn prepare(&self, draft: Draft, set: NodeSet) -> Result<(Manifest, Vec<u8>)> {
        let mut manifest = draft.0;
        manifest.set = set;
        let tried = || self.tried("write the manifest of", manifest.id);
        let unsealed = match self.coding.encrypt {
            false => Unsealed::new(&manifest),
            true => {
                let with = self.keys.encryption().tried(tried)?;
                let cipher = self.keys.manifest_cipher(&with);
                let encrypt = |body: &mut [u8]| {
                    if let Some(cipher) = cipher {
                        cipher.apply(0, body);
                    }
                };
                Unsealed::encrypted(&manifest, &with, encrypt)
            }
        };
        let unsealed = unsealed.map_err(|invalid| {
            let next = "tell the developers of gpuos: a manifest of their own making is refused";
            Error::refused(tried(), invalid.to_string(), next)
        })?;
        let bytes = unsealed.seal(|signed| self.keys.manifest_code(signed));
        let folder = self.folder(manifest.id).tried(tried)?;
        replace(self.disk, &folder, MANIFEST, &bytes).tried(tried)?;
        Ok((manifest, bytes))
    }

    /// Keeps the manifest of a neighbour, as it had it written.
    ///
    /// # Errors
    /// It does not verify or is of another checkpoint, or the disk fails.
    pub fn put_copy(&self, id: CheckpointId, bytes: &[u8]) -> Result<Manifest> {
        let tried = || self.tried("keep a neighbour's manifest of", id);
        let manifest = self.parse(bytes, tried)?;
        if manifest.id != id {
            let why = format!("it is of checkpoint {}", manifest.id);
            return Err(Error::damaged(tried(), why));
        }
        let name = id.to_string();
        let folder = make_or_open(self.disk, &self.folder, name.as_bytes()).tried(tried)?;
        let name = names::copy(manifest.node);
        replace(self.disk, &folder, &name, bytes).tried(tried)?;
        Ok(manifest)
    }

    /// Makes a prepared checkpoint the current one. A note of what is committed that does not hold is replaced.
    ///
    /// # Errors
    /// It is not prepared, a later one is current, or the disk fails: then the old or the new one is current.
    pub fn commit(&self, id: CheckpointId) -> Result<()> {
        let tried = || self.tried("commit", id);
        self.manifest(id)?;
        // Damage of the note alone must not keep the job from ever committing again; completeness decides what is used.
        let mut committed = match self.committed() {
            Err(error) if error.kind == Kind::Damaged => Vec::new(),
            committed => committed?,
        };
        if let Some(last) = committed.last().filter(|last| last.number > id.number) {
            let next = "take a new checkpoint with a higher number";
            return Err(Error::refused(tried(), format!("{last} is current"), next));
        }
        committed.retain(|other| *other != id);
        self.record(id, committed).tried(tried)
    }

    /// Makes a prepared checkpoint the current one, also if a later one was: the job goes on from it, since the later one cannot be
    /// restored. The later one is as if it had not been committed. A note of what is committed that does not hold is replaced.
    ///
    /// # Errors
    /// It is not prepared, or the disk fails: then the old or the new one is current.
    pub fn adopt(&self, id: CheckpointId) -> Result<()> {
        let tried = || self.tried("go back to", id);
        self.manifest(id)?;
        // A note that does not hold is replaced: what is complete was looked at anew.
        let mut committed = match self.committed() {
            Err(error) if error.kind == Kind::Damaged => Vec::new(),
            committed => committed?,
        };
        committed.retain(|other| *other != id && other.number <= id.number);
        self.record(id, committed).tried(tried)
    }

    /// Writes which checkpoints are committed: this one last.
    fn record(&self, id: CheckpointId, mut committed: Vec<CheckpointId>) -> std::io::Result<()> {
        committed.retain(|other| self.is_prepared(*other));
        committed.push(id);
        let excess = committed.len().saturating_sub(MAX_COMMITTED);
        committed.drain(..excess);
        let mut note: Vec<u8> = Vec::new();
        for id in &committed {
            note.extend(id.number.to_le_bytes());
            note.extend(id.attempt.to_le_bytes());
        }
        let code = self.keys.state_code(&note);
        note.extend(code);
        replace(self.disk, &self.folder, CURRENT, &note)
    }

    /// Which checkpoint is current. `None`: none was committed yet.
    ///
    /// # Errors
    /// The note of it cannot be read or does not hold.
    pub fn current(&self) -> Result<Option<CheckpointId>> {
        Ok(self.committed()?.last().copied())
    }

    /// Which were committed, the current one last. Those that were removed since may still be named.
    pub(crate) fn committed(&self) -> Result<Vec<CheckpointId>> {
        let tried = || format!("read which checkpoint of job {} is current", self.job);
        let most = MAX_COMMITTED * 12 + MAC_BYTES;
        let note = there(read_whole(self.disk, &self.folder, CURRENT, most));
        let Some(note) = note.tried(tried)? else {
            return Ok(Vec::new());
        };
        let damaged = || Error::damaged(tried(), "its note does not hold");
        let (signed, code) = note.split_last_chunk().ok_or_else(damaged)?;
        if !self.keys.state_holds(signed, code) {
            return Err(damaged());
        }
        let (ids, rest) = signed.as_chunks::<12>();
        if !rest.is_empty() {
            return Err(damaged());
        }
        Ok(ids.iter().map(id_of).collect())
    }

    /// Only what is surely gone is forgotten.
    fn is_prepared(&self, id: CheckpointId) -> bool {
        let look = self
            .folder(id)
            .and_then(|folder| self.disk.look(&folder, MANIFEST));
        !look.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    }

    /// The manifest of this node's part.
    ///
    /// # Errors
    /// It is missing, does not verify, or is that of another checkpoint.
    pub fn manifest(&self, id: CheckpointId) -> Result<Manifest> {
        self.read_manifest(id, MANIFEST)
    }

    /// The manifest of a neighbour, and its bytes.
    ///
    /// # Errors
    /// It is missing, does not verify, or is that of another checkpoint or node.
    pub fn copy(&self, id: CheckpointId, node: NodeIndex) -> Result<Manifest> {
        let manifest = self.read_manifest(id, &names::copy(node))?;
        if manifest.node != node {
            let tried = self.tried(format!("read the manifest of node {node} of"), id);
            let why = format!("it is that of node {}", manifest.node);
            return Err(Error::damaged(tried, why));
        }
        Ok(manifest)
    }

    fn read_manifest(&self, id: CheckpointId, name: &[u8]) -> Result<Manifest> {
        let tried = || self.tried(format!("read the file {} of", name.escape_ascii()), id);
        let folder = self.folder(id).tried(tried)?;
        let bytes = read_whole(self.disk, &folder, name, MAX_MANIFEST).tried(tried)?;
        let manifest = self.parse(&bytes, tried)?;
        if manifest.id != id {
            let why = format!("it is that of checkpoint {}", manifest.id);
            return Err(Error::damaged(tried(), why));
        }
        Ok(manifest)
    }

    pub(crate) fn parse(&self, bytes: &[u8], tried: impl Fn() -> String) -> Result<Manifest> {
        let holds = |signed: &[u8], code: &[u8; MAC_BYTES]| self.keys.manifest_holds(signed, code);
        let decrypt = |with: &Encryption, body: &mut [u8]| {
            let cipher = self.keys.manifest_cipher(with);
            cipher.map(|cipher| cipher.apply(0, body)).is_some()
        };
        let manifest =
            Authentic::verify(bytes, holds).and_then(|signed| signed.parse_with(decrypt));
        let manifest = manifest.map_err(|why| Error::damaged(tried(), why.to_string()))?;
        if (&manifest.job, manifest.uid) != (&self.job, self.uid) {
            let why = format!("it is of job {} of user {}", manifest.job, manifest.uid);
            return Err(Error::damaged(tried(), why));
        }
        Ok(manifest)
    }

    /// The folder of a checkpoint.
    pub(crate) fn folder(&self, id: CheckpointId) -> std::io::Result<D::Folder> {
        self.disk
            .open_folder(&self.folder, id.to_string().as_bytes())
    }

    pub(crate) fn tried(&self, what: impl fmt::Display, id: CheckpointId) -> String {
        format!("{what} checkpoint {id} of job {}", self.job)
    }

    /// Removes the names, those that are there.
    pub(crate) fn unlink(&self, folder: &D::Folder, names: &[Vec<u8>]) -> std::io::Result<()> {
        names
            .iter()
            .try_for_each(|name| remove_if_there(self.disk, folder, name))
    }

    /// Marks a checkpoint that has something here as one that a program could not load. The mark goes with the checkpoint. The first one
    /// stays.
    ///
    /// # Errors
    /// Nothing of the checkpoint is here, or the disk fails.
    pub fn refuse(&self, id: CheckpointId, refusal: &Refusal) -> Result<()> {
        if self.refusal(id).is_ok_and(|mark| mark.is_some()) {
            return Ok(());
        }
        let tried = || self.tried("mark as refused", id);
        let folder = self.folder(id).tried(tried)?;
        let mut mark = refusal.encode();
        let code = self.keys.refusal_code(id.to_string().as_bytes(), &mark);
        mark.extend(code);
        replace(self.disk, &folder, REFUSED, &mark).tried(tried)
    }

    /// Who could not load a checkpoint. `None`: nobody has said so.
    ///
    /// # Errors
    /// The mark does not hold, or cannot be read.
    pub fn refusal(&self, id: CheckpointId) -> Result<Option<Refusal>> {
        let tried = || self.tried("read who has refused", id);
        let Some(folder) = there(self.folder(id)).tried(tried)? else {
            return Ok(None);
        };
        let mark = there(read_whole(self.disk, &folder, REFUSED, MAX_MARK));
        let Some(mark) = mark.tried(tried)? else {
            return Ok(None);
        };
        let damaged = || Error::damaged(tried(), "the mark does not hold");
        let (signed, code) = mark.split_last_chunk().ok_or_else(damaged)?;
        let keys = &self.keys;
        if !keys.refusal_holds(id.to_string().as_bytes(), signed, code) {
            return Err(damaged());
        }
        Refusal::decode(signed).map(Some).ok_or_else(damaged)
    }
}

fn id_of(bytes: &[u8; 12]) -> CheckpointId {
    let (number, attempt) = bytes.split_at(4);
    CheckpointId {
        number: number
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
        attempt: attempt
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
    }
}
