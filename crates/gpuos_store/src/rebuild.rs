//! What encoding and a rebuild take of a store: the bytes of segments as they lie, segments that are made again piece by piece, and
//! manifests in the bytes in which they were sealed.
//!
//! Bytes of a segment are handed out unverified here, since parity is made before there is a manifest: whoever makes a segment
//! again holds it against its manifest with [`segment_faults`](crate::verify::segment_faults) before the part counts.

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::{MAX_MANIFEST, Manifest, Segment};

use crate::append::Appender;
use crate::disk::Disk;
use crate::error::{Error, Result, Tried};
use crate::job::JobStore;
use crate::names::{self, MANIFEST, SEGMENT, unfinished};
use crate::segment::open_segment;
use crate::small::{make_or_open, read_along, read_whole, remove_if_there, replace};

impl<D: Disk> JobStore<'_, D> {
    /// Bytes of this node's segment from `offset` on; what is beyond its end is zero, as chunks are padded.
    ///
    /// # Errors
    /// The segment is not here, or the disk fails.
    pub fn segment_bytes(&self, id: CheckpointId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let tried = || self.tried("read the segment of", id);
        let segment = Segment::new(id, 0);
        let file = open_segment(self.disk, &self.folder, &segment).tried(tried)?;
        self.paced(buffer.len());
        let read = read_along(self.disk, &file, buffer, offset).tried(tried)?;
        buffer[read..].fill(0);
        Ok(())
    }

    /// The bytes of a manifest that holds: this node's own, or the copy of that of another node.
    ///
    /// # Errors
    /// It is missing, does not verify, or is that of another checkpoint or node.
    pub fn manifest_bytes(&self, id: CheckpointId, of: Option<NodeIndex>) -> Result<Vec<u8>> {
        let tried = || self.tried("read a manifest of", id);
        let folder = self.folder(id).tried(tried)?;
        let name = of.map_or_else(|| MANIFEST.to_vec(), names::copy);
        let bytes = read_whole(self.disk, &folder, &name, MAX_MANIFEST).tried(tried)?;
        let manifest = self.opened(id, &bytes)?;
        match of {
            Some(node) if node != manifest.node => {
                let why = format!("it is that of node {}", manifest.node);
                Err(Error::damaged(tried(), why))
            }
            _ => Ok(bytes),
        }
    }

    /// Reads a manifest of this job that came from elsewhere.
    ///
    /// # Errors
    /// It does not verify or is of another checkpoint.
    pub fn opened(&self, id: CheckpointId, bytes: &[u8]) -> Result<Manifest> {
        let tried = || self.tried("read a manifest of", id);
        let manifest = self.parse(bytes, tried)?;
        if manifest.id != id {
            let why = format!("it is of checkpoint {}", manifest.id);
            return Err(Error::damaged(tried(), why));
        }
        Ok(manifest)
    }

    /// Makes a part that was made again count: writes its manifest, as a neighbour kept it, after all its data.
    ///
    /// # Errors
    /// It does not verify, is of another checkpoint or node, or the disk fails.
    pub fn put_manifest(&self, id: CheckpointId, node: NodeIndex, bytes: &[u8]) -> Result<()> {
        let tried = || self.tried("write the manifest of", id);
        let manifest = self.opened(id, bytes)?;
        if manifest.node != node {
            let why = format!("it is that of node {}", manifest.node);
            return Err(Error::damaged(tried(), why));
        }
        let folder = self.folder(id).tried(tried)?;
        replace(self.disk, &folder, MANIFEST, bytes).tried(tried)?;
        // A disk that was a neighbour's has it as a copy too, and two manifests of one node count as damage.
        remove_if_there(self.disk, &folder, &names::copy(node)).tried(tried)
    }
}

/// Writes a segment again from its first byte to its last.
pub struct SegmentMaker<'a, D: Disk> {
    disk: &'a D,
    folder: D::Folder,
    file: Appender<'a, D>,
    length: u64,
    done: u64,
    tried: String,
}

impl<'a, D: Disk> SegmentMaker<'a, D> {
    /// Begins a segment of `length` bytes; it has its name once it is finished, and replaces a damaged one then.
    ///
    /// # Errors
    /// The disk fails.
    pub fn create(
        job: &JobStore<'a, D>,
        id: CheckpointId,
        length: u64,
    ) -> Result<SegmentMaker<'a, D>> {
        let what = job.tried("write the segment of", id);
        let tried = || what.clone();
        let name = id.to_string();
        let folder = make_or_open(job.disk, &job.folder, name.as_bytes()).tried(tried)?;
        let name = unfinished(SEGMENT);
        remove_if_there(job.disk, &folder, &name).tried(tried)?;
        let file = job.disk.create(&folder, &name).tried(tried)?;
        let file = Appender::new(job.disk, file, job.pace).tried(tried)?;
        Ok(SegmentMaker {
            disk: job.disk,
            folder,
            file,
            length,
            done: 0,
            tried: what,
        })
    }

    /// Appends bytes. What is beyond the segment's end is the padding of its last chunk, and is not written.
    ///
    /// # Errors
    /// The disk fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let left = usize::try_from(self.length - self.done).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(left)];
        self.file.append(bytes).tried(|| self.tried.clone())?;
        self.done += bytes.len() as u64;
        Ok(())
    }

    /// Has all of it on the disk under its name.
    ///
    /// # Errors
    /// Bytes are missing, or the disk fails.
    pub fn finish(self) -> Result<()> {
        let tried = || self.tried.clone();
        if self.done != self.length {
            let why = format!("it has {} of {} bytes", self.done, self.length);
            return Err(Error::refused(
                tried(),
                why,
                "have the rest made, then finish it",
            ));
        }
        self.file.finish().tried(tried)?;
        let renamed = self
            .disk
            .rename(&self.folder, &unfinished(SEGMENT), SEGMENT, true);
        renamed.tried(tried)?;
        self.disk.sync_folder(&self.folder).tried(tried)
    }
}
