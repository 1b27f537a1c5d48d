//! The folders of ranks, in which the programs of a job write: `rank-R-of-S`.

use std::collections::BTreeSet;

use super::types::Manifest;

/// The folder of rank `rank` of `size`.
pub fn rank_folder(rank: u16, size: u16) -> String {
    format!("rank-{rank}-of-{size}")
}

/// Reads the name of such a folder. Only what [`rank_folder`] writes, of a rank below its size, is one.
pub fn rank_of(name: &[u8]) -> Option<(u16, u16)> {
    let text = std::str::from_utf8(name).ok()?;
    let (rank, size) = text.strip_prefix("rank-")?.split_once("-of-")?;
    let (rank, size) = (rank.parse().ok()?, size.parse().ok()?);
    (rank < size && rank_folder(rank, size) == text).then_some((rank, size))
}

/// The ranks whose folders lie at the top of a node's part, each with its size, in their order.
pub fn ranks(manifest: &Manifest) -> Vec<(u16, u16)> {
    // A file alone at the top is no folder.
    let of_files = manifest.files.iter().filter_map(|file| {
        let end = file.path.iter().position(|byte| *byte == b'/')?;
        file.path.get(..end)
    });
    let folders = manifest.folders.iter().map(|folder| &folder.path[..]);
    let ranks: BTreeSet<_> = folders.chain(of_files).filter_map(rank_of).collect();
    ranks.into_iter().collect()
}
