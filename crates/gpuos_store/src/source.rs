//! Extents out of segments, wherever the segments lie: in this store, or with another node.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::manifest::{ALIGNMENT, Coded, Extent, Kind, Manifest, Segment};

use crate::buffer::Buffer;
use crate::cipher::Cipher;
use crate::coding::Unpacker;
use crate::disk::Disk;
use crate::error::{Error, Result, Tried};
use crate::job::JobStore;
use crate::key::JobKeys;
use crate::segment::{longest, open_segment};
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
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(free) => {
                let segment = Segment::new(segment, 0);
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

/// Reads extents of a manifest, one after another.
pub(crate) struct Extents<'a> {
    keys: &'a JobKeys,
    manifest: &'a Manifest,
    /// What was read last.
    pub(crate) buffer: Buffer,
    /// For what is decompressed; made when there is some.
    other: Option<(Unpacker, Buffer)>,
    ciphers: HashMap<u16, Cipher>,
}

impl<'a> Extents<'a> {
    /// Those of a manifest.
    pub(crate) fn of(keys: &'a JobKeys, manifest: &'a Manifest) -> Extents<'a> {
        Extents {
            keys,
            manifest,
            buffer: Buffer::new(longest(manifest)),
            other: None,
            ciphers: HashMap::new(),
        }
    }

    /// Has the buffer filled with an extent as it is kept, if it has the digest that the manifest says; after it, there is what
    /// pads it to whole pages, which no digest covers. Gives its length; 0: nothing is kept. `what` names the extent in a sentence.
    pub(crate) fn kept(
        &mut self,
        source: &mut dyn Source,
        extent: &Extent,
        what: &dyn Fn() -> String,
    ) -> Result<usize> {
        let Some(stored) = extent.kind.stored() else {
            return Ok(0);
        };
        let length = stored.length as usize;
        let padded = length.next_multiple_of(ALIGNMENT as usize);
        let segment = self.manifest.segments[usize::from(stored.segment)].id;
        let bytes = &mut self.buffer.bytes()[..padded];
        let read = source.read(segment, stored.offset, bytes);
        read.map_err(|error| error.within(what()))?;
        if !self.keys.extent_holds(&bytes[..length], &stored.digest) {
            let why = "its digest does not hold";
            return Err(Error::damaged(what(), why));
        }
        Ok(length)
    }

    /// The same in the form that it had in the file.
    pub(crate) fn plain(
        &mut self,
        source: &mut dyn Source,
        extent: &Extent,
        what: &dyn Fn() -> String,
    ) -> Result<usize> {
        let length = self.kept(source, extent, what)?;
        let Kind::Coded(coded) = &extent.kind else {
            return Ok(length);
        };
        if let Some(nth) = coded.nth {
            self.cipher(coded.stored.segment, what)?;
            if let Some(cipher) = self.ciphers.get(&coded.stored.segment) {
                cipher.apply(nth, &mut self.buffer.bytes()[..length]);
            }
        }
        let raw = extent.raw as usize;
        if coded.packing == Coded::ZSTD {
            self.unpack(length, raw).tried(what)?;
        }
        // Nobody else can have written it; that it came back as it was is seen all the same.
        if !self
            .keys
            .extent_holds(&self.buffer.as_slice()[..raw], &coded.plain)
        {
            let why = "what it becomes does not have the digest of the file's bytes";
            return Err(Error::damaged(what(), why));
        }
        Ok(raw)
    }

    fn cipher(&mut self, segment: u16, what: &dyn Fn() -> String) -> Result<()> {
        let Entry::Vacant(free) = self.ciphers.entry(segment) else {
            return Ok(());
        };
        let of = self.manifest.segments[usize::from(segment)];
        let Some(with) = of.encryption else {
            return Err(Error::damaged(what(), "its segment names no key"));
        };
        let Some(cipher) = self.keys.segment_cipher(of.id, &with) else {
            let why = format!(
                "it is encrypted with the key {}, which is not here",
                with.key
            );
            let next = "name the file of that key in encrypt-keys of [checkpoint] in gpuos.toml, and start gpuos_mover again";
            return Err(Error::refused(what(), why, next));
        };
        free.insert(cipher);
        Ok(())
    }

    fn unpack(&mut self, length: usize, raw: usize) -> io::Result<()> {
        let capacity = self.buffer.capacity();
        if self.other.is_none() {
            self.other = Some((Unpacker::new()?, Buffer::new(capacity)));
        }
        let Some((unpacker, room)) = &mut self.other else {
            return Ok(());
        };
        let bytes = &self.buffer.as_slice()[..length];
        unpacker.unpack(bytes, &mut room.bytes()[..raw])?;
        std::mem::swap(&mut self.buffer, room);
        Ok(())
    }
}
