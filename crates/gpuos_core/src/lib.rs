//! The life of a node, as far as it is thinking: what is done about faults, silent peers, processes that are not at home, limits and
//! slices of GPUs. Each is a step function: state and event in, effects out. gpuosd does what they say.
//!
//! - [`health`]: which fault means what, where each GPU stands, what is done about jobs; the shipped rules are data in `data/`,
//! - [`peers`]: which nodes of a job are silent: groups, quorums, promises, messages,
//! - [`isolation`]: processes and control groups against the plan,
//! - [`limits`]: power, clocks and MPS of jobs: what is set or started, and how it is undone,
//! - [`mig`]: slices as they are made and destroyed,
//! - [`job`]: a job by its id; [`made`]: what its record says of its checkpoints,
//! - [`step`]: a step of a job by its numbers,
//! - [`wire`]: what gpuosd and its clients say to each other.
//!
//! Pure: no I/O, no clock, no threads, no logging and no unsafe code. Callers read files and daemons, and hand text and state in.
#![forbid(unsafe_code)]

pub mod health;
pub mod isolation;
pub mod job;
pub mod limits;
pub mod made;
pub mod mig;
pub mod peers;
pub mod step;
pub mod wire;
