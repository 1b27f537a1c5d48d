//! Extents out of segments, wherever the segments lie: in this store, or with another node.

use std::collections::HashMap;

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::manifest::{ALIGNMENT, Extent, Kind, Manifest, Segment};

use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::error::{Error, Result, Tried};
use crate::job::JobStore;
use crate::key::JobKeys;
use crate::segment::open_segment;
use crate::small::read_along;

/// Where bytes of segments come from. They need not be trusted: each extent is held against its digest before it is used.
pub trait Source {
    /// Fills the buffer with the bytes of a checkpoint's segment from `offset` on. It has whole pages, up to 64 MiB.
    ///
    /// # Errors
    /// The segment cannot be had, or ends before the buffer is full.
    fn read(&mut self, segment: CheckpointId, offset: u64, buffer: &mut [u8]) -> Result<()>;
}

/// The segments in this store.
pub struct LocalSource<'a, D: Disk> {
    job: &'a JobStore<'a, D>,
    open: HashMap<CheckpointId, D::File>,
}

/// Segments that are open at once at most.
const OPEN: usize = 32;

impl<'a, D: Disk> LocalSource<'a, D> {
    /// Those of a job.
    pub fn new(job: &'a JobStore<'a, D>) -> LocalSource<'a, D> {
        LocalSource {
            job,
            open: HashMap::new(),
        }
    }
}

impl<D: Disk> Source for LocalSource<'_, D> {
    fn read(&mut self, segment: CheckpointId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let job = self.job;
        let tried = || job.tried("read the segment of", segment);
        if self.open.len() >= OPEN {
            self.open.clear();
        }
        let file = match self.open.entry(segment) {
            std::collections::hash_map::Entry::Occupied(open) => open.into_mut(),
            std::collections::hash_map::Entry::Vacant(free) => {
                let segment = Segment {
                    id: segment,
                    length: 0,
                };
                free.insert(open_segment(job.disk, &job.folder, &segment).tried(tried)?)
            }
        };
        job.paced(buffer.len());
        let read = read_along(job.disk, file, buffer, offset).tried(tried)?;
        if read < buffer.len() {
            let why = format!("it ends {} bytes early", buffer.len() - read);
            return Err(Error::damaged(tried(), why));
        }
        Ok(())
    }
}

/// The bytes of an extent that is stored, if they have the digest that the manifest says; after them, the buffer has what pads them
/// to whole pages, which no digest covers. `what` names the extent in a sentence.
pub(crate) fn extent<'b>(
    source: &mut dyn Source,
    keys: &JobKeys,
    manifest: &Manifest,
    extent: &Extent,
    buffer: &'b mut Buffer,
    what: &dyn Fn() -> String,
) -> Result<&'b [u8]> {
    let Kind::Raw(stored) = &extent.kind else {
        return Ok(&[]);
    };
    let length = stored.length as usize;
    let padded = length.next_multiple_of(ALIGNMENT as usize);
    let segment = manifest.segments[usize::from(stored.segment)].id;
    let bytes = &mut buffer.bytes()[..padded];
    let read = source.read(segment, stored.offset, bytes);
    read.map_err(|error| error.within(what()))?;
    let bytes = &bytes[..length];
    if !keys.extent_holds(bytes, &stored.digest) {
        let why = "its digest does not hold";
        return Err(Error::damaged(what(), why));
    }
    Ok(bytes)
}
