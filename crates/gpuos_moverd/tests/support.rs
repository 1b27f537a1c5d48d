//! A folder of all jobs in a temporary place, and the user of a job, who need not exist.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuos_core::job::JobId;
use gpuos_mover::program::Join;
use gpuos_moverd::folder::{JobFolder, Kept, Progress, Trash};
use gpuos_moverd::launch::Launch;
use rustix::process::{getegid, geteuid};
use tempfile::TempDir;

pub struct Base(TempDir);

impl Base {
    pub fn new() -> Base {
        let place = TempDir::new().unwrap();
        for folder in [place.path().to_path_buf(), place.path().join("jobs")] {
            let _ = fs::create_dir(&folder);
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Base(place)
    }

    /// The folder of all jobs.
    pub fn path(&self) -> PathBuf {
        self.0.path().join("jobs")
    }

    /// Something beside it.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn folder(&self) -> JobFolder {
        JobFolder::create(&self.path(), &job(7), &kept(0)).unwrap()
    }

    pub fn trash(&self) -> Trash {
        Trash::open(&self.path()).unwrap()
    }

    /// Empties the trash as far as that can be done.
    pub fn empty(&self) -> Progress {
        let trash = self.trash();
        for _ in 0..100_000 {
            let progress = trash.step(4096).unwrap();
            if !progress.more {
                return progress;
            }
        }
        panic!("the trash does not become empty");
    }

    /// What is in the trash, but for its folder of jobs.
    pub fn left(&self) -> Vec<PathBuf> {
        let gone = self.path().join(".gone");
        let entries = fs::read_dir(gone).unwrap().map(|entry| entry.unwrap());
        let jobs =
            |path: &PathBuf| path.ends_with("jobs") && fs::read_dir(path).unwrap().next().is_none();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| !jobs(path)).collect()
    }
}

pub fn job(number: u32) -> JobId {
    JobId::from(number)
}

pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Whose job it is: a user without a name, or who runs the tests.
pub fn owner() -> (u32, u32) {
    match is_root() {
        true => (3001, 3002),
        false => (geteuid().as_raw(), getegid().as_raw()),
    }
}

/// A run of it.
pub fn kept(run: u32) -> Kept {
    let (uid, gid) = owner();
    let asked = "10m,l2=partner".into();
    Kept {
        run,
        launch: Launch::default(),
        uid,
        gid,
        asked,
    }
}

/// A shell with the user's rights; gives whether all of it went well.
pub fn shell(at: &Path, script: &str) -> Command {
    let (uid, gid) = owner();
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(at);
    if is_root() {
        command.uid(uid).gid(gid);
    }
    command
}

/// The user does that in a folder.
pub fn user(at: &Path, script: &str) {
    let status = shell(at, script).status().unwrap();
    assert!(status.success(), "{script}: {status}");
}

pub fn join(rank: u16, size: u16, nonce: u64) -> Join {
    Join { rank, size, nonce }
}

pub fn text(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Owner, group and mode.
pub fn facts(path: impl AsRef<Path>) -> (u32, u32, u32) {
    let facts = fs::symlink_metadata(path).unwrap();
    (facts.uid(), facts.gid(), facts.mode() & 0o7777)
}

/// Names in a folder, in their order, but for the line about the run.
pub fn names(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.retain(|name| name != "run");
    names.sort();
    names
}

pub fn long() -> bool {
    std::env::var_os("GPUOS_LONG").is_some()
}
