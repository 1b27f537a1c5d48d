//! Slices of GPUs (MIG): what jobs ask for, and where it goes.
//!
//! - [`request`]: `--gpuos-mig`, and which profile serves it;
//! - [`demand`]: the recent mix;
//! - [`pack`]: which GPU and which placement an instance gets, and [`set`] which several of one job get;
//! - [`pool`]: the slices of a cluster as slurmctld sees them, bits that are taken or free;
//! - [`offer`]: which nodes with placements a job is offered, and in which order;
//! - [`tile`](mod@tile): the instances of a job in the memory slices that Slurm gave it;
//! - [`mod@evict`]: which jobs would have to go so that all instances of one fit.
//!
//! Everything is integer arithmetic: the same arrivals give the same choices on every machine.

pub mod demand;
pub mod evict;
mod kind;
pub mod offer;
pub mod pack;
pub mod pool;
pub mod request;
pub mod set;
pub mod tile;

pub use demand::{CLASSES, Class, KINDS, NO_PROFILE, NODE_GPUS};
pub use kind::Kind;
pub use pack::{Gpu, Packer, Place};
pub use pool::{Ask, Pick, Pool};
pub use request::{Item, MigRequest, NotServed, Serves, Want};
pub use set::{Effort, MOST_STEPS};
pub use tile::{JobInstance, tile};
