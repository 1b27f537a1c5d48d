//! Whether the fields of a manifest agree with each other, whoever wrote it.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use super::types::{
    Coded, Counts, Encryption, Extent, FileEntry, Kind, Manifest, NodeSet, Segment,
};

/// Extents begin at multiples of this many bytes: a page, and what direct I/O asks for on common disks.
pub const ALIGNMENT: u64 = 4096;

/// The longest path in bytes: PATH_MAX of Linux.
pub const MAX_PATH: usize = 4096;

/// The longest part of a path in bytes: NAME_MAX of Linux.
pub const MAX_NAME: usize = 255;

/// Parts that a path has at most; own choice. It bounds the folders that are open at once.
pub const MAX_DEPTH: usize = 64;

/// Files and folders of a node's part at most; own choice.
pub const MAX_FILES: usize = 1 << 20;

/// Extents at most: 8 TiB on a node in extents of 2 MiB; own choice.
pub const MAX_EXTENTS: u64 = 1 << 22;

/// The most bytes that an extent has in a segment: one is read into memory at once; own choice.
pub const MAX_EXTENT: u32 = 64 << 20;

/// Earlier checkpoints and the own one that extents lie in at most; own choice.
pub const MAX_SEGMENTS: usize = 4096;

/// The most bytes of a segment, and of a file: far above what a node writes, and no sum of a few overflows.
pub const MAX_SEGMENT: u64 = 1 << 50;

/// Nodes of a set at most: shards of a stripe over GF(2^8).
pub const MAX_MEMBERS: usize = 255;

/// What is wrong, as a sentence without its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid(pub String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

/// Refuses with a sentence unless the condition holds.
macro_rules! hold {
    ($holds:expr, $($sentence:tt)+) => {
        if !$holds {
            return Err(Invalid(format!($($sentence)+)));
        }
    };
}

/// Holds all fields against each other, with limits on all counts.
///
/// # Errors
/// The first thing that does not hold.
pub fn check(manifest: &Manifest) -> Result<(), Invalid> {
    hold!(manifest.id.number > 0, "checkpoints count from 1, it has 0");
    hold!(
        manifest.node.0 < manifest.nodes,
        "it is of node {} of a job with {} nodes",
        manifest.node,
        manifest.nodes
    );
    check_segments(manifest)?;
    check_set(manifest)?;
    check_paths(manifest)?;
    let mut extents = 0u64;
    for file in &manifest.files {
        extents = extents.saturating_add(file.extents.len() as u64);
        hold!(
            extents <= MAX_EXTENTS,
            "it has more than {MAX_EXTENTS} extents"
        );
        check_file(file, &manifest.segments)?;
    }
    hold!(
        Counts::of(&manifest.files) == Some(manifest.counts),
        "its totals are not those of its files"
    );
    Ok(())
}

fn check_segments(manifest: &Manifest) -> Result<(), Invalid> {
    let segments = &manifest.segments;
    hold!(
        (1..=MAX_SEGMENTS).contains(&segments.len()),
        "it names {} segments, 1 to {MAX_SEGMENTS} can be",
        segments.len()
    );
    hold!(
        segments[0].id == manifest.id,
        "its first segment is of checkpoint {}, not its own {}",
        segments[0].id,
        manifest.id
    );
    let mut seen = BTreeSet::new();
    for (index, segment) in segments.iter().enumerate() {
        let Segment {
            id,
            length,
            encryption,
        } = *segment;
        hold!(
            index == 0 || (1..manifest.id.number).contains(&id.number),
            "it names a segment of checkpoint {id}, which is not earlier than itself"
        );
        let cipher = encryption.map(|it| it.cipher);
        hold!(
            cipher.is_none_or(|cipher| cipher == Encryption::AES_256_CTR),
            "the segment of checkpoint {id} is encrypted in a way of number {}, and this release knows 1, AES-256-CTR, alone",
            cipher.unwrap_or_default()
        );
        hold!(
            length <= MAX_SEGMENT && length.is_multiple_of(ALIGNMENT),
            "the segment of checkpoint {id} has {length} bytes: not a multiple of {ALIGNMENT} up to {MAX_SEGMENT}"
        );
        hold!(seen.insert(id), "it names the segment of {id} twice");
    }
    Ok(())
}

fn check_set(manifest: &Manifest) -> Result<(), Invalid> {
    let NodeSet {
        members,
        parity,
        chunk,
    } = &manifest.set;
    hold!(
        (1..=MAX_MEMBERS).contains(&members.len()),
        "its set has {} nodes, 1 to {MAX_MEMBERS} can be",
        members.len()
    );
    let distinct: BTreeSet<_> = members.iter().collect();
    hold!(
        distinct.len() == members.len(),
        "its set has a node more than once"
    );
    hold!(
        members.contains(&manifest.node),
        "its node {} is not in its set",
        manifest.node
    );
    let beyond = members.iter().find(|node| node.0 >= manifest.nodes);
    hold!(
        beyond.is_none(),
        "its set has nodes that the job has not: the job has {}",
        manifest.nodes
    );
    let Some(data) = members.len().checked_sub(usize::from(*parity)) else {
        hold!(false, "its set has more parity shards than nodes");
        return Ok(());
    };
    hold!(data > 0, "its set has nothing but parity shards");
    if *parity == 0 {
        hold!(
            *chunk == 0,
            "its set has chunks, but no parity to cut them for"
        );
        return Ok(());
    }
    hold!(
        *chunk <= MAX_SEGMENT && chunk.is_multiple_of(ALIGNMENT),
        "a chunk of its set has {chunk} bytes: not a multiple of {ALIGNMENT} up to {MAX_SEGMENT}"
    );
    let held = chunk.checked_mul(data as u64);
    let own = manifest.segments[0].length;
    hold!(
        held.is_some_and(|held| held >= own),
        "its segment of {own} bytes does not fit {data} chunks of {chunk} bytes"
    );
    Ok(())
}

/// In the order of parts, what lies in a folder follows the folder at once: only neighbours need to be compared.
fn check_paths(manifest: &Manifest) -> Result<(), Invalid> {
    let count = manifest.files.len().saturating_add(manifest.folders.len());
    hold!(
        count <= MAX_FILES,
        "it has {count} files and folders, more than {MAX_FILES}"
    );
    let files = manifest.files.iter().map(|file| (&file.path, file.mode));
    let folders = manifest.folders.iter().map(|it| (&it.path, it.mode));
    let files = files.map(|(path, mode)| (path.as_slice(), mode, true));
    let folders = folders.map(|(path, mode)| (path.as_slice(), mode, false));
    let mut all: Vec<(&[u8], u16, bool)> = files.chain(folders).collect();
    for (path, mode, _) in &all {
        check_path(path)?;
        hold!(
            *mode <= 0o777,
            "{} has the mode {mode:o}, more than permissions",
            shown(path)
        );
    }
    all.sort_unstable_by(|a, b| in_parts(a.0, b.0));
    for pair in all.windows(2) {
        let [(before, _, is_file), (after, _, _)] = [pair[0], pair[1]];
        hold!(before != after, "it has {} twice", shown(before));
        let beneath = after
            .strip_prefix(before)
            .is_some_and(|rest| rest.starts_with(b"/"));
        hold!(
            !is_file || !beneath,
            "{} is a file, and a folder of {}",
            shown(before),
            shown(after)
        );
    }
    Ok(())
}

fn in_parts(a: &[u8], b: &[u8]) -> Ordering {
    a.split(|byte| *byte == b'/')
        .cmp(b.split(|byte| *byte == b'/'))
}

fn check_path(path: &[u8]) -> Result<(), Invalid> {
    hold!(!path.is_empty(), "a path is empty");
    hold!(
        path.len() <= MAX_PATH,
        "a path has {} bytes, more than {MAX_PATH}",
        path.len()
    );
    hold!(
        !path.contains(&0),
        "the path {} has a NUL byte",
        shown(path)
    );
    let mut depth = 0;
    for part in path.split(|byte| *byte == b'/') {
        depth += 1;
        hold!(
            !matches!(part, b"" | b"." | b".."),
            "the path {} has the part {:?}: a path is relative and stays in its folder",
            shown(path),
            String::from_utf8_lossy(part)
        );
        hold!(
            part.len() <= MAX_NAME,
            "the path {} has a part of {} bytes, more than {MAX_NAME}",
            shown(path),
            part.len()
        );
    }
    hold!(
        depth <= MAX_DEPTH,
        "the path {} has {depth} parts, more than {MAX_DEPTH}",
        shown(path)
    );
    Ok(())
}

fn check_file(file: &FileEntry, segments: &[Segment]) -> Result<(), Invalid> {
    let path = shown(&file.path);
    hold!(
        file.size <= MAX_SEGMENT,
        "{path} has {} bytes, more than {MAX_SEGMENT}",
        file.size
    );
    hold!(
        file.mtime.nanos < 1_000_000_000,
        "the time of {path} has {} nanoseconds in a second",
        file.mtime.nanos
    );
    let mut left = file.size;
    for (index, extent) in file.extents.iter().enumerate() {
        hold!(extent.raw > 0, "extent {index} of {path} is empty");
        hold!(
            extent.raw <= left,
            "extents of {path} have more bytes than the file, which has {}",
            file.size
        );
        left -= extent.raw;
        let Some(stored) = extent.kind.stored() else {
            continue;
        };
        let Some(segment) = segments.get(usize::from(stored.segment)) else {
            let named = segments.len();
            hold!(
                false,
                "extent {index} of {path} is in segment {} of {named}",
                stored.segment
            );
            continue;
        };
        let end = stored.offset.checked_add(u64::from(stored.length));
        hold!(
            stored.offset.is_multiple_of(ALIGNMENT) && end.is_some_and(|end| end <= segment.length),
            "extent {index} of {path} begins at byte {} of a segment of {} bytes: not at a multiple of {ALIGNMENT}, or not within it",
            stored.offset,
            segment.length
        );
        check_form(extent, segment, || format!("extent {index} of {path}"))?;
    }
    hold!(
        left == 0,
        "extents of {path} lack {left} of its {} bytes",
        file.size
    );
    Ok(())
}

/// What an extent becomes is bounded before a byte of it is read.
fn check_form(
    extent: &Extent,
    segment: &Segment,
    what: impl Fn() -> String,
) -> Result<(), Invalid> {
    let raw = extent.raw;
    let stored = extent.kind.stored().map_or(0, |stored| stored.length);
    let (packing, nth) = match &extent.kind {
        Kind::Coded(coded) => (coded.packing, coded.nth),
        Kind::Raw(_) | Kind::Zero => (Coded::AS_IT_IS, None),
    };
    hold!(
        matches!(packing, Coded::AS_IT_IS | Coded::ZSTD),
        "{} is compressed in a way of number {packing}, and this release knows 1, zstd, alone",
        what()
    );
    let fits = match packing {
        Coded::ZSTD => u64::from(stored) < raw && raw <= u64::from(MAX_EXTENT),
        _ => u64::from(stored) == raw && stored <= MAX_EXTENT,
    };
    hold!(
        fits,
        "{} has {raw} bytes in {stored} stored ones: both are the same, or fewer are stored where they are compressed, and {MAX_EXTENT} at most",
        what()
    );
    hold!(
        nth.is_none() || segment.encryption.is_some(),
        "{} is encrypted, and its segment names no key",
        what()
    );
    Ok(())
}

/// Names have any bytes, and sentences are read on terminals.
fn shown(path: &[u8]) -> String {
    const MOST: usize = 200;
    let cut = &path[..path.len().min(MOST)];
    let more = if path.len() > MOST { "..." } else { "" };
    format!("\"{}{more}\"", cut.escape_ascii())
}
