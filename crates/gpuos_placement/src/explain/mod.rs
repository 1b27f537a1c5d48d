//! Decisions in words: the note that a job carries, and the sentences that people read.

mod claim;
mod held;
mod note;
mod offered;
mod sentence;
mod service;
mod slices;
mod value_gain;

pub use claim::{Claim, Unavailable, have};
pub use held::held_sentence;
pub use note::{Held, MAX_NOTE, NodeGpus, Note, ValueGain, beside, parse_gpus, without};
pub use offered::{Asked, Refusal};
pub use sentence::{level_reached, sentence, why_wait, why_wait_on};
pub use service::out_of_service;
pub use slices::{InstanceAt, no_slices, other_kind, slices_of_job, slices_sentence};
pub use value_gain::value_sentence;

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;
