//! How often a checkpoint pays.
