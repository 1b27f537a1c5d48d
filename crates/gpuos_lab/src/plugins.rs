//! gpuos's built plugins, and the private folder of a lab where they have Slurm's names.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::error::{Context, LabError};

/// Names of the plugins as Slurm wants them. cargo writes `lib` in front.
const PLUGINS: [&str; 4] = [
    "select_gpuos.so",
    "spank_gpuos.so",
    "job_submit_gpuos.so",
    "gres_gpuos.so",
];

/// Finds the folder of built plugins: `$GPUOS_PLUGIN_DIR`, then beside this program, in
/// `../lib/gpuos`, in cargo's target folder (tests run in `deps` below it), `/usr/lib/gpuos`.
pub fn find_plugin_dir() -> Result<PathBuf, LabError> {
    if let Some(dir) = env::var_os("GPUOS_PLUGIN_DIR").filter(|dir| !dir.is_empty()) {
        return Ok(PathBuf::from(dir));
    }
    let mut dirs = Vec::new();
    if let Some(own) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        dirs.push(own.to_path_buf());
        dirs.push(own.join("../lib/gpuos"));
        dirs.push(own.join(".."));
    }
    dirs.push(PathBuf::from("/usr/lib/gpuos"));
    dirs.iter()
        .find(|dir| built(dir, PLUGINS[0]).is_some())
        .cloned()
        .ok_or_else(|| LabError::Missing {
            program: "select_gpuos.so".to_string(),
            fix: format!(
                "it is in none of {}: `make build` in gpuos's source folder makes it, or name its folder by --plugin-dir or GPUOS_PLUGIN_DIR",
                dirs.iter()
                    .map(|dir| dir.display().to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        })
}

/// Whether the folder of built plugins has this one, for example `spank_gpuos.so`.
pub(crate) fn has(dir: &Path, name: &str) -> bool {
    built(dir, name).is_some()
}

/// The file of a plugin in a folder of built ones.
fn built(dir: &Path, name: &str) -> Option<PathBuf> {
    [dir.join(name), dir.join(format!("lib{name}"))]
        .into_iter()
        .find(|path| path.is_file())
}

/// Copies the built plugins into `to` under Slurm's names. The copy keeps a running lab's
/// plugins as they are when the next build writes new ones.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), LabError> {
    fs::create_dir_all(to).context(|| format!("cannot make {}", to.display()))?;
    let mut any = false;
    for name in PLUGINS {
        if let Some(file) = built(from, name) {
            any = true;
            let new = to.join(format!(".{name}"));
            fs::copy(&file, &new)
                .and_then(|_| fs::rename(&new, to.join(name)))
                .context(|| format!("cannot copy {} to {}", file.display(), to.display()))?;
        }
    }
    if any {
        Ok(())
    } else {
        Err(LabError::Missing {
            program: PLUGINS.join(", "),
            fix: format!(
                "none of them is in {}: `make build` in gpuos's source folder makes them, or name another folder",
                from.display()
            ),
        })
    }
}

/// Fills `to` with links to all stock plugins, and gpuos's beside them. `stock` is their folder, `named` what it is called where
/// the links are followed: in the root of a suite.
pub(crate) fn merge(from: &Path, stock: &Path, named: &Path, to: &Path) -> Result<(), LabError> {
    copy(from, to)?;
    for entry in fs::read_dir(stock)
        .context(|| format!("cannot read {}", stock.display()))?
        .flatten()
    {
        let name = entry.file_name();
        let link = to.join(&name);
        if name.to_string_lossy().ends_with(".so") && link.symlink_metadata().is_err() {
            symlink(named.join(&name), &link)
                .context(|| format!("cannot make {}", link.display()))?;
        }
    }
    Ok(())
}
