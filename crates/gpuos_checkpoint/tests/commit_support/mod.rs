//! A simulated job that makes checkpoints: its nodes, their disks, the network between them, and the truth about what can be restored.

pub mod disk;
pub mod truth;
pub mod world;
