//! What the fuzz targets do with their input.

pub mod checkpoints;
pub mod targets;
