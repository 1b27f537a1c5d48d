//! Everything that is kept of a checkpoint, read and held against its digests.

use std::fmt;

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::manifest::{ALIGNMENT, Extent, Manifest, Segment};

use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::error::{Result, Tried, shown};
use crate::job::JobStore;
use crate::names::{self, Named, SEGMENT};
use crate::segment::open_segment;
use crate::shard::{PIECE, ShardReader};
use crate::source::{Extents, LocalSource};

/// Something that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The path of the program's file, or the name of a file of the store.
    pub file: Vec<u8>,
    /// Which extent of it; `None`: all of it.
    pub extent: Option<usize>,
    /// Why, as a sentence.
    pub why: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.extent {
            Some(extent) => write!(f, "extent {extent} of {}: {}", shown(&self.file), self.why),
            None => write!(f, "{}: {}", shown(&self.file), self.why),
        }
    }
}

/// Reads all extents that a checkpoint needs, those in earlier segments too, and all that is kept for others: manifests and
/// shards. Empty: all of it holds.
///
/// # Errors
/// The folder cannot be read, or its own manifest does not hold.
pub fn verify<D: Disk>(job: &JobStore<'_, D>, id: CheckpointId) -> Result<Vec<Fault>> {
    let manifest = job.manifest(id)?;
    let mut faults = extents(job, &manifest, |_| true);
    let tried = || job.tried("verify", id);
    let folder = job.folder(id).tried(tried)?;
    let names = job.disk.list(&folder, usize::MAX).tried(tried)?;
    if !names.iter().any(|name| name == SEGMENT) {
        let why = "it is missing".into();
        faults.push(Fault {
            file: SEGMENT.to_vec(),
            extent: None,
            why,
        });
    }
    for name in names {
        let held = match names::read(&name) {
            Named::Copy(node) => match job.copy(id, node) {
                Ok(copy) if copy.node == manifest.node => Err("it is that of this node".into()),
                copy => copy.map(|_| ()).map_err(|error| error.to_string()),
            },
            Named::Shard(stripe, place) => {
                shard(job, id, stripe, place, manifest.set.chunk).map_err(|error| error.to_string())
            }
            Named::Segment => length(job, &manifest.segments[0]),
            Named::Unknown => Err("it does not belong there".into()),
            Named::Refused => job
                .refusal(id)
                .map(|_| ())
                .map_err(|error| error.to_string()),
            Named::Manifest | Named::Unfinished => Ok(()),
        };
        faults.extend(held.err().map(|why| Fault {
            file: name,
            extent: None,
            why,
        }));
    }
    Ok(faults)
}

/// Reads those extents of a manifest that lie in one of its segments, and looks at the segment's length. The manifest may be one that
/// is not here yet. Empty: the segment is here, and all of it that the manifest refers to holds.
pub fn segment_faults<D: Disk>(
    job: &JobStore<'_, D>,
    manifest: &Manifest,
    id: CheckpointId,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (index, segment) in manifest.segments.iter().enumerate() {
        if segment.id != id {
            continue;
        }
        let lies = |extent: &Extent| {
            let stored = extent.kind.stored();
            stored.is_some_and(|stored| usize::from(stored.segment) == index)
        };
        match length(job, segment) {
            Ok(()) => faults.extend(extents(job, manifest, lies)),
            Err(why) => faults.push(Fault {
                file: SEGMENT.to_vec(),
                extent: None,
                why,
            }),
        }
    }
    faults
}

fn extents<D: Disk>(
    job: &JobStore<'_, D>,
    manifest: &Manifest,
    wanted: impl Fn(&Extent) -> bool,
) -> Vec<Fault> {
    let mut source = LocalSource::new(job);
    let mut read = Extents::of(&job.keys, manifest);
    let mut faults = Vec::new();
    for file in &manifest.files {
        for (index, it) in file.extents.iter().enumerate() {
            if !wanted(it) {
                continue;
            }
            let what = || format!("read extent {index} of {}", shown(&file.path));
            // As it is kept: whoever has the key has written that, so what it becomes needs no look.
            let why = match read.kept(&mut source, it, &what) {
                Err(error) => Some(error.to_string()),
                // Parity is over whole pages, so what pads an extent matters for a rebuild.
                Ok(length) if length > 0 && !is_padded(&read.buffer, length) => {
                    Some("bytes after it in its segment are not zero".into())
                }
                Ok(_) => None,
            };
            faults.extend(why.map(|why| Fault {
                file: file.path.clone(),
                extent: Some(index),
                why,
            }));
        }
    }
    faults
}

fn is_padded(buffer: &Buffer, length: usize) -> bool {
    let padded = length.next_multiple_of(ALIGNMENT as usize);
    let padding = &buffer.as_slice()[length..padded];
    padding.iter().all(|byte| *byte == 0)
}

fn shard<D: Disk>(
    job: &JobStore<'_, D>,
    id: CheckpointId,
    stripe: u32,
    place: u16,
    length: u64,
) -> Result<()> {
    let shard = ShardReader::open(job, id, stripe, place, length)?;
    let mut buffer = vec![0; PIECE.min(usize::try_from(length).unwrap_or(PIECE))];
    (0..shard.pieces()).try_for_each(|index| shard.piece(index, &mut buffer).map(|_| ()))
}

/// Bytes after the last extent belong to nothing, and bytes that are missing there would be missed by a rebuild.
fn length<D: Disk>(job: &JobStore<'_, D>, segment: &Segment) -> std::result::Result<(), String> {
    let file = open_segment(job.disk, &job.folder, segment);
    let facts = file.and_then(|file| job.disk.facts(&file));
    let facts = facts.map_err(|error| error.to_string())?;
    if facts.size == segment.length {
        return Ok(());
    }
    Err(format!(
        "it has {} bytes, its manifest says {}",
        facts.size, segment.length
    ))
}
