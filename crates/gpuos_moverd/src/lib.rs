//! gpuos_mover: the daemon of a node that keeps and restores the checkpoints of its jobs.
//!
//! - [`options`] and [`run`] start it all; [`opening`]: the store, for one process at a time;
//! - [`handler`] answers clients on this node: slurmstepd and `gpuos ckpt`;
//! - [`registrar`] asks the workload manager whose jobs are here, and starts a thread for each: [`job`]; [`jobs`] lists them, [`event`] is what they
//!   are told, and [`left`] finds those that an earlier mover has served; `sweeper` removes what is kept of jobs that are over, some time after their end; [`launch`]: starts of a program on some of the job's nodes;
//! - [`ended`]: which jobs of the store are over; [`ends`]: when jobs will be ended, and the requeue of those that have saved before; [`domains`]: which nodes of a job fail together;
//! - [`folder`]: the folder by which a job's programs are spoken with;
//! - [`level3`]: the folder on a parallel file system, and [`keeper`], which looks after it, and `turns`: whose copy may use it;
//! - `audit`: what somebody has had done; [`journal`]: how long restarts and drills took;
//! - [`donor`]: parts for nodes of a job that the node which holds them is not one of any more;
//! - [`parked`]: memory of GPUs that jobs have parked on NVMe;
//! - [`network`]: links to the movers of other nodes, [`not_reached`]: why there is none, and [`carried`]: what goes over them.
//!
//! What is thought is in `gpuos_mover` (node, conductor, roster) and `gpuos_checkpoint`; the bytes are `gpuos_store`'s.

#![forbid(unsafe_code)]

mod audit;
pub mod carried;
mod clock;
pub mod domains;
pub mod donor;
pub mod ended;
pub mod ends;
pub mod event;
pub mod folder;
pub mod handler;
pub mod job;
pub mod jobs;
pub mod journal;
pub mod keeper;
pub mod launch;
pub mod left;
pub mod level3;
pub mod network;
pub mod not_reached;
pub mod opening;
pub mod options;
pub mod parked;
pub mod registrar;
pub mod run;
mod sweeper;
mod turns;

/// The daemon's release.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
