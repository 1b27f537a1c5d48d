//! What a GPU can be divided into (MIG).
//!
//! - [`profile`]: the geometry of a kind of GPU, learned from its driver and checked;
//! - [`states`]: all that can stand on a GPU at once, as numbers and tables;
//! - [`MigPlacement`]: the memory slices of one instance.

mod placement;
pub mod profile;
pub mod states;

pub use placement::MigPlacement;
pub use profile::{Geometry, GeometryError, Profile};
pub use states::{NONE, Spot, State, States};
