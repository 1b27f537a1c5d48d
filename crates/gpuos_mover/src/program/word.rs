//! What conductors say to each other. Everything is bounded, and checked when it comes.

use std::collections::BTreeSet;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::refusal::MAX_SAID;
use serde::{Deserialize, Serialize};

use super::start::{Join, Reason, Start};
use super::types::{Known, Refused as Refusal};
use crate::message::Refused;

/// The most bytes of a word: some lists of as many ranks as can be.
pub const MAX_WORD: usize = 4 << 20;

/// Ranks in a list at most: as many as a program has.
const MAX_RANKS: usize = u16::MAX as usize;

/// Bytes of a sentence at most; own choice.
pub(super) const MAX_WHY: usize = 1000;

/// A word. Whoever carries it vouches for who says it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Word {
    run: u32,
    body: Body,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Body {
    /// To the leader: all that a node knows.
    Report { version: u64, report: Box<Report> },
    /// Of the leader: the report was heard up to this version.
    Heard { version: u64 },
    /// Of the leader: all that a node is to do. That it was heard is in the report.
    Orders { version: u64, orders: Box<Orders> },
}

/// What the leader has to know of a node.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// The version of the orders that were heard.
    pub(super) heard: u64,
    /// Its restart is over.
    pub(super) ready: bool,
    /// Whose folders it has of the checkpoint to be restored: rank and number of ranks.
    pub(super) holds: Option<(CheckpointId, Vec<(u16, u16)>)>,
    /// The newest join of each rank, by rank.
    pub(super) joins: Vec<Join>,
    /// Those of them whose processes have ended.
    pub(super) gone: Vec<Join>,
    /// [`Orders::look`] as it was heard before the folder was looked at last.
    pub(super) looked: u64,
    /// Those that can begin from the files of any number of ranks, and whether they need all in any case.
    pub(super) any: Vec<(Join, bool)>,
    /// What was answered and asked here, also before this conductor began. Complete before `ready`.
    pub(super) known: Known,
    /// A rank here could not load what it was given.
    pub(super) refused: Option<Refusal>,
    /// Ranks whose files for a number are complete.
    pub(super) saved: Option<(u32, BTreeSet<u16>)>,
    /// How often a checkpoint was wanted here in this run.
    pub(super) asked: u32,
    /// How often one was wanted for the end of the job.
    pub(super) ends: u32,
}

/// What a node has to know of the leader.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// Counts the epochs of the program.
    pub(super) epoch: u64,
    /// How many joins the leader had taken when all had joined: it wants to know who of them lives.
    pub(super) look: u64,
    /// The answers to this node's joins.
    pub(super) answers: Vec<(Start, Vec<Join>)>,
    /// The checkpoint that is wanted.
    pub(super) ask: Option<Asked>,
    /// The last one that has ended, and how.
    pub(super) ended: Option<(u32, Result<(), String>)>,
    /// What became of the one that was open on this node when the leader began ([`Known::open`]).
    pub(super) settled: Option<(u32, Result<(), String>)>,
    /// A checkpoint that was refused, by a rank of this node. These orders are the last.
    pub(super) refused: Option<(CheckpointId, NodeIndex, Refusal)>,
}

/// A checkpoint that is wanted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) number: u32,
    pub(super) reason: Reason,
    /// The joins of this node of whose processes it is made.
    pub(super) joins: Vec<Join>,
}

impl Word {
    pub(super) fn new(run: u32, body: Body) -> Word {
        Word { run, body }
    }

    /// What it says.
    ///
    /// # Errors
    /// It is of another run of the job, or breaks a limit.
    pub(super) fn open(self, run: u32) -> Result<Body, Refused> {
        if self.run != run {
            return Err(Refused(format!(
                "a word of run {} of the job came, this is run {run}; it is late, or restart the node",
                self.run
            )));
        }
        check(&self.body)?;
        Ok(self.body)
    }

    /// The bytes of a word.
    pub fn encode(&self) -> Vec<u8> {
        // Writing plain data to memory does not fail; empty bytes would be refused where they arrive.
        postcard::to_extend(self, Vec::new()).unwrap_or_default()
    }

    /// Reads a word that came. The conductor refuses one of another run.
    ///
    /// # Errors
    /// It is no word, or breaks a limit.
    pub fn decode(bytes: &[u8]) -> Result<Word, Refused> {
        if bytes.len() > MAX_WORD {
            return Err(Refused(format!(
                "a word of {} bytes came, {MAX_WORD} can be; look who sends it",
                bytes.len()
            )));
        }
        match postcard::take_from_bytes::<Word>(bytes) {
            Ok((word, [])) => check(&word.body).map(|()| word),
            _ => Err(Refused(
                "bytes came that are no word; have the same release of gpuos on all nodes".into(),
            )),
        }
    }
}

fn check(body: &Body) -> Result<(), Refused> {
    let fits = match body {
        Body::Heard { .. } => true,
        Body::Report { report, .. } => {
            let held = report.holds.iter().flat_map(|(_, held)| held);
            let answered = &report.known.answered;
            is_joins(&report.joins)
                && is_joins(&report.gone)
                && report.any.len() <= MAX_RANKS
                && report.any.iter().all(|(join, _)| join.rank < join.size)
                && answered.len() <= MAX_RANKS
                && report.refused.iter().all(is_refusal)
                && answered.iter().all(|it| it.join.rank < it.join.size)
                && held.clone().count() <= MAX_RANKS
                && held.clone().all(|(rank, size)| rank < size)
        }
        Body::Orders { orders, .. } => {
            let answered: usize = orders.answers.iter().map(|(_, joins)| joins.len()).sum();
            let ended = orders.ended.iter().chain(&orders.settled);
            let whys = ended.filter_map(|(_, outcome)| outcome.as_ref().err());
            let whys = whys.chain(orders.answers.iter().filter_map(|(start, _)| match start {
                Start::Failed(why) => Some(why),
                _ => None,
            }));
            let all_held = |start: &Start| match start {
                Start::All { holders, .. } => holders.len() <= MAX_RANKS,
                _ => true,
            };
            answered <= MAX_RANKS
                && orders.answers.iter().all(|(start, _)| all_held(start))
                && orders.answers.len() <= MAX_RANKS
                && orders.answers.iter().all(|(_, joins)| is_joins(joins))
                && orders.ask.iter().all(|ask| is_joins(&ask.joins))
                && orders.refused.iter().all(|(_, _, by)| is_refusal(by))
                && whys.map(String::len).all(|length| length <= MAX_WHY)
        }
    };
    if fits {
        return Ok(());
    }
    Err(Refused(
        "a word is outside its limits; have the same release of gpuos on all nodes".into(),
    ))
}

fn is_refusal(by: &Refusal) -> bool {
    by.join.rank < by.join.size && by.said.len() <= MAX_SAID
}

fn is_joins(joins: &[Join]) -> bool {
    joins.len() <= MAX_RANKS && joins.iter().all(|join| join.rank < join.size)
}

/// A sentence, cut to what a word may have.
pub(super) fn short(why: String) -> String {
    within(&why, MAX_WHY).into()
}

/// The begin of a text, so many bytes at most.
pub(super) fn within(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
