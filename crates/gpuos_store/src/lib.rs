//! The store of checkpoints on a node's disk.
