//! gpuos.toml as a file: where it is looked for, and what is in it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gpuos_config::gpuos_toml::Config;

use crate::Machine;

/// Where gpuos.toml is looked for: `given`, `$GPUOS_CONF`, or the folder of the workload manager's files; and whether it was named.
fn path(machine: &dyn Machine, given: Option<&Path>, folder: &Path) -> (PathBuf, bool) {
    match (given, machine.env("GPUOS_CONF")) {
        (Some(path), _) => (path.to_path_buf(), true),
        (None, Some(path)) => (path.into(), true),
        (None, None) => (folder.join("gpuos.toml"), false),
    }
}

/// gpuos.toml: that which `given` or `$GPUOS_CONF` names, else the one in `folder`, which is asked for only then. `None`: nobody says
/// which folder that is.
///
/// # Errors
/// A named file cannot be read, or the file has a mistake.
pub fn found(
    machine: &dyn Machine,
    given: Option<&Path>,
    folder: impl FnOnce() -> Option<PathBuf>,
) -> Result<Option<Config>> {
    let (_, named) = path(machine, given, Path::new(""));
    let folder = match named {
        true => PathBuf::new(),
        false => match folder() {
            Some(folder) => folder,
            None => return Ok(None),
        },
    };
    Ok(Some(read(machine, given, &folder)?.1))
}

/// The file in `folder`, or the one that is named instead, and what is in it. A file that nobody named may be missing: then all is at its
/// default.
///
/// # Errors
/// A named file cannot be read, or the file has a mistake.
pub fn read(
    machine: &dyn Machine,
    given: Option<&Path>,
    folder: &Path,
) -> Result<(Option<PathBuf>, Config)> {
    let (path, named) = path(machine, given, folder);
    match machine.read(&path) {
        Ok(bytes) => {
            let text = String::from_utf8(bytes)
                .ok()
                .with_context(|| format!("{}: not UTF-8 text", path.display()))?;
            let config = Config::parse(&text, &path.display().to_string())?;
            Ok((Some(path), config))
        }
        Err(e) if !named && e.kind() == std::io::ErrorKind::NotFound => {
            Ok((None, Config::default()))
        }
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}
