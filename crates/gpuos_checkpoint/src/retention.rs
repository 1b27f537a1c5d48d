//! Which checkpoints are kept.
