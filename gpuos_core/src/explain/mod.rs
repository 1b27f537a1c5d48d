//! Decisions in words: the note that a job carries, and the sentences that people read.

mod note;
mod sentence;

pub use note::{MAX_NOTE, NodeGpus, Note, beside, parse_gpus, without};
pub use sentence::{level_reached, sentence, why_wait};

#[cfg(test)]
mod tests;
