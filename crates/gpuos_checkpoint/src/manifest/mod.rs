//! What a node's part of a checkpoint consists of ([`Manifest`]), and how that is written.
//!
//! A manifest is trusted in two steps. Its bytes are read as a manifest only once their message authentication code holds:
//! [`Authentic`] is the only way to [`Authentic::parse`]. After that [`check`] holds the fields against each other as if the
//! code said nothing, since who has the key can have a fault as well: paths leave no folder, no sum overflows, no extent lies
//! outside of its segment.

mod check;
mod frame;
mod ranks;
mod types;

pub use check::{
    ALIGNMENT, Invalid, MAX_DEPTH, MAX_EXTENT, MAX_EXTENTS, MAX_FILES, MAX_MEMBERS, MAX_NAME,
    MAX_PATH, MAX_SEGMENT, MAX_SEGMENTS, check,
};
pub use frame::{Authentic, MAC_BYTES, MAX_MANIFEST, Refused, Unsealed};
pub use ranks::{rank_folder, rank_of, ranks};
pub use types::{
    Coded, Counts, Encryption, Extent, FileEntry, FolderEntry, KeyId, Kind, Manifest, NodeSet,
    Segment, Stored, Time,
};
