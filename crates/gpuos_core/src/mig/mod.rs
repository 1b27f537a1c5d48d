//! Slices of a GPU (MIG) as they are made and destroyed, and what is done after a crash: [`claim`], [`reconcile`], [`carve`].

pub mod carve;
pub mod claim;
pub mod reconcile;

pub use claim::{Claim, JobPlacement, Phase, Shown};
