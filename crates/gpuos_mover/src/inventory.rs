//! What this node has, verified, as it reports it at a restart.
//!
//! All of it is read, which takes as long as a disk takes for it: a rebuild that finds out about a damaged source in its middle would
//! have to begin again, with another checkpoint perhaps.

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::manifest::Manifest;
use gpuos_checkpoint::stripe::Shard;
use gpuos_store::disk::Disk;
use gpuos_store::error::{Kind, Result};
use gpuos_store::inventory::{Held, Part};
use gpuos_store::shard::{PIECE, ShardReader};
use gpuos_store::verify::segment_faults;

use crate::local::{Local, digest};
use crate::message::{Facts, PartReport, Report};

/// Reads all that is here, and remembers which segments do not hold.
pub(crate) fn report<D: Disk>(local: &mut Local<'_, D>) -> Result<Report> {
    let mut parts = Vec::new();
    for held in list(local)? {
        let part = part(local, &held);
        if !part.segment {
            local.bad.insert(held.id);
        }
        parts.push(part);
    }
    for (id, refusal) in local.settings.passed.iter().flatten() {
        match parts.iter_mut().find(|part| part.id == *id) {
            Some(part) => part.refused = part.refused.take().or(Some(refusal.clone())),
            // Other nodes may have parts of it, and no note.
            None => parts.push(PartReport {
                id: *id,
                committed: false,
                own: None,
                copies: Vec::new(),
                segment: false,
                shards: Vec::new(),
                refused: Some(refusal.clone()),
            }),
        }
    }
    Ok(Report { parts })
}

/// What the store has of checkpoints of as many nodes as the job has. A note of what is committed that does not hold hides all of it: the node counts as one that has lost its
/// disk then, and what holds is found where its parts are made again.
pub(crate) fn list<D: Disk>(local: &mut Local<'_, D>) -> Result<Vec<Held>> {
    match local.job.list() {
        Err(error) if error.kind == Kind::Damaged => {
            local.note(error.to_string());
            Ok(Vec::new())
        }
        listed => Ok(listed?
            .into_iter()
            .filter(|held| is_of(local, held))
            .collect()),
    }
}

/// Whether it was made by as many nodes as the job has now: what others made is for another way to begin. Where no manifest says it, it may be.
fn is_of<D: Disk>(local: &Local<'_, D>, held: &Held) -> bool {
    let nodes = match &held.part {
        Part::Prepared(summary) => Some(summary.nodes),
        _ => held.copies.iter().find_map(|node| {
            let copy = local.job.copy(held.id, *node);
            copy.ok().map(|copy| copy.nodes)
        }),
    };
    nodes.is_none_or(|nodes| nodes == local.settings.nodes)
}

fn part<D: Disk>(local: &Local<'_, D>, held: &Held) -> PartReport {
    let id = held.id;
    let own = match held.part {
        Part::Prepared(_) => local.job.manifest(id).ok(),
        _ => None,
    };
    // A disk that was moved to another node of the job has parts of that one.
    let own = own.filter(|manifest| manifest.node == local.own());
    let segment = own
        .as_ref()
        .is_some_and(|manifest| segment_faults(&local.job, manifest, id).is_empty());
    let mut copies = Vec::new();
    // All members of a set have the same length of a chunk.
    let mut chunk = own.as_ref().map(|manifest| manifest.set.chunk);
    for node in &held.copies {
        if let Ok(copy) = local.job.copy(id, *node)
            && let Ok(bytes) = local.job.manifest_bytes(id, Some(*node))
        {
            chunk = chunk.or(Some(copy.set.chunk));
            copies.push((*node, facts(&copy, &bytes)));
        }
    }
    let held_here = local.geometry.parities(local.place);
    let there = held_here.filter(|shard| {
        let name = (u32::from(shard.stripe), u16::from(shard.place));
        held.shards.contains(&name)
    });
    let shards = there.map(|shard| {
        let holds = chunk.is_some_and(|chunk| shard_holds(local, id, shard, chunk));
        (shard.stripe, holds)
    });
    PartReport {
        id,
        committed: held.committed,
        own: own.and_then(|manifest| {
            let bytes = local.job.manifest_bytes(id, None).ok()?;
            Some(facts(&manifest, &bytes))
        }),
        segment,
        shards: shards.collect(),
        copies,
        // One that does not hold says nothing; other nodes have it, too.
        refused: local.job.refusal(id).unwrap_or_default(),
    }
}

fn facts(manifest: &Manifest, bytes: &[u8]) -> Facts {
    Facts {
        digest: digest(bytes),
        segments: manifest.segments.iter().map(|segment| segment.id).collect(),
    }
}

/// Whether a shard is here and all of it holds.
pub(crate) fn shard_holds<D: Disk>(
    local: &Local<'_, D>,
    id: CheckpointId,
    shard: Shard,
    chunk: u64,
) -> bool {
    let (stripe, place) = (shard.stripe.into(), shard.place.into());
    let Ok(reader) = ShardReader::open(&local.job, id, stripe, place, chunk) else {
        return false;
    };
    let mut buffer = vec![0; PIECE];
    (0..reader.pieces()).all(|piece| reader.piece(piece, &mut buffer).is_ok())
}
