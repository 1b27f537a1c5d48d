//! The private root of a lab whose Slurm comes from a Debian suite.
//!
//! It exists only in the mount namespace of the lab's munged: nothing is mounted on the host,
//! and all of it goes with the lab's last process. The suite gives `/usr`, `/etc` and an empty
//! `/var`; every other folder of the host (`/home`, `/tmp`, `/run`, `/dev`, …) is itself, so
//! that job scripts and the lab's own folder keep their paths.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context, LabError};
use crate::sys::{RootStep, c_path};

/// Folders of the suite, read-only.
const FROM_SUITE: [&str; 10] = [
    "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32", "etc", "opt",
];

/// Folders of the host that have no place in the root.
const LEFT_OUT: [&str; 3] = ["var", "boot", "lost+found"];

/// Files of the host's `/etc` that must agree with the host's.
const FROM_HOST_ETC: [&str; 5] = ["passwd", "group", "hostname", "resolv.conf", "localtime"];

/// The hosts file, which is the lab's own.
const HOSTS: &str = "hosts";

/// Where the root is mounted.
pub(crate) fn root_of(lab_dir: &Path) -> PathBuf {
    lab_dir.join("root")
}

/// Makes the files of a suite's `/etc` that others are mounted on.
pub(crate) fn prepare(suite: &Path) -> Result<(), LabError> {
    for name in FROM_HOST_ETC.into_iter().chain([HOSTS]) {
        let file = suite.join("etc").join(name);
        // resolv.conf and localtime may be links into folders of the host.
        let _ = fs::remove_file(&file);
        fs::write(&file, "").context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// The steps that build the root of a lab from the folder of a suite.
pub(crate) fn steps(suite: &Path, lab_dir: &Path) -> Result<Vec<RootStep>, LabError> {
    let root = root_of(lab_dir);
    let at = |path: &str| c_path(&root.join(path));
    let mut steps = vec![RootStep::Tmpfs(c_path(&root))];
    for name in FROM_SUITE {
        place(&mut steps, &suite.join(name), &root.join(name), true);
    }
    for name in FROM_HOST_ETC {
        let host = Path::new("/etc").join(name);
        // A bind needs a file to be mounted on, and the suite's /etc is read-only.
        if host.is_file() && suite.join("etc").join(name).is_file() {
            steps.push(RootStep::Bind(c_path(&host), at(&format!("etc/{name}"))));
        }
    }
    let hosts = lab_dir.join("etc").join(HOSTS);
    steps.push(RootStep::Bind(c_path(&hosts), at("etc/hosts")));
    for dir in [
        "var",
        "var/lib",
        "var/log",
        "var/run",
        "var/spool",
        "var/cache",
        "var/tmp",
    ] {
        steps.push(RootStep::Mkdir(at(dir)));
    }
    let mut shown = Vec::new();
    for entry in fs::read_dir("/")
        .context(|| "cannot read /".to_string())?
        .flatten()
    {
        let name = entry.file_name();
        let taken = |list: &[&str]| list.iter().any(|other| name == *other);
        if taken(&FROM_SUITE) || taken(&LEFT_OUT) {
            continue;
        }
        place(&mut steps, &entry.path(), &root.join(&name), false);
        shown.push(entry.path());
    }
    if !shown.iter().any(|top| lab_dir.starts_with(top)) {
        let mut part = root.clone();
        for component in lab_dir.components().skip(1) {
            part.push(component);
            steps.push(RootStep::Mkdir(c_path(&part)));
        }
        steps.push(RootStep::Bind(c_path(lab_dir), c_path(&part)));
    }
    Ok(steps)
}

/// Shows a folder or link at a place of the root; files and missing things are left out.
fn place(steps: &mut Vec<RootStep>, from: &Path, to: &Path, read_only: bool) {
    let Ok(meta) = from.symlink_metadata() else {
        return;
    };
    if meta.is_symlink() {
        if let Ok(target) = fs::read_link(from) {
            steps.push(RootStep::Link(c_path(&target), c_path(to)));
        }
    } else if meta.is_dir() {
        steps.push(RootStep::Mkdir(c_path(to)));
        steps.push(if read_only {
            RootStep::BindReadOnly(c_path(from), c_path(to))
        } else {
            RootStep::Bind(c_path(from), c_path(to))
        });
    }
}
