//! What PBS has, and what waiting jobs ask of it.
//!
//! - [`json`]: the form in which PBS prints,
//! - [`nodes`] and [`jobs`]: what `pbsnodes` and `qstat` print,
//! - [`site`]: all of it joined with gpuos.toml into the planner's model,
//! - [`fresh`]: whether what was planned still holds,
//! - [`scope`]: which hosts a job can use,
//! - [`wanted`]: from a job to the planner's request.

pub mod fresh;
pub mod jobs;
pub mod json;
pub mod nodes;
pub mod scope;
pub mod site;
pub mod wanted;

pub use jobs::Job;
pub use site::{Site, Texts};
