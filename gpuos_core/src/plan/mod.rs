//! Placement: which nodes and which GPUs in each, chosen together.
//!
//! [`Planner::plan`] is given the state of every candidate node and one
//! request, and answers with a [`Choice`] or with the reason why nothing fits.

mod types;

pub use types::*;
