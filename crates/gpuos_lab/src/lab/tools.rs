//! The command `gpuos` in a lab.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::Lab;
use crate::daemons::TOOLS;
use crate::error::{Context, LabError};

impl Lab {
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
