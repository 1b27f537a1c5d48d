//! `gpuos wlm`: what Grid Engine, LSF and Torque call. What is decided is in `gpuos_wlm`; here are its files, pipes and processes.

mod filter;
mod gpus;
mod hardware;
mod held;
mod job;
mod saves;
mod sense;
mod store;
mod wrap;

use anyhow::Result;
use gpuos_host::Machine;

use crate::cli::{WlmArgs, WlmCommand};

/// Runs the verb; answers the exit code, which the workload manager acts on.
///
/// # Errors
/// What could not be done.
pub fn run(machine: &dyn Machine, args: &WlmArgs) -> Result<u8> {
    match &args.command {
        WlmCommand::SubmitFilter(args) => filter::run(args),
        WlmCommand::Sense(args) => sense::run(machine, args),
        WlmCommand::Prolog(args) => job::prolog(machine, args),
        WlmCommand::Epilog(args) => job::epilog(machine, args),
        WlmCommand::Wrap(args) => wrap::run(machine, args),
        WlmCommand::Gpus(args) => gpus::run(machine, args),
        WlmCommand::Ckpt(args) => saves::ckpt(args),
        WlmCommand::Restore(args) => saves::restore(args),
    }
}
