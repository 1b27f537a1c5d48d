//! The parts of a manifest.

use std::fmt;

use gpuos_core::job::JobId;
use serde::{Deserialize, Serialize};

use crate::ids::{CheckpointId, Digest, NodeIndex};

/// All that one node keeps of one checkpoint, written after the data that it describes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Which checkpoint, and which attempt at it.
    pub id: CheckpointId,
    /// Whose checkpoint it is. As text: the form of a [`JobId`] in JSON needs a format that describes itself.
    #[serde(with = "job_text")]
    pub job: JobId,
    /// The user that owns the job and every file of the checkpoint.
    pub uid: u32,
    /// The node whose files these are.
    pub node: NodeIndex,
    /// Nodes of the job.
    pub nodes: u16,
    /// When it was taken, in seconds since 1970, UTC.
    pub time: u64,
    /// The nodes that keep redundancy for each other, with this one.
    pub set: NodeSet,
    /// Where extents lie: this checkpoint's own segment first, then those of earlier checkpoints of the same node.
    pub segments: Vec<Segment>,
    /// Folders beneath the program's folder. Those that only lead to a file need not be here.
    pub folders: Vec<FolderEntry>,
    /// Regular files.
    pub files: Vec<FileEntry>,
    /// Totals over `files`.
    pub counts: Counts,
}

/// The set of a node, as the shards of this checkpoint were cut.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeSet {
    /// Its nodes in the order in which stripes rotate. One alone: there is no redundancy.
    pub members: Vec<NodeIndex>,
    /// Parity shards of a stripe: so many nodes can be lost.
    pub parity: u16,
    /// Bytes of a chunk, a multiple of [`super::ALIGNMENT`]; 0 without parity.
    pub chunk: u64,
}

/// A file of extents, one after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Segment {
    /// The checkpoint that wrote it.
    pub id: CheckpointId,
    /// Bytes, a multiple of [`super::ALIGNMENT`].
    pub length: u64,
    /// How extents in it are encrypted, those that are. Not in the place of a manifest that segments of the first version have: the
    /// second one has it behind all that was there before.
    #[serde(skip)]
    pub encryption: Option<Encryption>,
}

impl Segment {
    /// One in which nothing is encrypted.
    pub fn new(id: CheckpointId, length: u64) -> Segment {
        Segment {
            id,
            length,
            encryption: None,
        }
    }
}

/// Under which key something is encrypted. None of it is secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Encryption {
    /// How: [`Encryption::AES_256_CTR`]; no other is known.
    pub cipher: u8,
    /// Which of the site's keys it was made of.
    pub key: KeyId,
    /// Drawn at random for each segment and each manifest, and a part of what its key is derived of: no two have the same key, also
    /// not two attempts at one checkpoint.
    pub salt: [u8; 16],
}

impl Encryption {
    /// AES with keys of 256 bits in counter mode. The first eight bytes of the counter are the number of the extent, 0 for a manifest.
    pub const AES_256_CTR: u8 = 1;
}

/// Tells keys of a site apart, and says nothing about them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct KeyId(pub [u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A folder of the program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FolderEntry {
    /// Relative to the program's folder, parts separated by `/`: bytes, since names on Linux need not be UTF-8.
    pub path: Vec<u8>,
    /// Permission bits, without setuid, setgid and sticky.
    pub mode: u16,
}

/// A regular file of the program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileEntry {
    /// As [`FolderEntry::path`].
    pub path: Vec<u8>,
    /// Permission bits, without setuid, setgid and sticky.
    pub mode: u16,
    /// When it was last written.
    pub mtime: Time,
    /// Bytes.
    pub size: u64,
    /// From its first byte to its last, without gaps.
    pub extents: Vec<Extent>,
}

/// A time as file systems have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Time {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds after that, below 10^9.
    pub nanos: u32,
}

/// A run of bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// Bytes of the file, at least 1.
    pub raw: u64,
    /// Where they are.
    pub kind: Kind,
}

/// How an extent is kept. A further form would be a further variant; one that a release does not know is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// All bytes are zero, and none is stored: a hole after a restore.
    Zero,
    /// As they are.
    Raw(Stored),
    /// Compressed, or encrypted, or both in this order.
    Coded(Coded),
}

impl Kind {
    /// What lies in a segment. `None`: nothing.
    pub fn stored(&self) -> Option<&Stored> {
        match self {
            Kind::Zero => None,
            Kind::Raw(stored) => Some(stored),
            Kind::Coded(coded) => Some(&coded.stored),
        }
    }

    /// The digest of the bytes of the file. `None`: all are zero.
    pub fn plain(&self) -> Option<&Digest> {
        match self {
            Kind::Zero => None,
            Kind::Raw(stored) => Some(&stored.digest),
            Kind::Coded(coded) => Some(&coded.plain),
        }
    }
}

/// An extent whose bytes in the segment are not those of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Coded {
    /// Where it lies. Length and digest are of the bytes that lie there, so that nothing is decrypted or decompressed that was
    /// not written by who has the key.
    pub stored: Stored,
    /// Keyed digest of the bytes of the file: by that equal extents are found, however they are kept.
    pub plain: Digest,
    /// How it is compressed: [`Coded::AS_IT_IS`] or [`Coded::ZSTD`]; no other is known.
    pub packing: u8,
    /// Its number among those that are encrypted in the segment; no other extent there has it. `None`: it is not encrypted.
    pub nth: Option<u64>,
}

impl Coded {
    /// Not compressed.
    pub const AS_IT_IS: u8 = 0;
    /// One frame of Zstandard.
    pub const ZSTD: u8 = 1;
}

/// Where the bytes of an extent lie, and what they must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stored {
    /// Index in [`Manifest::segments`].
    pub segment: u16,
    /// First byte in the segment, a multiple of [`super::ALIGNMENT`].
    pub offset: u64,
    /// Bytes in the segment, without what pads them.
    pub length: u32,
    /// Keyed digest of these bytes: of the file's, where they are kept as they are.
    pub digest: Digest,
}

/// Totals, so that a caller need not add up a million files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Files.
    pub files: u64,
    /// Extents of all files.
    pub extents: u64,
    /// Sum of the sizes of files, in bytes.
    pub bytes: u64,
}

impl Counts {
    /// Of some files. `None`: their sizes add up to more than 64 bits hold.
    pub fn of(files: &[FileEntry]) -> Option<Counts> {
        files
            .iter()
            .try_fold(Counts::default(), |sum: Counts, file| {
                Some(Counts {
                    files: sum.files + 1,
                    extents: sum.extents.checked_add(file.extents.len() as u64)?,
                    bytes: sum.bytes.checked_add(file.size)?,
                })
            })
    }
}

mod job_text {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    use super::JobId;

    pub fn serialize<S: Serializer>(job: &JobId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(job)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<JobId, D::Error> {
        let text = <&str>::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
}
