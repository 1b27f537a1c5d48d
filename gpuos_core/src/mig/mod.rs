//! Slices of GPUs (MIG): what a GPU can be divided into, what jobs ask for, where it goes.
//!
//! - [`profile`]: the geometry of a kind of GPU, learned from its driver and checked;
//! - [`states`]: all that can stand on a GPU at once, as numbers and tables;
//! - [`request`]: `--gpuos-mig`, and which profile serves it;
//! - [`demand`]: the recent mix;
//! - [`pack`]: which GPU and which window an instance gets, and [`set`] which several of one job get;
//! - [`pool`]: the slices of a cluster as slurmctld sees them, bits that are taken or free;
//! - [`tile`](mod@tile): the instances of a job in the memory slices that Slurm gave it;
//! - [`repack`]: which instances would have to go so that one more fits, [`mod@evict`] which jobs so that several fit;
//! - [`claim`], [`reconcile`], [`carve`]: instances of one GPU as they are made and destroyed, and
//!   what is done after a crash.
//!
//! Everything is integer arithmetic: the same arrivals give the same choices on every machine.

pub mod carve;
pub mod claim;
pub mod demand;
pub mod evict;
mod kind;
pub mod pack;
pub mod pool;
pub mod profile;
pub mod reconcile;
pub mod repack;
pub mod request;
pub mod set;
pub mod states;
pub mod tile;

pub use claim::{Claim, Held, Phase, Shown, Window};
pub use demand::{CLASSES, Class, KINDS, NO_PROFILE, NODE_GPUS};
pub use kind::Kind;
pub use pack::{Gpu, Packer, Place};
pub use pool::{Ask, Pick, Pool};
pub use profile::{Geometry, GeometryError, Profile};
pub use request::{Item, MigRequest, Serves, Want};
pub use set::{Effort, MOST_STEPS};
pub use states::{NONE, Spot, State, States};
pub use tile::{Cut, tile};
