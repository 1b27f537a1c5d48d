//! What can go wrong with a lab, as sentences: what was tried, why it failed, what to do.

use std::fmt;
use std::io;

/// Why a lab could not be made or used.
#[derive(Debug)]
pub enum LabError {
    /// A lab needs root: device files, private mounts and jobs of other users.
    NotRoot,
    /// The machine forbids something that a lab needs, or cannot do it.
    Machine {
        /// What was tried and why it failed.
        what: String,
        /// What to do about it.
        fix: String,
    },
    /// A program or a plugin is not installed.
    Missing {
        /// The program, or the file of the plugin; several with ", " between them.
        program: String,
        /// What to do about it.
        fix: String,
    },
    /// The Slurm of a Debian suite cannot be had: no mirror, no network, a broken package.
    Suite {
        /// The suite, for example `trixie`.
        suite: String,
        /// What was tried and why it failed.
        what: String,
        /// What to do about it.
        fix: String,
    },
    /// The specification asks for something impossible.
    Spec(String),
    /// A lab of that name is up.
    InUse(String),
    /// There is no lab of that name.
    NotFound(String),
    /// A daemon of the lab did not start, or ended.
    Daemon {
        /// Which one: `munged`, `slurmctld` or `slurmd NODE`.
        daemon: String,
        /// What happened.
        what: String,
        /// The end of its log.
        log: String,
    },
    /// Nodes did not become idle in time.
    NotReady {
        /// How long the lab waited, in seconds.
        seconds: u64,
        /// What sinfo says of the nodes.
        states: String,
        /// The end of slurmctld's log.
        log: String,
    },
    /// A command inside the lab failed.
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// What it wrote to standard error.
        stderr: String,
    },
    /// The operating system refused something.
    Io {
        /// What was tried.
        what: String,
        /// Its answer.
        source: io::Error,
    },
}

impl LabError {
    /// True when this machine, its mirror or a package is to blame, and not the lab or gpuos:
    /// a test reports such an error and is skipped.
    pub fn is_environment(&self) -> bool {
        matches!(
            self,
            LabError::NotRoot
                | LabError::Machine { .. }
                | LabError::Missing { .. }
                | LabError::Suite { .. }
        )
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabError::NotRoot => f.write_str(
                "a lab needs root (device files, daemons that start jobs as other users): run it as root, for example with sudo",
            ),
            LabError::Machine { what, fix } => write!(f, "{what}: {fix}"),
            LabError::Missing { program, fix } => {
                // Slurm's plugins are called as Slurm loads them, libraries begin with `lib`.
                let mut all = program.split(", ");
                let plugins = all.all(|one| one.ends_with(".so") && !one.starts_with("lib"));
                let (what, are) = match (plugins, program.contains(", ")) {
                    (true, false) => ("plugin", "is"),
                    (true, true) => ("plugins", "are"),
                    (false, true) => ("files", "are"),
                    (false, false) if program.ends_with(".so") => ("library", "is"),
                    (false, false) => ("program", "is"),
                };
                write!(f, "the {what} {program} {are} not installed: {fix}")
            }
            LabError::Suite { suite, what, fix } => {
                write!(f, "Slurm of Debian {suite} cannot be had: {what}: {fix}")
            }
            LabError::Spec(text) => f.write_str(text),
            LabError::InUse(name) => write!(
                f,
                "a lab named {name} is up: end it with `gpuos lab down --name {name}`, or take another name with --name"
            ),
            LabError::NotFound(name) => write!(
                f,
                "there is no lab named {name}: `gpuos lab list` shows those that are up, `gpuos lab up --name {name}` makes it"
            ),
            LabError::Daemon { daemon, what, log } => {
                write!(f, "{daemon} {what}; the end of its log:\n{}", log.trim_end())
            }
            LabError::NotReady { seconds, states, log } => write!(
                f,
                "the nodes were not idle after {seconds} s: {}; the end of slurmctld's log:\n{}",
                states.trim_end(),
                log.trim_end()
            ),
            LabError::Command { command, status, stderr } => {
                write!(f, "`{command}` failed ({status}): {}", stderr.trim_end())
            }
            LabError::Io { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for LabError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LabError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Adds to an I/O error what was tried.
pub(crate) trait Context<T> {
    /// Turns the error into [`LabError::Io`] with this text in front.
    fn context(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|source| LabError::Io {
            what: what(),
            source,
        })
    }
}
