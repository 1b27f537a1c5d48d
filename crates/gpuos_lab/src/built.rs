//! Folders in which cargo leaves what it has built.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::LabError;

/// Where to look: the folder that the variable names, that of this program, and cargo's target folder (tests run in `deps` below it).
pub(crate) fn built_dirs(variable: &str) -> Vec<PathBuf> {
    let given = env::var_os(variable).filter(|dir| !dir.is_empty());
    let own = env::current_exe().ok();
    let own = own.as_deref().and_then(Path::parent);
    let beside = own.map_or_else(Vec::new, |own| vec![own.into(), own.join("..")]);
    given.map(PathBuf::from).into_iter().chain(beside).collect()
}

/// The first of these folders in which all files are; `named_by` says how a user names another one.
///
/// # Errors
/// They are together in none of them.
pub(crate) fn dir_with(
    files: &[&str],
    dirs: &[PathBuf],
    named_by: &str,
) -> Result<PathBuf, LabError> {
    let all = |dir: &&PathBuf| files.iter().all(|file| dir.join(file).is_file());
    dirs.iter().find(all).cloned().ok_or_else(|| {
        let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        LabError::Missing {
            program: files.join(", "),
            fix: format!(
                "they are not together in {}: `make build` in gpuos's source folder makes them, or name their folder by {named_by}",
                dirs.join(" or ")
            ),
        }
    })
}
