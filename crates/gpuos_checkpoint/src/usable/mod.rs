//! Which checkpoint can be restored from what is left, and what can still be lost.
//!
//! A checkpoint is usable if for one attempt the manifests of all nodes are known and each segment that they refer to is there or
//! can be rebuilt. Whether a commit was recorded does not matter, except between two attempts of the same number: completeness
//! decides. Segments of earlier checkpoints count as those checkpoints' segments and are rebuilt from their shards, which takes the
//! same segments of the other members too.
//!
//! ```text
//!  checkpoint 12 ─► manifest of node 3 (there, or a copy) ─► segments 10, 12 of node 3
//!                                                                 │ gone
//!                                     stripe s of segment 10: chunks of the other members and parity: k of n are needed
//! ```

mod inventory;
mod judge;
pub(crate) mod words;

pub use inventory::{HeldPart, Inventory, ManifestFacts, NodeSet};
pub use judge::{Plan, Verdict, choose, judge};
