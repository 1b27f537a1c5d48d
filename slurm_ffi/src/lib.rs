//! The only place that knows the structures of Slurm: layouts per release,
//! guarded entries, handles and Slurm's own functions.
//!
//! Nothing of Slurm is linked: functions are looked up at run time in the
//! daemon that loaded the plugin, and structures are read by the offsets of
//! the exact release ([`layout`]), after reads that cannot fault ([`mem`])
//! have shown that the offsets fit ([`check`]).

#[cfg(panic = "abort")]
compile_error!("a panic has to stay catchable at the C boundary: build with panic = \"unwind\"");

pub mod api;
pub mod bits;
pub mod check;
pub mod conf;
pub mod controller;
pub mod cores;
pub mod extra;
pub mod gres;
pub mod gres_plugin;
pub mod guard;
pub mod handles;
pub mod layout;
pub mod log;
pub mod mem;
pub mod natural;
pub mod needs;
pub mod nodes;
pub mod plugin;
pub mod probe;
pub mod qos;
pub mod release;
pub mod sizes;
pub mod spank;
pub mod tenancy;
