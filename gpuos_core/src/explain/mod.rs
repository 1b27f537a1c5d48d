//! Decisions in words: the note that a job carries, and the sentences that people read.

mod note;
mod sentence;
mod service;
mod slices;
mod worth;

pub use note::{MAX_NOTE, NodeGpus, Note, Worth, beside, parse_gpus, without};
pub use sentence::{level_reached, sentence, why_wait};
pub use service::out_of_service;
pub use slices::{no_slices, other_kind, slices_sentence};
pub use worth::worth_sentence;

#[cfg(test)]
mod tests;
