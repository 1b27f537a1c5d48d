//! Records of decisions: what the planner was asked, what it saw, what it answered.
//!
//! A [`Writer`] keeps them in a ring of fixed size in memory that its owner provides, in slurmctld
//! a file in memory that other programs can read meanwhile. Writing allocates nothing and makes
//! no system call. [`read`] makes a [`Recording`] of the bytes, whatever state they are in, and
//! [`Recording::replay`] asks the planner all questions again.
//!
//! The ring is a file of events: a node's state changed, the scheduler offers other nodes, the
//! planner was asked, the scheduler took or refused a choice, a gang uses the network. It is cut into [`SEGMENTS`] equal
//! segments, each of which begins with the whole state, so that the oldest one can be overwritten
//! and the others still replay. `ring` says how the bytes lie.
//!
//! What is *not* recorded is what can be had by asking again: the next best places and their
//! figures come from the planner, which has the same state in a replay.

mod bytes;
mod encode;
mod event;
mod model;
mod read;
mod replay;
mod ring;
mod tally;

pub use event::{Asked, By, Event, Gang, Outcome, Purpose, Run};
pub use read::{ReadError, Recording, Segment, read, tally};
pub use replay::{Counts, Step};
pub use ring::{Sizes, Writer};
pub use tally::Tally;

use gpuos_model::fnv::fnv;

/// Segments of a ring.
pub const SEGMENTS: usize = 8;

/// Models of the cluster that a ring keeps: nodes come and go, and the decisions before a change
/// are to replay too.
pub const MODELS: usize = 4;

/// Version of the form of the bytes. It changes with the events and with every type inside them.
pub const FORMAT: u32 = 7;

/// Where slurmctld keeps its ring: a file in memory, one for each folder of a slurm.conf.
/// A path on a disk would let slurmctld wait for the disk.
pub fn path(conf_folder: &str) -> String {
    let folder = conf_folder.trim_end_matches('/');
    let hash = fnv(folder.bytes());
    format!("/dev/shm/gpuos-{hash:016x}.ring")
}
