//! PBS as gpuos sees it. Nothing is run or read in here: texts come in, texts go out.
//!
//! - [`hook`]: an event of a hook as JSON, and what PBS is to do about it,
//! - [`state`]: nodes and jobs by what `pbsnodes` and `qstat` print,
//! - [`pass`]: where waiting jobs go,
//! - [`pbs_conf`]: what PBS runs with,
//! - [`links`]: GPUs of a host that are linked, by the sets that they are in,
//! - [`published`]: what a host shows of its GPUs,
//! - [`sched_config`]: which resources pbs_sched looks at,
//! - [`units`]: sizes and times as PBS writes them.

#![forbid(unsafe_code)]

pub mod hook;
pub mod links;
pub mod pass;
pub mod pbs_conf;
pub mod published;
pub mod sched_config;
pub mod state;
pub mod units;
