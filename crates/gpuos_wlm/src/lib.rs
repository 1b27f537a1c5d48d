//! Grid Engine, LSF and Torque as gpuos sees them. Nothing is run or read in here: texts come in, texts go out.
//!
//! - [`ask`]: what a job says to gpuos, by the words and sentences of sbatch's options,
//! - [`host`]: the GPUs of a host, and which of them a job is given,
//! - [`journal`]: who has which GPUs of a host, as files of root's,
//! - [`start`]: what comes of a job that is about to start,
//! - [`sense`]: what a host reports,
//! - [`gridengine`]: what Grid Engine says of a job, and its protocol at submission,
//! - [`batch`]: LSF and Torque: which GPUs they gave, where a job saves,
//! - [`lsf`] and [`torque`]: what a job says to gpuos by the options of bsub and qsub,
//! - [`saves`]: checkpoints that a program makes when it is asked to.

#![forbid(unsafe_code)]

pub mod ask;
pub mod batch;
pub mod gridengine;
pub mod host;
pub mod journal;
pub mod lsf;
mod refused;
pub mod saves;
pub mod sense;
pub mod start;
pub mod torque;
