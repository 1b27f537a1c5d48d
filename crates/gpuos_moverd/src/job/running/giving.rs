//! What a node has of a checkpoint's files: given to other nodes for their ranks, or marked as what a program could not load.

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::{Manifest, ranks};
use gpuos_checkpoint::refusal::Refusal;
use gpuos_core::job::JobId;
use gpuos_mover::message::Bytes;
use gpuos_mover::program::Refused;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::error::{Kind, Result as Stored};
use gpuos_store::job::JobStore;
use gpuos_store::passed::pass_over;

use super::{Around, Running};
use crate::carried::{Body, PIECE};

impl Running {
    /// Another node asks for files of a rank.
    pub(super) fn asked(&self, around: &Around<'_>, seat: u16, body: &Body) {
        match *body {
            Body::ManifestAsk { ticket, id, rank } => {
                let has =
                    |it: &&JobStore<LinuxDisk>| it.manifest(id).is_ok_and(|it| has_rank(&it, rank));
                let part = self.stores(None).find(has);
                let bytes = part.and_then(|it| it.manifest_bytes(id, None).ok());
                self.give(around, seat, ticket, bytes);
            }
            Body::SegmentAsk {
                ticket,
                id,
                part,
                offset,
                length,
            } => {
                let mut bytes = vec![0; length.min(PIECE) as usize];
                let read = |it: &JobStore<LinuxDisk>| it.segment_bytes(id, offset, &mut bytes).ok();
                let read = self.stores(Some(part)).find_map(read);
                self.give(around, seat, ticket, read.map(|()| bytes));
            }
            _ => {}
        }
    }

    /// What files of ranks may lie in; `part`: of this node alone, as far as what the job begins from is concerned. Of what it has made
    /// itself there is one part here.
    fn stores(&self, part: Option<u16>) -> impl Iterator<Item = &JobStore<'static, LinuxDisk>> {
        let base = self.base.iter().flat_map(|base| &base.1);
        let base = base.filter(move |(node, _)| part.is_none_or(|part| node.0 == part));
        base.map(|(_, parts)| parts).chain([&self.parts])
    }

    fn give(&self, around: &Around<'_>, seat: u16, ticket: u64, bytes: Option<Vec<u8>>) {
        let bytes = bytes.map(Bytes);
        let given = Body::Given { ticket, bytes };
        around.links.say(seat, around.session, given);
    }

    /// The other job from whose checkpoint this one begins, if it is this one.
    pub(super) fn other(&self, id: Option<CheckpointId>) -> Option<&JobId> {
        let base = self.roster.base.as_ref();
        let base = base.filter(|base| Some(base.id) == id && base.job != self.job);
        base.map(|base| &base.job)
    }

    /// A rank on a node could not load a checkpoint: it is marked here.
    pub(super) fn refuse(
        &mut self,
        around: &Around<'_>,
        id: CheckpointId,
        node: NodeIndex,
        by: Refused,
    ) {
        let seat = self.seat_of(node);
        let refusal = Refusal {
            rank: by.join.rank,
            node: seat.map_or("?", |seat| around.links.node(seat)).into(),
            said: by.said,
        };
        let refusal = refusal.cut();
        let marks: Vec<Stored<()>> = match self.other(Some(id)) {
            // It stays as it is: the program of that job may well load it.
            Some(other) => vec![pass_over(&self.parts, other, id, &refusal)],
            None => {
                let parts = self.stores(None);
                parts.map(|parts| parts.refuse(id, &refusal)).collect()
            }
        };
        for mark in marks {
            match mark {
                // Nothing of it was here.
                Err(error) if error.kind == Kind::Missing => {}
                // Other nodes have the mark as well.
                Err(error) => tracing::warn!(job = %self.job, "job {}: {error}", self.job),
                Ok(()) => {}
            }
        }
        self.is_refused = Some(format!("checkpoint {}: {refusal}", id.number));
    }
}

/// Whether the files of a rank are in this part.
fn has_rank(manifest: &Manifest, rank: u16) -> bool {
    ranks(manifest).iter().any(|(of, _)| *of == rank)
}
