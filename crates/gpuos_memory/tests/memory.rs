//! Tests of the memory of GPUs, as far as it is thinking.

mod bound;
mod lease;
mod lease_away;
mod lease_checkpointed;
mod lease_feed;
mod lease_kills;
mod lease_nvme;
mod lease_pressure;
mod lease_short;
mod lease_sim;
mod lease_stopped;
mod lease_storm;
mod lease_support;
mod lease_turns;
mod lease_working;
mod link;
mod objects;
mod objects_program;
mod policies;
mod protocol;
mod staging;
mod stow;
mod table;
mod trace;
