//! Extents into a segment.

use std::collections::HashMap;
use std::io;

use gpuos_checkpoint::ids::Digest;
use gpuos_checkpoint::manifest::{ALIGNMENT, Kind, MAX_SEGMENTS, Manifest, Segment, Stored};

use crate::append::Appender;
use crate::buffer::Buffer;
use crate::digests::Looked;
use crate::disk::Disk;
use crate::names::SEGMENT;
use crate::pace::Pace;

/// Writes extents one after another, those only that are not there yet.
pub(crate) struct SegmentWriter<'a, D: Disk> {
    file: Appender<'a, D>,
    length: u64,
    /// Where the bytes of a digest are: an index in `all`, and the offset there.
    known: HashMap<(Digest, u32), (usize, u64)>,
    /// The own segment and all that could be referred to, with the index in `used` of those that are.
    all: Vec<(Segment, Option<u16>)>,
    used: Vec<Segment>,
}

impl<'a, D: Disk> SegmentWriter<'a, D> {
    /// Into a new file. Extents of `previous` are referred to where they are equal, and `present` says that the segment is there.
    pub(crate) fn new(
        disk: &'a D,
        file: D::File,
        pace: Option<&'a Pace>,
        own: Segment,
        previous: Option<&Manifest>,
        present: impl Fn(&Segment) -> bool,
    ) -> io::Result<SegmentWriter<'a, D>> {
        let mut writer = SegmentWriter {
            file: Appender::new(disk, file, pace)?,
            length: 0,
            known: HashMap::new(),
            all: vec![(own, Some(0))],
            used: vec![own],
        };
        if let Some(previous) = previous {
            writer.know(previous, present);
        }
        Ok(writer)
    }

    fn know(&mut self, previous: &Manifest, present: impl Fn(&Segment) -> bool) {
        let there: Vec<bool> = previous.segments.iter().map(present).collect();
        let first = self.all.len();
        let unused = previous.segments.iter().map(|segment| (*segment, None));
        self.all.extend(unused);
        for extent in previous.files.iter().flat_map(|file| &file.extents) {
            if let Kind::Raw(stored) = extent.kind
                && there[usize::from(stored.segment)]
            {
                let place = (first + usize::from(stored.segment), stored.offset);
                self.known.insert((stored.digest, stored.length), place);
            }
        }
    }

    /// Where the bytes are already. A manifest names only segments that it needs, so that no others are kept for it.
    fn find(&mut self, digest: Digest, length: u32) -> Option<(u16, u64)> {
        let (index, offset) = *self.known.get(&(digest, length))?;
        let (segment, used) = &mut self.all[index];
        if used.is_none() && self.used.len() < MAX_SEGMENTS {
            *used = u16::try_from(self.used.len()).ok();
            self.used.push(*segment);
        }
        used.map(|index| (index, offset))
    }

    /// Appends an extent, or finds it where it is already. Gives a buffer that is free, too.
    pub(crate) fn add(&mut self, extent: Looked) -> io::Result<(Kind, Buffer)> {
        let Looked {
            mut buffer,
            length,
            digest,
        } = extent;
        let Some(digest) = digest else {
            return Ok((Kind::Zero, buffer));
        };
        let short = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (segment, offset) = match self.find(digest, short) {
            Some(place) => place,
            None => {
                let padded = length.next_multiple_of(ALIGNMENT as usize);
                buffer.bytes()[length..padded].fill(0);
                let offset = self.length;
                buffer = self.file.append_buffer(buffer, padded)?;
                self.length += padded as u64;
                self.known.insert((digest, short), (0, offset));
                (0, offset)
            }
        };
        let kind = Kind::Raw(Stored {
            segment,
            offset,
            length: short,
            digest,
        });
        Ok((kind, buffer))
    }

    /// Bytes that were written so far.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Waits for the disk, and gives the list of segments.
    pub(crate) fn finish(mut self) -> io::Result<Vec<Segment>> {
        self.file.finish()?;
        self.used[0].length = self.length;
        Ok(self.used)
    }
}

/// Opens the segment of a checkpoint beneath the folder of its job.
pub(crate) fn open_segment<D: Disk>(
    disk: &D,
    job: &D::Folder,
    segment: &Segment,
) -> io::Result<D::File> {
    let folder = disk.open_folder(job, segment.id.to_string().as_bytes())?;
    disk.open(&folder, SEGMENT)
}

/// The longest stored extent of a manifest, for a buffer.
pub(crate) fn longest(manifest: &Manifest) -> usize {
    let extents = manifest.files.iter().flat_map(|file| &file.extents);
    let lengths = extents.map(|extent| match &extent.kind {
        Kind::Raw(stored) => stored.length as usize,
        Kind::Zero => 0,
    });
    lengths.max().unwrap_or(0)
}
