//! Slices of GPUs (MIG): what a GPU can be divided into, what jobs ask for, where it goes.
//!
//! - [`profile`]: the geometry of a kind of GPU, learned from its driver and checked;
//! - [`states`]: all that can stand on a GPU at once, as numbers and tables;
//! - [`request`]: `--gpuos-mig`, and which profile serves it.
//!
//! Everything is integer arithmetic: the same arrivals give the same choices on every machine.

pub mod profile;
pub mod request;
pub mod states;

pub use profile::{Geometry, GeometryError, Profile};
pub use request::{Item, MigRequest, Serves, Want};
pub use states::{NONE, Spot, State, States};
