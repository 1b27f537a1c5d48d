//! Extents into a segment.

use std::collections::HashMap;
use std::io;

use gpuos_checkpoint::ids::Digest;
use gpuos_checkpoint::manifest::{ALIGNMENT, Coded, Kind, Manifest, Segment, Stored};

use crate::append::Appender;
use crate::buffer::Buffer;
use crate::coding::{Form, Known, Looked};
use crate::disk::Disk;
use crate::names::SEGMENT;
use crate::pace::Pace;

/// Writes extents one after another, those only that are not there yet.
pub(crate) struct SegmentWriter<'a, D: Disk> {
    file: Appender<'a, D>,
    length: u64,
    /// What an earlier checkpoint has, with the index in `used` of those of its segments that are.
    known: &'a Known<'a>,
    used_as: Vec<Option<u16>>,
    /// What was written here.
    fresh: HashMap<(Digest, u32), Kind>,
    /// The own segment, and those that are referred to.
    used: Vec<Segment>,
}

impl<'a, D: Disk> SegmentWriter<'a, D> {
    /// Into a new file. Extents that are `known` are referred to.
    pub(crate) fn new(
        disk: &'a D,
        file: D::File,
        pace: Option<&'a Pace>,
        own: Segment,
        known: &'a Known<'a>,
    ) -> io::Result<SegmentWriter<'a, D>> {
        Ok(SegmentWriter {
            file: Appender::new(disk, file, pace)?,
            length: 0,
            used_as: vec![None; known.segments.len()],
            known,
            fresh: HashMap::new(),
            used: vec![own],
        })
    }

    /// Whether more waits for the disk than it writes at once.
    pub(crate) fn is_behind(&self) -> bool {
        self.file.is_behind()
    }

    /// Where the bytes are already. A manifest names only segments that it needs, so that no others are kept for it.
    fn find(&mut self, plain: Digest, length: u32) -> io::Result<Option<Kind>> {
        if let Some(kind) = self.fresh.get(&(plain, length)) {
            return Ok(Some(*kind));
        }
        let Some(mut kind) = self.known.find(plain, length).copied() else {
            return Ok(None);
        };
        let (Kind::Raw(stored) | Kind::Coded(Coded { stored, .. })) = &mut kind else {
            return Ok(None);
        };
        let there = usize::from(stored.segment);
        stored.segment = match self.used_as[there] {
            Some(index) => index,
            None => {
                let index = u16::try_from(self.used.len()).map_err(io::Error::other)?;
                self.used.push(self.known.segments[there]);
                self.used_as[there] = Some(index);
                index
            }
        };
        Ok(Some(kind))
    }

    /// Appends an extent, or finds it where it is already. Gives a buffer that is free, too.
    pub(crate) fn add(&mut self, extent: Looked) -> io::Result<(Kind, Buffer)> {
        let Looked {
            mut buffer,
            raw,
            plain,
            length,
            form,
        } = extent;
        let Some(plain) = plain else {
            return Ok((Kind::Zero, buffer));
        };
        let short = |length: usize| u32::try_from(length).map_err(io::Error::other);
        if let Some(kind) = self.find(plain, short(raw)?)? {
            return Ok((kind, buffer));
        }
        let padded = length.next_multiple_of(ALIGNMENT as usize);
        buffer.bytes()[length..padded].fill(0);
        let stored = |digest| {
            Ok::<Stored, io::Error>(Stored {
                segment: 0,
                offset: self.length,
                length: short(length)?,
                digest,
            })
        };
        let kind = match form {
            None => Kind::Raw(stored(plain)?),
            Some(Form {
                packing,
                nth,
                digest,
            }) => Kind::Coded(Coded {
                stored: stored(digest)?,
                plain,
                packing,
                nth,
            }),
        };
        let buffer = self.file.append_buffer(buffer, padded)?;
        self.length += padded as u64;
        self.fresh.insert((plain, short(raw)?), kind);
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

/// The longest extent of a manifest, in the form of the file, which is never shorter than what is kept.
pub(crate) fn longest(manifest: &Manifest) -> usize {
    let extents = manifest.files.iter().flat_map(|file| &file.extents);
    let there = extents.filter(|extent| extent.kind != Kind::Zero);
    there.map(|extent| extent.raw as usize).max().unwrap_or(0)
}
