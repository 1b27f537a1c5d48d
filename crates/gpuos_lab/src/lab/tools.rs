//! Commands in a lab: Slurm's, which are waited for, and `gpuos`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::Lab;
use crate::daemons::TOOLS;
use crate::error::{Context, LabError};
use crate::sys::PidFd;

/// How long a command may take to end in order.
const ENDS: Duration = Duration::from_secs(5);

impl Lab {
    /// Runs a command in the lab and returns what it wrote to standard output.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String, LabError> {
        let out = self.output(program, args)?;
        if out.status.success() {
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        } else {
            Err(LabError::Command {
                command: format!("{program} {}", args.join(" ")),
                status: out.status.to_string(),
                stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
            })
        }
    }

    /// Runs a command in the lab, whatever it returns.
    pub fn output(&self, program: &str, args: &[&str]) -> Result<Output, LabError> {
        let mut command = self.daemons().question(program)?;
        command
            .args(args)
            .output()
            .context(|| format!("cannot run {program} in lab {}", self.name()))
    }

    /// The same with an end: a command that takes longer than `limit` is ended, in order, and 5 s later whatever it does.
    pub fn output_within(
        &self,
        program: &str,
        args: &[&str],
        limit: Duration,
    ) -> Result<Output, LabError> {
        let what = || format!("cannot run {program} in lab {}", self.name());
        let mut command = self.daemons().question(program)?;
        let child = command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(what)?;
        let process = PidFd::open(child.id()).context(what)?;
        let (running, ended) = channel::<()>();
        thread::spawn(move || {
            for (wait, signal) in [(limit, libc::SIGTERM), (ENDS, libc::SIGKILL)] {
                if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                let _ = process.signal(signal);
            }
        });
        let out = child.wait_with_output().context(what);
        drop(running);
        out
    }

    /// Copies the command `gpuos` into the lab where it is what makes the lab: `gpuos lab sh` has it on PATH then, in the
    /// root of a suite too, and a later build does not change it.
    pub(super) fn place_command(&self) -> Result<(), LabError> {
        let tools = self.record.path(TOOLS);
        fs::create_dir_all(&tools).context(|| format!("cannot make {}", tools.display()))?;
        let own = std::env::current_exe().ok();
        let own = own.filter(|own| own.file_name().is_some_and(|name| name == "gpuos"));
        let Some(own) = own else { return Ok(()) };
        // Another process copies: see the simulated GPUs' programs.
        let copied = Command::new("cp")
            .arg("--")
            .arg(&own)
            .arg(tools.join("gpuos"))
            .status();
        match copied {
            Ok(status) if status.success() => Ok(()),
            other => Err(LabError::Machine {
                what: format!(
                    "cannot copy {} into {}: {other:?}",
                    own.display(),
                    tools.display()
                ),
                fix: "see that there is room for it".to_string(),
            }),
        }
    }

    /// The command `gpuos` that made the lab, as it was then; `None` where another program made it.
    pub fn own_command(&self) -> Option<PathBuf> {
        Some(self.record.path(TOOLS).join("gpuos")).filter(|path| path.is_file())
    }
}
