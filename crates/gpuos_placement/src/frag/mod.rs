//! What the idle part of a node is worth for the jobs that come, and the choice of a node by it.
//!
//! Two measures of a node's state are here:
//!
//! - [`Fragmentation`]: `F_n(M)`, the published one (Weng et al., "Beware of Fragmentation:
//!   Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023):
//!   how much of the idle GPUs a typical job cannot use, one job at a time.
//! - [`FillValue`]: how much of the idle GPUs will be used if jobs of the typical mix go on
//!   arriving until nothing fits. This counts cores and memory that the jobs on the way take as
//!   well, which the first measure does not see. It is the default.
//!
//! A placement costs what the node loses beyond the GPUs that the job takes: the gradient. Both
//! measures take a [`Mix`], which is given or learned from arrivals. The second one has a price
//! besides ([`prices`]) for GPUs of nodes that other jobs depend on.
//!
//! [`Cluster`] and [`Chooser`] hold nodes and the score of each for each class of request, so
//! that a decision looks anew only at nodes that have changed. The planner has a value of its own,
//! for whole GPUs and with the links inside a node, by the same idea: [`Learner`] counts the mix
//! for it, and [`crate::plan::Planner::learn`] takes it.
//!
//! Everything is integer arithmetic: the same arrivals give the same choices on every machine.

mod choose;
mod cluster;
mod fill;
mod fragmentation;
mod learn;
mod mix;
mod request;
mod scarcity;

pub use choose::{Choice, Chooser, Score};
pub use cluster::{Cluster, Node};
pub use fill::FillValue;
pub use fragmentation::{Fragmentation, WEIGHT_UNIT};
pub use learn::{Expected, Learner, Share, WEIGHTS};
pub use mix::{Class, MAX_CLASSES, Mix};
pub use request::{MAX_DEVICES, MILLI, Request, Slot, State};
pub use scarcity::{Demand, MAX_KINDS, PRICE_PERCENT, PRICE_UNIT, Prices, Supply, prices};
