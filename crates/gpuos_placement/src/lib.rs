//! Where jobs go: the planner, what a place is worth, the network, gangs, who may run beside whom, how room is made, and the record of
//! all that was decided. It runs in slurmctld, in the command, in tests and in replays.
//!
//! - [`plan`]: the planner,
//! - [`fabric`] and [`traffic`]: the network as a graph, with routes and bandwidth, and what running gangs were promised on it,
//! - [`cost`]: what a place is worth to a job, in one number,
//! - [`gang`]: group shapes, rank order,
//! - [`fits`]: CPUs, memory and sockets of a node against a job,
//! - [`frag`]: what idle GPUs are worth, and which nodes are scarce,
//! - [`held`]: nodes on which checkpoints of a job lie,
//! - [`least`]: the fewest GPUs that a job is to be given, against what it was given,
//! - [`rules`]: who may run beside whom, and what is reserved,
//! - [`defrag`]: whom to preempt or move for a waiting gang,
//! - [`mig`]: slices of GPUs: what serves a request, and where it goes,
//! - [`switching`]: MIG-switchable GPUs: what of them counts as given for a job, and when one is offered,
//! - [`queue`]: one pass over jobs that wait, where somebody else than Slurm's scheduler decides,
//! - [`shards`]: which GPU a job with shards is offered,
//! - [`withhold`]: what is withheld from a job: GPUs that are out of service, nodes that have not registered,
//! - [`explain`]: notes, sentences, and the claims that sentences are made of,
//! - [`record`]: decisions as a ring of bytes that replays, and counters.
//!
//! Pure, as all of the core is: no I/O, no clock, no threads, no logging and no unsafe code.
#![forbid(unsafe_code)]

pub mod cost;
pub mod defrag;
pub mod explain;
pub mod fabric;
pub mod fits;
pub mod frag;
pub mod gang;
pub mod held;
pub mod least;
pub mod mig;
pub mod plan;
pub mod queue;
pub mod record;
pub mod rules;
pub mod shards;
pub mod switching;
pub mod traffic;
pub mod withhold;
