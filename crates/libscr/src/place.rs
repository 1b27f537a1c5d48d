//! Where a file of a dataset lies: names are of files below a prefix, and keep the rest of their path in a checkpoint.

use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Absolute paths without `.` and `..`, by their letters alone: the files need not be there yet.
pub(crate) fn absolute(base: &Path, name: &Path) -> PathBuf {
    let mut path = PathBuf::from("/");
    for part in base.join(name).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(part) => path.push(part),
            _ => (),
        }
    }
    path
}

/// The path of a file below the prefix.
///
/// # Errors
///
/// A sentence.
pub(crate) fn below(prefix: &Path, file: &Path) -> Result<PathBuf, String> {
    match file.strip_prefix(prefix) {
        Ok(rest) if !rest.as_os_str().is_empty() => Ok(rest.into()),
        _ => Err(format!(
            "SCR_Route_file: {} is not below {}: set SCR_PREFIX before SCR_Init to a folder that has all files of checkpoints below it",
            file.display(),
            prefix.display()
        )),
    }
}

/// The only file of this name below a folder, at any depth.
pub(crate) fn named(folder: &Path, name: &OsStr) -> Option<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) if entry.file_name() == name => found.push(entry.path()),
                _ => (),
            }
        }
    }
    found.pop().filter(|_| found.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_relative_to_where_the_program_is() {
        let at = |name: &str| absolute(Path::new("/scratch/run"), Path::new(name));
        assert_eq!(at("a/b"), Path::new("/scratch/run/a/b"));
        assert_eq!(at("./a/../b"), Path::new("/scratch/run/b"));
        assert_eq!(at("/other/./x"), Path::new("/other/x"));
        assert_eq!(at("../../../../x"), Path::new("/x"));
    }

    #[test]
    fn what_is_not_below_the_prefix_is_refused() {
        let rest = |file: &str| below(Path::new("/scratch/run"), Path::new(file));
        assert_eq!(rest("/scratch/run/a/b"), Ok("a/b".into()));
        for file in ["/scratch/run", "/scratch/runner/a", "/a"] {
            assert!(rest(file).is_err(), "{file}");
        }
    }

    #[test]
    fn a_name_that_two_files_have_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("a/b")).expect("made");
        fs::write(folder.path().join("a/b/one"), "").expect("written");
        fs::write(folder.path().join("a/two"), "").expect("written");
        fs::write(folder.path().join("a/b/two"), "").expect("written");
        let found = |name: &str| named(folder.path(), OsStr::new(name));
        assert_eq!(found("one"), Some(folder.path().join("a/b/one")));
        assert_eq!(found("two"), None);
        assert_eq!(found("three"), None);
    }
}
