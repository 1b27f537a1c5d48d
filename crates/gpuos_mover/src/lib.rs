//! What one node does for the checkpoints of a job, as a loop without sockets, clock and threads: what comes in is a message, a
//! wish of the program, or time; what comes out is what to send and to tell.
//!
//! - [`node`]: the node, which holds all else together,
//! - [`settings`]: its place in the job and its limits; [`output`]: what it has to say,
//! - [`message`]: what nodes say to each other, and what is refused,
//! - [`roster`]: which index and which set each node has; [`donors`]: what they take from nodes that the job has no more,
//! - [`hosts`]: which nodes host the parts of a checkpoint that was made by another number of nodes, and [`hosting`]: how they make it whole,
//! - [`program`]: when the job's program starts, from what, and when it saves.
//!
//! ```text
//!  one part:    ingest ─► lengths of the set ─► parity shards by pull ─► manifest ─► copies ─► prepared
//!  a restart:   inventories ─► which checkpoint (gpuos_checkpoint::usable) ─► parts that are lost are made again ─► adopted
//! ```
//!
//! **Copies of manifests.** A set of `m` parity shards survives the loss of any `m` nodes only if the manifest of each node does,
//! so the `m` nodes to the right of a node in its set keep it, not the first one only.
//!
//! **Memory.** One shard is made at a time: `window * k * piece` bytes of answers, and [`PIECE`](gpuos_store::shard::PIECE) bytes to
//! be written. An answer to another node takes one piece and one `PIECE`. Manifests are moved as a whole, one for each node that
//! keeps it: `m` times up to [`MAX_MANIFEST`](gpuos_checkpoint::manifest::MAX_MANIFEST).
//!
//! **Trust.** Nodes of a job trust what a node of their set sends of its own segment when parity is made, as nothing describes it
//! yet; whoever carries messages keeps them from being changed and vouches for the sender. What is made again is held against
//! the keyed digests of its manifest before it counts.
//!
//! **Old checkpoints** are removed after a commit; each node decides which by itself, from what all know alike.
//!
//! **Left to the caller**: that a node which restarts does so in a new run of the job.
//!
//! The code blocks on the disk. Nothing here has a clock, a thread or a socket.
#![forbid(unsafe_code)]

pub mod donors;
pub mod hosting;
pub mod hosts;
mod inventory;
mod keeping;
mod local;
pub mod message;
pub mod node;
pub mod output;
mod part;
pub mod program;
mod pulling;
mod rebuild;
mod restart;
pub mod roster;
mod serve;
pub mod settings;
