//! In which form extents are kept: as they are, compressed, encrypted, or both.
//!
//! Compression comes first, as nothing can be saved of what is encrypted. What is in the segment then has a digest of its own, under the
//! job's key: it is the first thing that is looked at, and neither cipher nor decompressor ever sees bytes of somebody else.

use std::collections::HashMap;
use std::io;

use gpuos_checkpoint::ids::Digest;
use gpuos_checkpoint::manifest::{
    ALIGNMENT, Coded, Encryption, Kind, MAX_SEGMENTS, Manifest, Segment,
};
use zstd::bulk::{Compressor, Decompressor};

use crate::buffer::Buffer;
use crate::cipher::Cipher;
use crate::key::JobKeys;
use crate::sparse::is_sparse;

/// What is done to the extents that are written from now on. What is there already stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Coding {
    /// Whether they are compressed.
    pub compress: Compress,
    /// Whether they, and manifests, are encrypted. Extents of earlier checkpoints that are not, or with another key, are not referred to then.
    pub encrypt: bool,
}

/// When extents are compressed. One that would not become shorter by an eighth is kept as it is. One of which half is zero is compressed in any
/// case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compress {
    /// Never.
    #[default]
    No,
    /// Those that are read while more waits for the disk than it writes at once: processors would wait, too.
    Behind,
    /// All.
    Always,
}

/// Zstandard's fastest usual level. Higher ones are slower than disks, and find little more in the memory of programs.
const LEVEL: i32 = 1;

/// A long extent is compressed as a whole only if its first bytes become shorter: numbers of a training run hardly ever do.
const PROBE: usize = 128 << 10;

/// Extents of an earlier checkpoint that a new one can refer to.
pub(crate) struct Known<'m> {
    pub(crate) segments: &'m [Segment],
    places: HashMap<(Digest, u32), &'m Kind>,
}

impl<'m> Known<'m> {
    /// Nothing.
    pub(crate) fn none() -> Known<'m> {
        Known {
            segments: &[],
            places: HashMap::new(),
        }
    }

    /// What `manifest` has in segments that are `present`, and with `encryption` only what is encrypted with that key. All of it can be
    /// referred to: the own segment is one more.
    pub(crate) fn of(
        manifest: &'m Manifest,
        encryption: Option<&Encryption>,
        present: impl Fn(&Segment) -> bool,
    ) -> Known<'m> {
        let segments = &manifest.segments;
        let there: Vec<bool> = segments.iter().map(present).collect();
        let mut places = HashMap::new();
        for extent in manifest.files.iter().flat_map(|file| &file.extents) {
            let (Some(stored), Some(plain)) = (extent.kind.stored(), extent.kind.plain()) else {
                continue;
            };
            let segment = usize::from(stored.segment);
            let secret = match (&extent.kind, segments[segment].encryption) {
                (Kind::Coded(Coded { nth: Some(_), .. }), Some(by)) => Some(by.key),
                _ => None,
            };
            let fits = encryption.is_none_or(|with| secret == Some(with.key));
            if there[segment]
                && fits
                && segment < MAX_SEGMENTS - 1
                && let Ok(length) = u32::try_from(extent.raw)
            {
                places.insert((*plain, length), &extent.kind);
            }
        }
        Known { segments, places }
    }

    /// Where bytes of this digest and length are.
    pub(crate) fn find(&self, plain: Digest, length: u32) -> Option<&'m Kind> {
        self.places.get(&(plain, length)).copied()
    }
}

/// What becomes of the extents of one segment.
#[derive(Clone, Copy)]
pub(crate) struct Coder<'a> {
    pub(crate) keys: &'a JobKeys,
    pub(crate) known: &'a Known<'a>,
    /// `None`: nothing is encrypted.
    pub(crate) cipher: Option<&'a Cipher>,
}

/// Bytes that are to be looked at: an extent of the first `length` of a buffer.
pub(crate) struct Given {
    pub(crate) buffer: Buffer,
    pub(crate) length: usize,
    /// Whether they are to be compressed.
    pub(crate) pack: bool,
    /// A number that no other extent of the segment has.
    pub(crate) nth: u64,
}

/// What was found, and the buffer with what is to be written, if anything is.
pub(crate) struct Looked {
    pub(crate) buffer: Buffer,
    /// Bytes of the file.
    pub(crate) raw: usize,
    /// Their digest. `None`: they are all zero.
    pub(crate) plain: Option<Digest>,
    /// Bytes in the buffer.
    pub(crate) length: usize,
    /// The form that they have there. `None`: that of the file.
    pub(crate) form: Option<Form>,
}

/// Another form than that of the file.
pub(crate) struct Form {
    pub(crate) packing: u8,
    pub(crate) nth: Option<u64>,
    pub(crate) digest: Digest,
}

/// What a thread needs to look at extents, one after another.
pub(crate) struct Lane<'a> {
    coder: Coder<'a>,
    packer: Option<(Compressor<'static>, Buffer)>,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(coder: Coder<'a>) -> Lane<'a> {
        Lane {
            coder,
            packer: None,
        }
    }

    /// Looks at an extent, and brings it into the form in which it is kept unless it is there already.
    pub(crate) fn look(&mut self, given: Given) -> Looked {
        let Given {
            mut buffer,
            length: raw,
            pack,
            nth,
        } = given;
        let bytes = &buffer.as_slice()[..raw];
        let zero = bytes.iter().all(|byte| *byte == 0);
        let plain = (!zero).then(|| self.coder.keys.extent(bytes));
        let known = |plain| {
            let length = u32::try_from(raw).unwrap_or(u32::MAX);
            self.coder.known.find(plain, length).is_some()
        };
        if plain.is_none_or(known) {
            return Looked {
                buffer,
                raw,
                plain,
                length: raw,
                form: None,
            };
        }
        let sparse = is_sparse(&buffer.as_slice()[..raw]);
        let packed = if pack || sparse {
            self.pack(&mut buffer, raw, sparse)
        } else {
            None
        };
        let length = packed.unwrap_or(raw);
        let bytes = &mut buffer.bytes()[..length];
        if let Some(cipher) = self.coder.cipher {
            cipher.apply(nth, bytes);
        }
        let coded = packed.is_some() || self.coder.cipher.is_some();
        let form = coded.then(|| Form {
            packing: packed.map_or(Coded::AS_IT_IS, |_| Coded::ZSTD),
            nth: self.coder.cipher.map(|_| nth),
            digest: self.coder.keys.extent(bytes),
        });
        Looked {
            buffer,
            raw,
            plain,
            length,
            form,
        }
    }

    /// Compresses the first `raw` bytes. `None`: they stay as they are, as they would not be shorter by an eighth. Of those that are `sparse` that is
    /// known to be worth it.
    fn pack(&mut self, buffer: &mut Buffer, raw: usize, sparse: bool) -> Option<usize> {
        let most = useful(raw);
        if most == 0 {
            return None;
        }
        if self.packer.is_none() {
            // Without memory for it nothing is compressed, and nothing else is wrong.
            let compressor = Compressor::new(LEVEL).ok()?;
            self.packer = Some((compressor, Buffer::new(buffer.capacity())));
        }
        let (compressor, room) = self.packer.as_mut()?;
        let bytes = &buffer.as_slice()[..raw];
        let mut shorten = |bytes: &[u8], most: usize| {
            // What does not fit is an error, and found before all of it is looked at.
            compressor
                .compress_to_buffer(bytes, &mut room.bytes()[..most])
                .ok()
        };
        if raw > 4 * PROBE && !sparse {
            shorten(&bytes[..PROBE], PROBE - PROBE / 8)?;
        }
        let length = shorten(bytes, most)?;
        std::mem::swap(buffer, room);
        Some(length)
    }
}

/// Bytes that so many may have when they are compressed: an eighth less, in whole pages.
fn useful(raw: usize) -> usize {
    let page = ALIGNMENT as usize;
    let pages = raw.div_ceil(page);
    (pages - pages.div_ceil(8)) * page
}

/// Brings compressed bytes back.
pub(crate) struct Unpacker(Decompressor<'static>);

impl Unpacker {
    pub(crate) fn new() -> io::Result<Unpacker> {
        Decompressor::new().map(Unpacker)
    }

    /// Into exactly this room: more is not written, whatever the bytes say.
    ///
    /// # Errors
    /// They are not what was compressed from so many.
    pub(crate) fn unpack(&mut self, bytes: &[u8], room: &mut [u8]) -> io::Result<()> {
        let length = room.len();
        match self.0.decompress_to_buffer(bytes, room)? {
            done if done == length => Ok(()),
            done => Err(io::Error::other(format!(
                "they are {done} bytes, not {length}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_has_to_be_saved_in_whole_pages() {
        assert_eq!([0, 1, 4096].map(useful), [0; 3]);
        assert_eq!(useful(4097), 4096);
        assert_eq!(useful(8 * 4096), 7 * 4096);
        assert_eq!(useful(9 * 4096), 7 * 4096);
        assert_eq!(useful(2 << 20), 448 * 4096);
    }

    /// Even with a digest that holds: a frame says how much it becomes, and gets no more room than the manifest says.
    #[test]
    fn a_frame_that_becomes_more_or_less_than_is_said_is_refused() {
        let mut packer = Compressor::new(LEVEL).unwrap();
        let bomb = packer.compress(&vec![0; 16 << 20]).unwrap();
        assert!(bomb.len() < 4096);
        let mut unpacker = Unpacker::new().unwrap();
        let mut room = vec![1; 8192];
        unpacker.unpack(&bomb, &mut room[..4096]).unwrap_err();
        assert!(room[4096..].iter().all(|byte| *byte == 1));
        let short = packer.compress(&[5; 4095]).unwrap();
        let said = unpacker.unpack(&short, &mut room[..4096]).unwrap_err();
        assert_eq!(said.to_string(), "they are 4095 bytes, not 4096");
        unpacker.unpack(&short, &mut room[..4095]).unwrap();
        assert_eq!(room[..4095], [5; 4095]);
        // Not a frame, and two of them.
        unpacker.unpack(b"no frame at all", &mut room).unwrap_err();
    }
}
