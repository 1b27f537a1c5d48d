//! What runs on this host, as ps tells.

use std::time::Duration;

use gpuos_host::Machine;

/// How long ps may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A process.
pub struct Process {
    pub pid: u32,
    /// Its program and what that was called with.
    pub line: String,
}

impl Process {
    /// The name of its program, without the folder.
    pub fn program(&self) -> &str {
        let first = self.line.split_whitespace().next().unwrap_or_default();
        first.rsplit('/').next().unwrap_or_default()
    }
}

/// The processes that are shown: others' may be hidden. `None`: ps is missing.
pub fn shown(machine: &dyn Machine) -> Option<Vec<Process>> {
    let told = machine.run_within(PATIENCE, "ps", &["-eo", "pid=,args="]);
    let told = told.ok().filter(|told| told.ok)?;
    let process = |line: &str| {
        let (pid, line) = line.trim_start().split_once(' ')?;
        Some(Process {
            pid: pid.parse().ok()?,
            line: line.trim().to_owned(),
        })
    };
    Some(told.stdout.lines().filter_map(process).collect())
}

/// All processes. `None`: others' are hidden, as the first one is then, or ps is missing.
pub fn all(machine: &dyn Machine) -> Option<Vec<Process>> {
    shown(machine).filter(|all| all.iter().any(|one| one.pid == 1))
}
