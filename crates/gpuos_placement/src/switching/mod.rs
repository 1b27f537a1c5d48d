//! MIG-switchable GPUs: each is in GRES `gpu` as a whole and in GRES `gpuos` as slices, and is given in one of them at a time.
//!
//! Step functions for whoever carries the decisions out on Slurm's records: what a node shows goes in, which devices count as
//! given for the job at hand comes out, each with the reason.
//!
//! - [`gpu`]: one GPU: who has it, and which kind of job it served last,
//! - [`node`]: what a node shows of its GPUs, whether that is understood, and what it means for a job,
//! - [`marks`]: what counts as given in one call, what may be offered next, and when a forecast has it,
//! - [`waiting`]: whom that keeps waiting, as a sentence.
//!
//! A GPU of which anybody has a slice counts as given whole, and one that somebody has whole counts as given slice by slice.
//! Besides, as advice, an idle GPU that served the other kind of job last counts as given until it is offered: where its own
//! kind is not enough for a job that has waited, or there is no preemption left to be spared.

pub mod gpu;
pub mod marks;
pub mod node;
pub mod waiting;

pub use gpu::{Allocated, Gpu, GpuMode};
pub use marks::{Forecast, Mark, Marks, Why};
pub use node::{Asks, GresState, Job, Node, NodeState, Reading, served};
pub use waiting::{Candidate, Wait};
