//! The thinking of gpuos, shared by the plugins, the command and the tests.
//!
//! Everything here is pure: no I/O, no clock, no threads, no logging and no
//! unsafe code. Callers read files and daemons, and hand text and state in.
#![forbid(unsafe_code)]

pub mod access;
pub mod config;
pub mod cost;
pub mod defrag;
pub mod explain;
pub mod fabric;
pub mod fits;
pub mod fnv;
pub mod frag;
pub mod gang;
pub mod gpuset;
pub mod health;
pub mod hostlist;
pub mod isolation;
pub mod limits;
pub mod mig;
pub mod model;
pub mod node_types;
pub mod options;
pub mod peers;
pub mod plan;
pub mod record;
pub mod rules;
pub mod screen;
pub mod site;
pub mod slurm_conf;
pub mod slurm_topology;
pub mod wire;
