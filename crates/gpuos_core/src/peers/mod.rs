//! Which nodes of a job are silent, as a step function: `step(state, settings, event, now) -> effects`.
//!
//! Every gpuosd pings a few nodes of each job of several nodes that runs on its own, and answers pings of all. A
//! node that is not heard for a while is looked into: more pings, and a look at its slurmd, for a daemon that
//! ended is no node that ended. Meanwhile other nodes of the job are asked to look for themselves. Only when a
//! quorum of them finds the same, and nobody the contrary, the node counts as silent ([`Effect::Silent`]), and
//! slurmctld can be asked to act; it alone decides.
//!
//! **Two halves never act against each other.** Quorums of one job have a node in common ([`Group::is_quorum`]),
//! and every node that takes a side keeps to it for [`HOLD_MS`] ([`Promises`]): after it has said for A that B is gone,
//! it says nothing for B and nothing against A. So no node is both who asks and who is asked about within that time.

mod group;
mod message;
mod promise;
mod settings;
mod state;
mod step;

pub use group::Group;
pub use message::{Body, Datagram, MAX_DATAGRAM, Word};
pub use promise::{HOLD_MS, Promises};
pub use settings::{Act, HeartbeatConfig};
pub use state::{PeerState, PeerView, Peers};
pub use step::{Effect, Event, ManagerAnswer, step};
