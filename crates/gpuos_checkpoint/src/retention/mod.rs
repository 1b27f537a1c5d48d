//! Which checkpoints are kept on a node, and in which order the others are removed.
//!
//! Kept are the newest ones of each level, pinned ones, those that are read or made, and all segments that their manifests refer to.
//! A manifest may refer to segments of earlier checkpoints, and to rebuild such a segment of one node takes the same segment of the
//! other members of its set. So [`Holding::needs`] is the union over the members of the set, not over this node's files.
//!
//! **Order.** First all manifests, then a barrier (the removals are durable), then segments and shards. After a crash in between
//! there may be segments without a manifest, which the next plan removes, and never a manifest without its segments.

mod plan;
mod room;

pub use plan::{Holding, Policy, Removal, Stage, plan};
pub use room::{Room, room};
