//! slurmd's own files on this node: where they lie, and their text. No slurmctld is needed for them.

use std::io;
use std::path::{Path, PathBuf};

use crate::Machine;

/// The folder where slurmd has its files: that of `$SLURM_CONF`, slurmd's copy where it runs without files of its own, or
/// `/etc/slurm`.
pub fn conf_folder(machine: &dyn Machine) -> Option<PathBuf> {
    if let Some(file) = machine.env("SLURM_CONF") {
        return Path::new(&file).parent().map(Path::to_path_buf);
    }
    let usual = ["/etc/slurm", "/run/slurm/conf"].map(PathBuf::from);
    usual
        .into_iter()
        .find(|folder| machine.read(&folder.join("slurm.conf")).is_ok())
}

/// A file as text; `None` when there is none. The error is a sentence.
pub(crate) fn text(machine: &dyn Machine, path: &Path) -> Result<Option<String>, String> {
    match machine.read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}
