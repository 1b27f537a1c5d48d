//! `gpuos ckpt`: checkpoints of jobs, as gpuos_mover of the job's nodes tells of them.
//!
//! - [`mover`]: one gpuos_mover, here or on another node,
//! - [`find`]: which of them have something of a job,
//! - [`list`], [`show`], [`now`], [`restart`], [`drill`], [`drills`], [`report`], [`keep`]: the subcommands,
//! - [`before`]: checkpoints of jobs that an administrator is about to end,
//! - [`brief`]: what `gpuos why` says of them,
//! - [`wait`]: what becomes of a checkpoint that was asked for,
//! - [`words`]: times, sizes and phases for people.

pub mod before;
pub mod brief;
mod by_pbs;
mod drill;
mod drills;
mod find;
mod keep;
mod list;
mod mover;
pub mod now;
mod recorded;
mod report;
mod restart;
mod show;
mod wait;
mod words;

pub use mover::unstored;

use anyhow::Result;
use gpuos_host::Machine;

use crate::cli::{CkptArgs, CkptCommand};
use crate::reply::Reply;

pub fn run(machine: &dyn Machine, args: &CkptArgs) -> Result<Reply> {
    match &args.command {
        CkptCommand::List(args) => list::run(machine, args),
        CkptCommand::Show(args) => show::run(machine, args),
        CkptCommand::Now(args) => now::run(machine, args),
        CkptCommand::Restart(args) => restart::run(machine, args),
        CkptCommand::Drill(args) => match &args.job {
            Some(job) => drill::run(machine, args, job),
            None => drills::run(machine, args),
        },
        CkptCommand::Report(args) => report::run(machine, args),
        CkptCommand::Verify(args) => keep::verify(machine, args),
        CkptCommand::Prune(args) => keep::prune(machine, args),
    }
}
