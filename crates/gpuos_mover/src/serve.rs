//! Answers to what other members of the set ask for.

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::stripe::{Part, Shard};
use gpuos_store::disk::Disk;
use gpuos_store::error::{Kind, Result};
use gpuos_store::shard::{PIECE, ShardReader};

use crate::local::Local;
use crate::message::{Body, Bytes, Question};

/// A piece of this node's segment or of a shard that it holds.
pub(crate) fn piece<D: Disk>(local: &mut Local<'_, D>, from: NodeIndex, question: Question) {
    let shard = local.geometry.at(question.stripe, question.place);
    let shard = shard.filter(|shard| shard.member == local.place);
    let body = match shard.map(|shard| read(local, shard, &question)) {
        Some(Ok(bytes)) => Body::Piece {
            question,
            bytes: Bytes(bytes),
        },
        Some(Err(damaged)) => Body::Refuse { question, damaged },
        // The other node has other sets, or asks for what it holds itself.
        None => Body::Refuse {
            question,
            damaged: false,
        },
    };
    local.say(from, body);
}

fn read<D: Disk>(
    local: &Local<'_, D>,
    shard: Shard,
    question: &Question,
) -> std::result::Result<Vec<u8>, bool> {
    let mut bytes = vec![0; question.length as usize];
    let read = match shard.part {
        Part::Chunk(_) if local.bad.contains(&question.id) => return Err(true),
        Part::Chunk(chunk) => {
            let begin = question.chunk.checked_mul(chunk.into());
            let offset = begin.and_then(|begin| begin.checked_add(question.offset));
            let offset = offset.ok_or(false)?;
            local.job.segment_bytes(question.id, offset, &mut bytes)
        }
        Part::Parity(_) => parity(local, question, &mut bytes),
    };
    match read {
        Ok(()) => Ok(bytes),
        Err(error) => Err(error.kind != Kind::Missing),
    }
}

/// Pieces that are asked for need not be those in which a shard is kept.
fn parity<D: Disk>(local: &Local<'_, D>, question: &Question, bytes: &mut [u8]) -> Result<()> {
    let (stripe, place) = (question.stripe.into(), question.place.into());
    let reader = ShardReader::open(&local.job, question.id, stripe, place, question.chunk)?;
    let mut buffer = vec![0; PIECE];
    let mut done = 0;
    while done < bytes.len() {
        let at = question.offset + done as u64;
        let kept = reader.piece(at / PIECE as u64, &mut buffer)?;
        // The question is within the shard, so that each turn finds at least one byte.
        let rest = &kept[(at % PIECE as u64) as usize..];
        let some = rest.len().min(bytes.len() - done);
        bytes[done..done + some].copy_from_slice(&rest[..some]);
        done += some;
    }
    Ok(())
}

/// A manifest: this node's own, or one that it keeps.
pub(crate) fn manifest<D: Disk>(
    local: &mut Local<'_, D>,
    from: NodeIndex,
    id: CheckpointId,
    node: NodeIndex,
) {
    let of = (node != local.own()).then_some(node);
    let bytes = local.job.manifest_bytes(id, of).ok().map(Bytes);
    local.say(from, Body::Manifest { id, node, bytes });
}
