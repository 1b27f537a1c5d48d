//! What nodes say to each other. Everything is bounded, and checked when it comes.

use std::fmt;

use gpuos_checkpoint::commit;
use gpuos_checkpoint::ids::{CheckpointId, Digest, NodeIndex};
use gpuos_checkpoint::manifest::{MAX_MANIFEST, MAX_SEGMENT, MAX_SEGMENTS};
use gpuos_checkpoint::pull::Loss;
use gpuos_checkpoint::refusal::Refusal;
use gpuos_store::shard::PIECE;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most bytes of a piece: as shards are kept.
pub const MAX_PIECE: usize = PIECE;

/// The most bytes of a message: a manifest, with room for what is around it.
pub const MAX_MESSAGE: usize = MAX_MANIFEST + (64 << 10);

/// Checkpoints that a report names at most: as many as a store remembers.
const MAX_PARTS: usize = 4096;

/// Manifests of others and shards in a report at most: a set has 255 nodes.
const MAX_HELD: usize = 255;

/// Bytes of a sentence at most; own choice.
const MAX_WHY: usize = 4096;

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    /// Who says it. Whoever carries it vouches for it.
    pub from: NodeIndex,
    /// To whom.
    pub to: NodeIndex,
    /// The run of the job.
    pub run: u32,
    /// What.
    pub body: Body,
}

/// What is said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    /// Of the commit.
    Commit(commit::Message),
    /// To the set: how long is your segment?
    LengthAsk {
        /// Of this attempt.
        id: CheckpointId,
    },
    /// To the set: so long is mine, which is on the disk.
    Length {
        /// Of this attempt.
        id: CheckpointId,
        /// In bytes.
        length: u64,
    },
    /// To the nodes on the right: keep my manifest.
    Copy {
        /// Of this attempt.
        id: CheckpointId,
        /// As it was sealed.
        bytes: Bytes,
    },
    /// It is kept.
    CopyKept {
        /// Of this attempt.
        id: CheckpointId,
        /// Which manifest.
        digest: Digest,
    },
    /// To the set: give me a manifest.
    ManifestAsk {
        /// Of this attempt.
        id: CheckpointId,
        /// Of this node.
        node: NodeIndex,
    },
    /// A manifest, or that it is not here.
    Manifest {
        /// Of this attempt.
        id: CheckpointId,
        /// Of this node.
        node: NodeIndex,
        /// As it was sealed.
        bytes: Option<Bytes>,
    },
    /// To the set: give me a piece of a shard.
    Ask(Question),
    /// The piece.
    Piece {
        /// What was asked.
        question: Question,
        /// As many as were asked for.
        bytes: Bytes,
    },
    /// It cannot be had.
    Refuse {
        /// What was asked.
        question: Question,
        /// Whether it is damaged; otherwise it is not here.
        damaged: bool,
    },
    /// Leader, at a restart: what do you have?
    InventoryAsk,
    /// This.
    Inventory(Report),
    /// Leader, at a restart: go on so.
    Plan(Plan),
    /// What the plan asked for is there, or a sentence why not.
    Repaired {
        /// Of which plan.
        round: u32,
        /// The reason, if it is not.
        failed: Option<String>,
    },
    /// Leader, at a restart: all nodes have what the plan asked for.
    Settle {
        /// Of which plan.
        round: u32,
    },
    /// The node goes on with it.
    Settled {
        /// Of which plan.
        round: u32,
    },
}

/// Which bytes of which shard are asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Question {
    /// Of which attempt.
    pub id: CheckpointId,
    /// The stripe.
    pub stripe: u8,
    /// The place in the stripe.
    pub place: u8,
    /// The bytes of a shard of this attempt.
    pub chunk: u64,
    /// The number of the piece, for who asks.
    pub piece: u64,
    /// Its first byte in the shard.
    pub offset: u64,
    /// Its bytes.
    pub length: u32,
}

/// What a manifest says that a restart needs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Its digest.
    pub digest: Digest,
    /// The checkpoints in whose segments its files stand.
    pub segments: Vec<CheckpointId>,
}

/// What a node has of one checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartReport {
    /// Which.
    pub id: CheckpointId,
    /// It has a record of its commit.
    pub committed: bool,
    /// Its own manifest.
    pub own: Option<Facts>,
    /// Those of others.
    pub copies: Vec<(NodeIndex, Facts)>,
    /// Its segment is there and verifies.
    pub segment: bool,
    /// Parity shards by stripe, and whether they verify.
    pub shards: Vec<(u8, bool)>,
    /// Who could not load it.
    pub refused: Option<Refusal>,
}

/// What a node has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// By checkpoint.
    pub parts: Vec<PartReport>,
}

/// How a job goes on after a restart.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Counts up: a plan that cannot be followed on some node is replaced by another one.
    pub round: u32,
    /// The checkpoint to be restored.
    pub restore: Option<CheckpointId>,
    /// The checkpoints whose parts it needs, from the oldest: each node makes its parts of them again as far as they are lost.
    pub repair: Vec<CheckpointId>,
    /// Newer ones that cannot be restored, as sentences.
    pub passed_over: Vec<String>,
    /// Those that a program could not load.
    pub refused: Vec<(CheckpointId, Refusal)>,
    /// The highest number of a checkpoint.
    pub highest: u32,
    /// There is a committed one, and none can be restored.
    pub lost: bool,
    /// The newest ones that can be restored, each with all whose segments any node needs for it.
    pub kept: Vec<(CheckpointId, Vec<CheckpointId>)>,
    /// So many committed checkpoints stay.
    pub keep: u32,
    /// Every so many checkpoints one is written in full.
    pub full_every: u32,
}

/// Why a message is not listened to, as a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl Message {
    /// The bytes of a message.
    ///
    /// # Errors
    /// It is too long for who is to read it.
    pub fn encode(&self) -> Result<Vec<u8>, Refused> {
        check(self)?;
        postcard::to_extend(self, Vec::new())
            .ok()
            .filter(|bytes| bytes.len() <= MAX_MESSAGE)
            .ok_or_else(|| {
                refused(
                    "a message is longer than another node reads; have fewer files in a checkpoint",
                )
            })
    }

    /// Reads a message that came.
    ///
    /// # Errors
    /// It is no message, or breaks a limit.
    pub fn decode(bytes: &[u8]) -> Result<Message, Refused> {
        if bytes.len() > MAX_MESSAGE {
            return Err(refused(&format!(
                "a message of {} bytes came, {MAX_MESSAGE} can be; look who sends it",
                bytes.len()
            )));
        }
        match postcard::take_from_bytes::<Message>(bytes) {
            Ok((message, [])) => check(&message).map(|()| message),
            _ => Err(refused(
                "bytes came that are no message; have the same release of gpuos on all nodes",
            )),
        }
    }
}

fn refused(why: &str) -> Refused {
    Refused(why.to_string())
}

fn check(message: &Message) -> Result<(), Refused> {
    let fits = match &message.body {
        Body::Commit(inner) => {
            (inner.from, inner.to, inner.run) == (message.from, message.to, message.run)
        }
        Body::Length { length, .. } => *length <= MAX_SEGMENT,
        Body::Copy { bytes, .. } => bytes.0.len() <= MAX_MANIFEST,
        Body::Manifest { bytes, .. } => bytes.as_ref().is_none_or(|b| b.0.len() <= MAX_MANIFEST),
        Body::Ask(question) | Body::Refuse { question, .. } => is_question(question),
        Body::Piece { question, bytes } => {
            is_question(question) && bytes.0.len() == question.length as usize
        }
        Body::Inventory(report) => is_report(report),
        Body::Plan(plan) => {
            let kept: usize = plan.kept.iter().map(|(_, needs)| needs.len()).sum();
            plan.repair.len() <= MAX_PARTS
                && plan.kept.len() <= MAX_PARTS
                && kept <= MAX_PARTS
                && plan.passed_over.len() <= MAX_PARTS
                && plan.passed_over.iter().all(|why| why.len() <= MAX_WHY)
                && plan.refused.len() <= MAX_PARTS
                && plan.refused.iter().all(|(_, refusal)| refusal.fits())
        }
        Body::Repaired { failed, .. } => failed.as_ref().is_none_or(|why| why.len() <= MAX_WHY),
        Body::LengthAsk { .. }
        | Body::CopyKept { .. }
        | Body::ManifestAsk { .. }
        | Body::InventoryAsk
        | Body::Settle { .. }
        | Body::Settled { .. } => true,
    };
    if fits {
        return Ok(());
    }
    Err(Refused(format!(
        "a message from node {} is outside its limits; have the same release of gpuos on all nodes",
        message.from
    )))
}

fn is_question(question: &Question) -> bool {
    let end = question.offset.checked_add(question.length.into());
    question.length as usize <= MAX_PIECE
        && question.chunk <= MAX_SEGMENT
        && end.is_some_and(|end| end <= question.chunk)
}

fn is_report(report: &Report) -> bool {
    let facts = |facts: &Facts| facts.segments.len() <= MAX_SEGMENTS;
    let part = |part: &PartReport| {
        part.copies.len() <= MAX_HELD
            && part.shards.len() <= MAX_HELD
            && part.refused.iter().all(Refusal::fits)
            && part.own.iter().all(facts)
            && part.copies.iter().all(|(_, copy)| facts(copy))
    };
    report.parts.len() <= MAX_PARTS && report.parts.iter().all(part)
}

/// A sentence, cut to what a message may have.
pub(crate) fn short(mut why: String) -> String {
    let mut end = why.len().min(MAX_WHY);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    why.truncate(end);
    why
}

/// What a refusal means for a pull.
pub(crate) fn loss(damaged: bool) -> Loss {
    if damaged { Loss::Damaged } else { Loss::Absent }
}

/// Bytes, which are copied at once: a list of numbers would be read one by one.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

struct Copied;

impl Visitor<'_> for Copied {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
        Ok(Bytes(bytes.to_vec()))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        from.deserialize_bytes(Copied)
    }
}
