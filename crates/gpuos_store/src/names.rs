//! Names of files and folders in the store.

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};

/// Extents of this node.
pub(crate) const SEGMENT: &[u8] = b"segment";
/// What describes them.
pub(crate) const MANIFEST: &[u8] = b"manifest";
/// Which checkpoints of a job are committed.
pub(crate) const CURRENT: &[u8] = b"CURRENT";
/// From which checkpoint the next run begins.
pub(crate) const CHOSEN: &[u8] = b"chosen";
/// Checkpoints of other jobs that the job's program could not load.
pub(crate) const PASSED: &[u8] = b"passed";
/// The drill that has copied in all that is here.
pub(crate) const DRILL: &[u8] = b"drill";
/// Since when the job is over.
pub(crate) const OVER: &[u8] = b"over";
/// Whose job it is.
pub(crate) const OWNER: &[u8] = b"owner";
/// A program could not load it.
pub(crate) const REFUSED: &[u8] = b"refused";
/// The cluster whose jobs a shared folder has; no job is called so.
pub(crate) const CLUSTER: &[u8] = b".cluster";
/// What a file is called until it is complete ends so.
pub(crate) const UNFINISHED: &str = ".tmp";

/// What a name in the folder of a checkpoint says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    Segment,
    Manifest,
    Copy(NodeIndex),
    Shard(u32, u16),
    Refused,
    Unfinished,
    Unknown,
}

/// The manifest of a neighbour.
pub(crate) fn copy(node: NodeIndex) -> Vec<u8> {
    format!("copy-{node}.manifest").into_bytes()
}

/// A shard.
pub(crate) fn shard(stripe: u32, place: u16) -> Vec<u8> {
    format!("shard-{stripe}-{place}").into_bytes()
}

/// A file that is not complete yet.
pub(crate) fn unfinished(name: &[u8]) -> Vec<u8> {
    [name, UNFINISHED.as_bytes()].concat()
}

/// Reads a name of a checkpoint's folder. Only what is written the same way again is known.
pub(crate) fn read(name: &[u8]) -> Named {
    if name == SEGMENT {
        return Named::Segment;
    }
    if name == MANIFEST {
        return Named::Manifest;
    }
    if name == REFUSED {
        return Named::Refused;
    }
    let Ok(text) = std::str::from_utf8(name) else {
        return Named::Unknown;
    };
    if text.ends_with(UNFINISHED) {
        return Named::Unfinished;
    }
    let node = text.strip_prefix("copy-");
    let node = node.and_then(|rest| rest.strip_suffix(".manifest"));
    if let Some(node) = node.and_then(|node| node.parse().ok()).map(NodeIndex) {
        return known(Named::Copy(node), &copy(node), name);
    }
    let places = text.strip_prefix("shard-");
    let places = places.and_then(|rest| rest.split_once('-'));
    if let Some((Ok(stripe), Ok(place))) = places.map(|(a, b)| (a.parse(), b.parse())) {
        return known(Named::Shard(stripe, place), &shard(stripe, place), name);
    }
    Named::Unknown
}

fn known(named: Named, written: &[u8], name: &[u8]) -> Named {
    if written == name {
        named
    } else {
        Named::Unknown
    }
}

/// Reads the name of a checkpoint's folder.
pub(crate) fn checkpoint(name: &[u8]) -> Option<CheckpointId> {
    let (number, attempt) = std::str::from_utf8(name).ok()?.split_once('-')?;
    let id = CheckpointId {
        number: number.parse().ok()?,
        attempt: u64::from_str_radix(attempt, 16).ok()?,
    };
    (id.number > 0 && id.to_string().as_bytes() == name).then_some(id)
}
