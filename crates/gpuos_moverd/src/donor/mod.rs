//! Parts of checkpoints for nodes of a job that the node which holds them does not belong to any more.
//!
//! - `words`: what is asked and answered, over a link that is of no job;
//! - [`serve`]: the node that holds parts; it asks the workload manager whose job it is that wants them, and whether it runs where it
//!   is asked from;
//! - [`patient`]: how long a node is tried;
//! - [`client`]: the node that wants them. It trusts nothing of what comes: all of it is held against the job's keys.

pub mod client;
pub mod patient;
pub mod serve;
mod words;

pub use words::{Answer, Ask, Holding, Shard};
