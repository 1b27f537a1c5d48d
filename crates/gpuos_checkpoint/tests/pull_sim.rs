//! Simulated makers of shards.
