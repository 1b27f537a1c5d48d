//! What all that a node does has in common: its store, its place, the time, and what it has to say.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::ids::{CheckpointId, Digest, NodeIndex};
use gpuos_checkpoint::sets::Set;
use gpuos_checkpoint::stripe::Geometry;
use gpuos_store::disk::Disk;
use gpuos_store::job::JobStore;

use crate::keeping::Keeping;
use crate::message::{Body, Message};
use crate::output::Output;
use crate::settings::Settings;

pub(crate) struct Local<'a, D: Disk> {
    pub(crate) settings: Settings,
    pub(crate) job: JobStore<'a, D>,
    /// The disk on which the program's folders are.
    pub(crate) files: &'a D,
    pub(crate) set: Set,
    pub(crate) place: u8,
    pub(crate) geometry: Geometry,
    /// In milliseconds.
    pub(crate) now: u64,
    pub(crate) out: Vec<Output>,
    /// Checkpoints whose own segment is here and does not verify: nobody gets bytes of it.
    pub(crate) bad: BTreeSet<CheckpointId>,
    /// The checkpoint to which the next part may refer: what was restored, or committed in this run. An older record may be of one
    /// whose set has lost too much, and what refers to that would be lost with the next disk.
    pub(crate) base: Option<CheckpointId>,
    /// Which checkpoints stay, when the restart is over.
    pub(crate) keeping: Option<Keeping>,
    /// The lengths of segments of the set's members, of the newest attempts only.
    pub(crate) lengths: BTreeMap<CheckpointId, BTreeMap<NodeIndex, u64>>,
}

/// Attempts of which lengths are remembered: one is made at a time, and a late question may come about the one before.
const LENGTHS: usize = 4;

impl<D: Disk> Local<'_, D> {
    pub(crate) fn own(&self) -> NodeIndex {
        self.settings.own
    }

    pub(crate) fn say(&mut self, to: NodeIndex, body: Body) {
        let message = Message {
            from: self.own(),
            to,
            run: self.settings.run,
            body,
        };
        match message.encode() {
            Ok(bytes) => self.out.push(Output::Send { to, bytes }),
            Err(why) => self.note(why.to_string()),
        }
    }

    pub(crate) fn note(&mut self, sentence: String) {
        self.out.push(Output::Note(sentence));
    }

    pub(crate) fn learn_length(&mut self, id: CheckpointId, node: NodeIndex, length: u64) {
        self.lengths
            .entry(id)
            .or_default()
            .entry(node)
            .or_insert(length);
        while self.lengths.len() > LENGTHS {
            self.lengths.pop_first();
        }
    }

    /// The other members of the set.
    pub(crate) fn others(&self) -> Vec<NodeIndex> {
        let own = self.own();
        let members = self.set.members.iter().copied();
        members.filter(|node| *node != own).collect()
    }

    pub(crate) fn is_member(&self, node: NodeIndex) -> bool {
        node != self.own() && self.set.position(node).is_some()
    }

    /// Who keeps copies of a member's manifest: as many nodes to its right as the set can lose.
    pub(crate) fn keepers(&self, node: NodeIndex) -> Vec<NodeIndex> {
        let Some(at) = self.set.position(node) else {
            return Vec::new();
        };
        let members = &self.set.members;
        let right =
            (1..=usize::from(self.set.parity)).map(|step| members[(at + step) % members.len()]);
        right.collect()
    }

    /// Whose manifests this node keeps.
    pub(crate) fn kept(&self) -> Vec<NodeIndex> {
        let own = self.own();
        let mut kept = self.others();
        kept.retain(|node| self.keepers(*node).contains(&own));
        kept
    }

    /// When something that is asked now is asked again.
    pub(crate) fn again(&self) -> u64 {
        self.now
            .saturating_add(self.settings.patience.retry_ms.max(1))
    }
}

/// The digest of a manifest: the keyed code at the end of its bytes covers all of it.
pub(crate) fn digest(bytes: &[u8]) -> Digest {
    Digest(bytes.last_chunk().copied().unwrap_or_default())
}
