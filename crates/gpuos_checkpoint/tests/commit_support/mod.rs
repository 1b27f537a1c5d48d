//! A simulated job that makes checkpoints: its nodes, their disks, the network between them, and the truth about what can be restored.

pub mod disk;
mod lose;
pub mod truth;
pub mod words;
pub mod world;
