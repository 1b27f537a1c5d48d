//! What a place is worth to a job: the cost model.
//!
//! - [`Figures`](gpuos_model::figures::Figures): what one GPU of a node type can do and takes (data, per node type);
//! - [`Condition`]: how the node is now (power cap, temperature, health);
//! - [`Grant`]: memory for each GPU beyond what the GPU has, which is read over its link to the host;
//! - [`collective`]: time of NCCL's collectives from latency and bandwidth;
//! - [`Workload`]: what the job does with its time, from `--gpuos-profile`, its group shape, or
//!   [`History`] of the same user and job name;
//! - [`Objectives`]: what the administrator weighs;
//! - [`Scoring`]: what holds for one job, and [`Model::score`]: all of it in one whole number, with its
//!   parts. [`crate::plan::Planner::weigh`] turns scores into penalties of nodes.
//!
//! Everything is whole numbers: two machines that score the same place get the same number.

mod beyond;
pub mod collective;
mod condition;
mod history;
mod objectives;
mod score;
mod scoring;
mod workload;

pub use beyond::Grant;
pub use condition::Condition;
pub use history::{End, History, Record};
pub use objectives::{OBJECTIVES, Objective, Objectives};
pub use score::{Model, Part, Place, Score};
pub use scoring::{Scoring, percent_better, steps};
pub use workload::{Profile, Workload};

/// One whole, where parts are counted in thousandths.
pub const WHOLE: u32 = 1000;

#[cfg(test)]
mod tests;
