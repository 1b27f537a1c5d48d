//! What a GPU can be divided into (MIG).
//!
//! - [`profile`]: the geometry of a kind of GPU, learned from its driver and checked;
//! - [`states`]: all that can stand on a GPU at once, as numbers and tables;
//! - [`Window`]: the memory slices of one instance.

pub mod profile;
pub mod states;
mod window;

pub use profile::{Geometry, GeometryError, Profile};
pub use states::{NONE, Spot, State, States};
pub use window::Window;
