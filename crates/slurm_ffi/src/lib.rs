//! The only place that knows the structures of Slurm: layouts per release,
//! guarded entries, handles and Slurm's own functions.
//!
//! Nothing of Slurm is linked: functions are looked up at run time in the
//! daemon that loaded the plugin, and structures are read by the offsets of
//! the exact release ([`layout`]), after reads that cannot fault ([`mem`])
//! have shown that the offsets fit ([`check`]).
//!
//! - [`layout`] (the table in `data/`), [`release`], [`natural`] and [`sizes`] (what its rows say of sizes, and Slurm's allocator),
//! - [`mem`]: reads that cannot fault; [`check`]: self-check of live records; [`probe`]: records that Slurm's own functions make, in
//!   a child,
//! - [`handles`], [`nodes`], [`gres`], [`cores`], [`bits`], [`qos`], [`tenancy`], [`preempt`]: records, borrowed for one call; `field`: one field of them,
//! - [`needs`]: what a job needs beside GPUs; [`extra`]: a node's free text, read anew when it has changed,
//! - [`controller`]: slurmctld's job lock, for a thread; [`conf`]: where its configuration lives,
//! - [`guard`]: no panic crosses C; [`plugin`]: what every plugin exports; [`spank`] and [`gres_plugin`]: what these kinds share with Slurm,
//! - [`api`] and [`log`]: Slurm's functions, and its log.

#[cfg(panic = "abort")]
compile_error!("a panic has to stay catchable at the C boundary: build with panic = \"unwind\"");

pub mod api;
pub mod bits;
pub mod check;
pub mod conf;
pub mod controller;
pub mod cores;
pub mod extra;
mod field;
pub mod gres;
pub mod gres_plugin;
pub mod guard;
pub mod handles;
pub mod layout;
pub mod log;
pub mod mem;
mod messages;
pub mod natural;
pub mod needs;
pub mod nodes;
pub mod plugin;
pub mod preempt;
pub mod probe;
pub mod qos;
pub mod release;
pub mod sizes;
pub mod spank;
pub mod tenancy;
