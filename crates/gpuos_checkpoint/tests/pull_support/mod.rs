//! What the simulator of pulls consists of.

mod code;
mod world;

pub use world::{Due, Faults, Member, Sent, World};
