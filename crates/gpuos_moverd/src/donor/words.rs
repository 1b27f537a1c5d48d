//! What two movers say about parts of a job that one of them has no node in: a question, and an answer to each.

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_core::job::JobId;
use gpuos_mover::donors::HeldPart;
use gpuos_mover::message::Bytes;
use gpuos_mover::roster::Claim;
use serde::{Deserialize, Serialize};

use crate::carried::{PIECE, decode, encode, job_text};

/// Checkpoints, copies and shards that an answer names at most; own choice, far above what retention keeps.
const MAX_NAMED: usize = 1 << 16;
/// The longest name of a node.
const MAX_NODE: usize = 256;

/// A question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// The first one: what do you hold?
    Open {
        /// Of this job.
        #[serde(with = "job_text")]
        of: JobId,
        /// For this job, which runs on the node that asks, and is the same or another one of the same user.
        #[serde(with = "job_text")]
        wanted_by: JobId,
        /// The node that asks.
        node: String,
    },
    /// A manifest: the part's own, or the copy of that of another node.
    Manifest {
        /// Of this checkpoint.
        id: CheckpointId,
        /// Of this node.
        of: Option<u16>,
    },
    /// Bytes of a segment. None of them: whether it is there.
    Segment {
        /// Of this checkpoint.
        id: CheckpointId,
        /// The first byte.
        offset: u64,
        /// How many, [`PIECE`] at most.
        length: u32,
    },
    /// A piece of a shard.
    Shard {
        /// Which shard.
        shard: Shard,
        /// Which piece.
        piece: u64,
    },
}

/// A shard that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shard {
    /// Of this checkpoint.
    pub id: CheckpointId,
    /// Its stripe and place.
    pub at: (u32, u16),
    /// Its length in bytes.
    pub length: u64,
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Ask::Open`].
    Holds(Holding),
    /// What was asked for.
    Bytes(Bytes),
    /// It cannot be had: a sentence.
    No(String),
}

/// What a node holds of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Holding {
    /// By its newest manifest; `None`: it has nothing.
    pub claim: Option<Claim>,
    /// The checkpoints of which it has its own part.
    pub parts: Vec<HeldPart>,
    /// The same of what it has from when the job had other numbers of nodes.
    pub others: Vec<(Claim, Vec<HeldPart>)>,
    /// Manifests of other nodes.
    pub copies: Vec<(CheckpointId, u16)>,
    /// Parity of other nodes.
    pub shards: Vec<Shard>,
    /// A run, and the checkpoint that the job's user has chosen for it.
    pub chosen: Option<(u32, u32)>,
}

impl Holding {
    /// The parts of all numbers of nodes.
    pub fn all_parts(&self) -> impl Iterator<Item = &HeldPart> {
        let others = self.others.iter().flat_map(|(_, parts)| parts);
        self.parts.iter().chain(others)
    }
}

impl Ask {
    /// The bytes of a question.
    pub fn encode(&self) -> Option<Vec<u8>> {
        encode(self)
    }

    /// Reads one. `None`: it is none, or outside its limits.
    pub fn decode(bytes: &[u8]) -> Option<Ask> {
        let ask = decode(bytes)?;
        let fits = match &ask {
            Ask::Open { node, .. } => node.len() <= MAX_NODE,
            Ask::Segment { offset, length, .. } => {
                *length <= PIECE && offset.checked_add((*length).into()).is_some()
            }
            Ask::Manifest { .. } | Ask::Shard { .. } => true,
        };
        fits.then_some(ask)
    }
}

impl Answer {
    /// The bytes of an answer. `None`: it is too long.
    pub fn encode(&self) -> Option<Vec<u8>> {
        encode(self)
    }

    /// Reads one. `None`: it is none, or outside its limits.
    pub fn decode(bytes: &[u8]) -> Option<Answer> {
        let answer = decode(bytes)?;
        let fits = match &answer {
            Answer::Holds(holding) => {
                let needs = holding.all_parts().map(|part| 1 + part.needs.len());
                let named = holding.others.len() + holding.copies.len() + holding.shards.len();
                let others = holding.others.iter().map(|(claim, _)| claim);
                let mut claims = holding.claim.iter().chain(others);
                named + needs.sum::<usize>() <= MAX_NAMED
                    && claims.all(|claim| claim.set.len() <= usize::from(u8::MAX))
            }
            Answer::Bytes(_) | Answer::No(_) => true,
        };
        fits.then_some(answer)
    }
}
