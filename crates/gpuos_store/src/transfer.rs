//! A part of a checkpoint, copied between two stores of the same job: a node's own, and the one on a file system of all nodes or that of
//! another node.
//!
//! What is copied is what the node itself keeps of it: segments and manifests, no parity and no manifests of others. The manifests of
//! earlier checkpoints in whose segments files lie come along, as a segment counts only beside its own manifest. The part's own
//! manifest comes last, so a copy that was cut short is none, and the next one goes on where it ended.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::{Manifest, Segment};

use crate::disk::Disk;
use crate::error::{Error, Kind, Result, Tried};
use crate::job::JobStore;
use crate::names::SEGMENT;
use crate::rebuild::SegmentMaker;
use crate::segment::open_segment;
use crate::small::{read_full, remove_if_there};
use crate::source::Source;
use crate::verify::segment_faults;

/// Bytes that are moved at a time.
const PIECE: usize = 1 << 20;

/// When a segment that is there already is taken as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// If it has its length and a manifest there refers to it: it was read and verified when it was copied.
    Length,
    /// If all of it verifies now.
    Content,
}

/// Where a part comes from. Nothing of it is trusted: manifests are held against their codes, and segments against their digests.
pub trait PartSource: Source {
    /// The bytes of the manifest that the part's node wrote of a checkpoint.
    ///
    /// # Errors
    /// It is not there, or does not come.
    fn manifest(&mut self, id: CheckpointId) -> Result<Vec<u8>>;

    /// Whether the segment is there; from then on it can be read until the source is dropped, as far as the source can see to that.
    ///
    /// # Errors
    /// It is not, or cannot be read.
    fn has(&mut self, segment: &Segment) -> Result<()>;
}

/// The part in a store. Its segments are kept open, so that a removal meanwhile does not matter.
struct Stored<'a, 'b, D: Disk> {
    job: &'b JobStore<'a, D>,
    open: BTreeMap<CheckpointId, D::File>,
}

impl<D: Disk> Source for Stored<'_, '_, D> {
    fn read(&mut self, id: CheckpointId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let tried = || self.job.tried("read the segment of", id);
        let Some(file) = self.open.get(&id) else {
            return Err(Error::damaged(tried(), "it is not open"));
        };
        let read = read_full(self.job.disk, file, buffer, offset).tried(tried)?;
        if read < buffer.len() {
            let why = format!("it ends after {} bytes", offset + read as u64);
            return Err(Error::damaged(tried(), why));
        }
        Ok(())
    }
}

impl<D: Disk> PartSource for Stored<'_, '_, D> {
    fn manifest(&mut self, id: CheckpointId) -> Result<Vec<u8>> {
        self.job.manifest_bytes(id, None)
    }

    fn has(&mut self, segment: &Segment) -> Result<()> {
        let file = open_segment(self.job.disk, &self.job.folder, segment);
        let file = file.tried(|| self.job.tried("read the segment of", segment.id))?;
        self.open.insert(segment.id, file);
        Ok(())
    }
}

/// Copies node `node`'s part of a checkpoint. `pace` is told how many bytes follow before they are read, waits as long as it likes,
/// and an error of it ends the copy. Gives the bytes of segments that were written.
///
/// # Errors
/// The part is not there, is that of another node, or does not verify; a disk fails; or `pace` says so. What counted before counts
/// afterwards.
pub fn copy_part<A: Disk, B: Disk>(
    from: &JobStore<'_, A>,
    to: &JobStore<'_, B>,
    id: CheckpointId,
    node: NodeIndex,
    trust: Trust,
    pace: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<u64> {
    if (&from.job, from.uid) != (&to.job, to.uid) {
        let tried = from.tried(format!("copy the part of node {node} of"), id);
        let next = "tell the developers of gpuos: a part stays with its job";
        return Err(Error::refused(tried, "it is of another job", next));
    }
    let mut stored = Stored {
        job: from,
        open: BTreeMap::new(),
    };
    take_part(&mut stored, to, (id, node), trust, pace)
}

/// The same from wherever the part is.
///
/// # Errors
/// As there.
pub fn take_part<B: Disk>(
    from: &mut dyn PartSource,
    to: &JobStore<'_, B>,
    (id, node): (CheckpointId, NodeIndex),
    trust: Trust,
    pace: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<u64> {
    let tried = || to.tried(format!("copy the part of node {node} of"), id);
    let manifests = manifests(from, to, id)?;
    let own = &manifests[&id].0;
    if own.node != node {
        let why = format!("it is that of node {}", own.node);
        return Err(Error::damaged(tried(), why));
    }
    let there = segments(from, &manifests, id)?;
    let known = match trust {
        Trust::Length => referred(to),
        Trust::Content => BTreeSet::new(),
    };
    let mut written = 0;
    for segment in &there {
        let users = users(&manifests, id, segment.id);
        let is_here = match known.contains(&segment.id) {
            true => length(to, segment) == Some(segment.length),
            false => users.iter().all(|user| holds(to, user, segment.id)),
        };
        if is_here {
            continue;
        }
        copy_segment(from, to, segment, pace)?;
        for user in users {
            let faults = segment_faults(to, user, segment.id);
            if let Some(fault) = faults.first() {
                remove_segment(to, segment.id);
                return Err(Error::damaged(tried(), fault.to_string()));
            }
        }
        written += segment.length;
    }
    let copied: BTreeSet<CheckpointId> = there.iter().map(|segment| segment.id).collect();
    for (earlier, (_, bytes)) in manifests.iter().filter(|(other, _)| **other != id) {
        let there = to.manifest(*earlier).is_ok_and(|it| it.node == node);
        if copied.contains(earlier) && !there {
            to.put_manifest(*earlier, node, bytes)?;
        }
    }
    to.put_manifest(id, node, &manifests[&id].1)?;
    Ok(written)
}

type Manifests = BTreeMap<CheckpointId, (Manifest, Vec<u8>)>;

/// The manifest of a checkpoint, and those of all that it refers to, directly or by others, as far as they are here.
fn manifests<B: Disk>(
    from: &mut dyn PartSource,
    to: &JobStore<'_, B>,
    id: CheckpointId,
) -> Result<Manifests> {
    let mut all = Manifests::new();
    let mut open = vec![id];
    while let Some(next) = open.pop() {
        let bytes = match from.manifest(next) {
            Err(_) if next != id => continue,
            bytes => bytes?,
        };
        let manifest = to.opened(next, &bytes)?;
        let node = all.get(&id).map(|(own, _): &(Manifest, _)| own.node);
        if node.is_some_and(|node| node != manifest.node) {
            continue;
        }
        let earlier = manifest.segments.iter().map(|segment| segment.id);
        open.extend(earlier.filter(|other| *other != next && !all.contains_key(other)));
        all.insert(next, (manifest, bytes));
    }
    Ok(all)
}

/// The segments of all manifests that are there. Those that the part itself needs have to be.
fn segments(
    from: &mut dyn PartSource,
    manifests: &Manifests,
    id: CheckpointId,
) -> Result<Vec<Segment>> {
    let needed = &manifests[&id].0.segments;
    let all = manifests
        .values()
        .flat_map(|(manifest, _)| &manifest.segments);
    let all: BTreeMap<CheckpointId, Segment> = all.map(|it| (it.id, *it)).collect();
    let mut there = Vec::new();
    for segment in all.into_values() {
        match from.has(&segment) {
            Ok(()) => there.push(segment),
            Err(_) if !needed.contains(&segment) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(there)
}

/// The manifests that say what a segment has: the part's own, if it refers to it, and that of the segment's checkpoint.
fn users(manifests: &Manifests, id: CheckpointId, segment: CheckpointId) -> Vec<&Manifest> {
    let own = manifests.get(&id).map(|(manifest, _)| manifest);
    let own = own.filter(|own| own.segments.iter().any(|it| it.id == segment));
    let of = manifests.get(&segment).filter(|_| segment != id);
    let users: Vec<&Manifest> = own.into_iter().chain(of.map(|of| &of.0)).collect();
    match users.is_empty() {
        false => users,
        // Only an earlier checkpoint refers to it.
        true => manifests.values().map(|(manifest, _)| manifest).collect(),
    }
}

/// Segments that manifests there refer to.
fn referred<B: Disk>(to: &JobStore<'_, B>) -> BTreeSet<CheckpointId> {
    let ids = to.ids().unwrap_or_default();
    let manifests = ids.into_iter().filter_map(|id| to.manifest(id).ok());
    manifests
        .flat_map(|manifest| manifest.segments)
        .map(|segment| segment.id)
        .collect()
}

fn length<B: Disk>(to: &JobStore<'_, B>, segment: &Segment) -> Option<u64> {
    let file = open_segment(to.disk, &to.folder, segment).ok()?;
    Some(to.disk.facts(&file).ok()?.size)
}

fn holds<B: Disk>(to: &JobStore<'_, B>, user: &Manifest, segment: CheckpointId) -> bool {
    let found = user.segments.iter().find(|it| it.id == segment);
    found.is_some_and(|it| length(to, it) == Some(it.length))
        && segment_faults(to, user, segment).is_empty()
}

fn copy_segment<B: Disk>(
    from: &mut dyn PartSource,
    to: &JobStore<'_, B>,
    segment: &Segment,
    pace: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let mut maker = SegmentMaker::create(to, segment.id, segment.length)?;
    let mut buffer = vec![0; PIECE];
    let mut done = 0;
    while done < segment.length {
        let left = usize::try_from(segment.length - done).unwrap_or(PIECE);
        let piece = &mut buffer[..left.min(PIECE)];
        pace(piece.len() as u64)?;
        from.read(segment.id, done, piece)?;
        maker.write(piece)?;
        done += piece.len() as u64;
    }
    maker.finish()
}

/// What did not verify is not to be taken for something that did.
fn remove_segment<B: Disk>(to: &JobStore<'_, B>, id: CheckpointId) {
    if let Ok(folder) = to.folder(id) {
        let _ = remove_if_there(to.disk, &folder, SEGMENT);
    }
}

/// Whether a part is there as far as can be told without reading its data: its manifest holds, is that of the node, and all its
/// segments have their lengths.
pub(crate) fn looks_whole<B: Disk>(
    part: &JobStore<'_, B>,
    id: CheckpointId,
    node: NodeIndex,
) -> Result<Option<Manifest>> {
    let manifest = match part.manifest(id) {
        Err(error) if matches!(error.kind, Kind::Missing | Kind::Damaged) => return Ok(None),
        manifest => manifest?,
    };
    let whole = manifest
        .segments
        .iter()
        .all(|segment| length(part, segment) == Some(segment.length));
    Ok((whole && manifest.node == node).then_some(manifest))
}
