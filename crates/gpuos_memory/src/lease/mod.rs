//! Who may have how much memory of a node, in which tier and when.
//!
//! One [`Broker`] for each node, as a step function: it is told what happened and answers what is to be done. Processes own their
//! memory, and the broker decides about leases of it. Times are in ms of a clock that only goes forward; the caller has it.

mod ask;
mod broker;
mod checkpointed;
mod config;
mod ids;
mod input;
mod ladder;
mod ledger;
mod links;
mod moves;
mod own;
mod reason;
mod record;
mod returns;
mod squeeze;
mod stopped;
mod times;
mod turns;
mod view;
mod working;

pub use broker::Broker;
pub use config::Config;
pub use ids::{AccountId, At, ClientId, GpuId, JobId, LinkId, MoveId, Refuge};
pub use input::{Demote, Effect, Granted, Input, JobSpec, Share, Supply};
pub use reason::{Ended, Notice, Refused, Requeued};
pub use record::{ClientRecord, Lease, NoRecord, Place, Record};
pub use view::{ClientView, GpuView, Tier, View};
