//! What there is: nodes, their types, the fabric between them, sets of GPUs, what a GPU can be divided into. And the small things
//! that all crates above need: names, lists of hosts, readers of tables.
//!
//! - [`cluster`]: nodes, links, the fabric; [`gpuset`]: GPUs of one node; [`gpu_index`]: the numbers that a GPU has;
//!   [`node_gpu`]: which of them is meant,
//! - [`figures`]: what a GPU can do and takes,
//! - [`node_types`]: shipped ones (data in `data/`), tables of a site, and what Slurm itself knows,
//! - [`mig`]: what a kind of GPU can be divided into: geometry, states, placements,
//! - [`reading`]: tables of TOML: checked values, and mistakes with their place,
//! - [`messages`]: tables of what is said to those who act on it,
//! - [`words`] and [`screen`]: what users wrote: what is taken, and how it is harmless on screens and in logs,
//! - [`hostlist`], [`fnv`], [`rng`]: Slurm's lists of nodes, a hash, numbers from a seed.
//!
//! Pure, as all of the core is: no I/O, no clock, no threads, no logging and no unsafe code.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod figures;
pub mod fnv;
pub mod gpu_index;
pub mod gpuset;
pub mod hostlist;
pub mod messages;
pub mod mig;
pub mod node_gpu;
pub mod node_types;
pub mod reading;
pub mod rng;
pub mod screen;
pub mod words;
