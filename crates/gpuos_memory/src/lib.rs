//! Memory of GPUs as tiers, as far as it is thinking.
//!
//! A job may use more memory than its GPU has: some of its extents then lie in host memory, where the GPU reads them in
//! place over the link, as slow as that is. Which ones, a policy decides.
//!
//! - [`trace`]: what a program does with its extents, as text; [`patterns`]: six such traces, made from a seed,
//! - [`policy`]: which extents stay in GPU memory: gpuos's own, and published ones beside it,
//! - [`staging`]: what is exchanged just before a program uses it, where it does what it did before,
//! - [`bound`]: the least that any policy can move, for a trace that is known beforehand,
//! - [`replay`]: a trace under a policy, and what went over the link.
//! - [`table`]: where each extent of a process is, and what may be done with it.
//! - [`link`]: which move goes over a link next,
//! - [`lease`]: which process of a node may have how much of which tier, and whose turn it is on a GPU,
//! - [`protocol`]: what a program and gpuosd say to each other about it,
//! - [`stow`]: what a program and gpuos_mover say to each other about what goes to NVMe,
//! - [`objects`]: objects of programs that say what they use, over three tiers.
//!
//! Pure: no I/O, no clock, no threads, no logging and no unsafe code.
#![forbid(unsafe_code)]

pub mod bound;
pub mod lease;
pub mod link;
pub mod objects;
pub mod patterns;
pub mod policy;
pub mod protocol;
pub mod replay;
pub mod staging;
pub mod stow;
pub mod table;
mod tape;
pub mod trace;
