//! How a daemon starts: its flags, and its page for `man`.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};
use gpuos_host::{ThisMachine, host_name};

/// A workload manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Workload {
    /// Slurm.
    #[default]
    Slurm,
    /// PBS, on the host of a pbs_mom.
    Pbs,
}

/// Flags of a daemon.
pub trait Flags: Parser {
    /// Whether the man page is wanted instead.
    fn is_for_man(&self) -> bool;
}

/// The flags that this process was started with.
///
/// # Errors
/// How the process ends: help, the version or the man page was asked for and is printed, or the usage is wrong, which was said.
pub fn flags<F: Flags>() -> Result<F, ExitCode> {
    let flags = F::try_parse().map_err(|e| {
        let _ = e.print();
        let asked = matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        ExitCode::from(if asked { 0 } else { 2 })
    })?;
    if !flags.is_for_man() {
        return Ok(flags);
    }
    let page = clap_mangen::Man::new(F::command())
        .section("8")
        .manual("gpuos");
    let printed = page.render(&mut std::io::stdout());
    Err(ExitCode::from(u8::from(printed.is_err())))
}

/// Slurm's name of this node: the one that was given, or the host's name up to the first dot.
pub fn node_name(given: Option<&str>) -> String {
    let given = given.filter(|name| !name.is_empty());
    given.map_or_else(
        || host_name(&ThisMachine).unwrap_or_default(),
        str::to_string,
    )
}
