//! What stands on the disk of a node. Bytes are stood for by numbers: each segment that is written has another one.
use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::commit::{Digests, Held};
use gpuos_checkpoint::ids::{CheckpointId, Digest, NodeIndex};
use gpuos_checkpoint::retention::{Holding, Stage};
use gpuos_checkpoint::usable::{HeldPart, ManifestFacts};

/// A manifest: which bytes of which checkpoints' segments.
#[derive(Clone, PartialEq, Debug)]
pub struct Manifest {
    pub needs: Vec<(CheckpointId, u64)>,
    pub digest: Digest,
}

impl Manifest {
    fn facts(&self) -> ManifestFacts {
        ManifestFacts {
            segments: self.needs.iter().map(|(id, _)| *id).collect(),
        }
    }
}

/// The folder of one checkpoint.
#[derive(Clone, Default, Debug)]
pub struct Folder {
    pub segment: Option<u64>,
    /// What is to be the manifest when all else is written.
    pub draft: Option<Manifest>,
    pub manifest: Option<Manifest>,
    pub copies: BTreeMap<usize, Manifest>,
    /// By stripe: the segments that the parity was made of.
    pub shards: BTreeMap<usize, BTreeMap<usize, u64>>,
    pub committed: bool,
    /// A crash came while the part was made.
    pub begun: bool,
    /// What the manifests of the whole set refer to.
    pub set_needs: Vec<CheckpointId>,
}

pub type Disk = BTreeMap<CheckpointId, Folder>;

/// As a node tells of it at its start, with what the leader learns from all others.
pub fn held(disks: &[Disk], node: usize) -> Vec<Held> {
    let one = |(id, folder): (&CheckpointId, &Folder)| {
        folder.manifest.as_ref().map(|manifest| Held {
            id: *id,
            digest: manifest.digest,
            committed: folder.committed.then(|| digests(disks, *id)),
        })
    };
    disks[node].iter().filter_map(one).collect()
}

/// The manifests of all nodes, where none is missing.
fn digests(disks: &[Disk], id: CheckpointId) -> Digests {
    let of = |node: usize| {
        let own = disks[node].get(&id).and_then(|f| f.manifest.as_ref());
        let mut copies = disks.iter().filter_map(|d| d.get(&id)?.copies.get(&node));
        own.or_else(|| copies.next()).map(|m| m.digest)
    };
    let all: Option<Vec<Digest>> = (0..disks.len()).map(of).collect();
    all.unwrap_or_default().into()
}

/// As `usable` wants it.
pub fn parts(disk: &Disk) -> BTreeMap<CheckpointId, HeldPart> {
    let one = |folder: &Folder| HeldPart {
        manifest: folder.manifest.as_ref().map(Manifest::facts),
        committed: folder.committed,
        copies: folder
            .copies
            .iter()
            .map(|(node, m)| (NodeIndex(*node as u16), m.facts()))
            .collect(),
        segment: folder.segment.is_some() && !folder.begun,
        shards: folder.shards.keys().map(|s| (*s as u16, true)).collect(),
    };
    disk.iter().map(|(id, folder)| (*id, one(folder))).collect()
}

/// As `retention` wants it.
pub fn holdings(
    disk: &Disk,
    making: Option<CheckpointId>,
    unsure: &BTreeSet<CheckpointId>,
) -> Vec<Holding> {
    let one = |(id, folder): (&CheckpointId, &Folder)| Holding {
        id: *id,
        stage: match (&folder.manifest, folder.committed) {
            _ if making == Some(*id) => Stage::Making,
            (None, _) => Stage::DataOnly,
            (Some(_), false) => Stage::Prepared,
            _ if unsure.contains(id) => Stage::Prepared,
            (Some(_), true) => Stage::Committed,
        },
        level: 2,
        pinned: false,
        reading: false,
        good: true,
        bytes: 1,
        needs: folder.set_needs.clone(),
    };
    disk.iter().map(one).collect()
}
