//! Groups for daemons that root's daemon runs with a user's rights, outside of any job's group: NVIDIA's MPS.
//!
//! Whoever has a process's user can have it run code of his own (ptrace(2)), and nothing that a program says of itself survives that it
//! executes another. So the bound is the group's: its processes open the GPUs that are named and no others, there are only so many of them,
//! and at the end all of them are killed together, whatever they have started and however often they have left their parents. Groups are
//! root's, and no process of a user leaves one.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::hierarchy::{SERVICE, Version};
use super::{Own, OwnGroups, has_none, is_empty, remove};

/// Processes and threads that a group has at most, where the kernel counts them for groups.
const PROCESSES: &str = "1024";
/// Between two looks whether a group is empty.
const PAUSE: Duration = Duration::from_millis(10);
/// How long the kernel may take to stop all processes of a group before they are killed as they are.
const STOPS: Duration = Duration::from_millis(200);
/// Controllers of version 1 that have groups beside that of devices: one that stops all processes of a group, and one that counts them.
const BESIDE: [&str; 2] = ["freezer", "pids"];

/// What mounts of control groups are called in `/proc/self/mountinfo`.
const KINDS: [&str; 2] = ["cgroup", "cgroup2"];

/// Whether this machine has control groups mounted anywhere. Where it has none, jobs have none either. `proc` is where processes are looked up.
///
/// # Errors
/// The kernel's list of mounts cannot be read.
pub fn any_mounted(proc: &Path) -> io::Result<bool> {
    let mounts = fs::read_to_string(proc.join("self/mountinfo"))?;
    let kind = |line: &str| Some(line.split_once(" - ")?.1.split(' ').next()?.to_owned());
    Ok(mounts
        .lines()
        .filter_map(kind)
        .any(|kind| KINDS.contains(&&kind[..])))
}

impl OwnGroups {
    /// Makes the group of a daemon, or finds it, whose processes may open these of NVIDIA's device files and no others from now on. A process
    /// enters by writing `0` into each of the files that are returned, in their order.
    ///
    /// # Errors
    /// The name is none that a folder can have, or the kernel refuses: a clause.
    pub fn make_service(&self, name: &str, own: &Own) -> Result<Vec<PathBuf>, String> {
        let folders = self.service(name)?;
        let _held = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.make(&folders[0], own)?;
        for folder in &folders[1..] {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
            made.map_err(|e| format!("cannot make the control group {}: {e}", folder.display()))?;
        }
        if self.base.version == Version::Two {
            self.have_counted(&folders[0]);
        }
        for folder in &folders {
            let most = folder.join("pids.max");
            if most.exists() {
                fs::write(&most, PROCESSES).map_err(|e| format!("{}: {e}", most.display()))?;
            }
        }
        Ok(files(&folders))
    }

    /// The files by which a process enters the group of a daemon; none: it has no group.
    ///
    /// # Errors
    /// The name is none that a folder can have: a clause.
    pub fn service_files(&self, name: &str) -> Result<Vec<PathBuf>, String> {
        let folders = self.service(name)?;
        Ok(match folders.iter().all(|folder| folder.is_dir()) {
            true => files(&folders),
            false => Vec::new(),
        })
    }

    /// The names of the daemons that have groups.
    pub fn services(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let named = entries.filter_map(|entry| {
            let name = entry.file_name();
            Some(name.to_str()?.strip_prefix(SERVICE)?.to_owned())
        });
        named.collect()
    }

    /// Kills all processes in the group of a daemon, waits so long at most until there are none, and removes it. One that is not there is removed.
    ///
    /// # Errors
    /// Processes live on, or the group cannot be removed: a clause. It may be tried again.
    pub fn end_service(&self, name: &str, time: Duration) -> Result<(), String> {
        let folders = self.service(name)?;
        let deadline = Instant::now() + time;
        let there = |folders: &[PathBuf]| folders.iter().any(|folder| folder.is_dir());
        while there(&folders) {
            if self.is_vacant(&folders) && folders.iter().all(|folder| remove(folder, 0)) {
                break;
            }
            if Instant::now() >= deadline {
                return Err(match self.is_vacant(&folders) {
                    true => format!("{} cannot be removed", folders[0].display()),
                    false => format!("processes in {} do not end", folders[0].display()),
                });
            }
            self.kill_all(&folders);
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// The folders of a group: that by which devices are refused, and in version 1 those of the other controllers.
    fn service(&self, name: &str) -> Result<Vec<PathBuf>, String> {
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(format!("'{name}' is no name of a control group"));
        }
        let name = format!("{SERVICE}{name}");
        let mut folders = vec![self.root.join(&name)];
        if self.base.version == Version::One {
            let beside = BESIDE.iter().map(|controller| self.cgroup.join(controller));
            let mounted = beside.filter_map(|at| fs::canonicalize(at).ok());
            let mounted = mounted.filter(|at| at.join("cgroup.procs").is_file());
            // Two controllers may be mounted as one.
            let others = mounted.filter(|at| *at != self.base.folder);
            let node = self.root.file_name().unwrap_or_default().to_owned();
            folders.extend(others.map(|at| at.join("gpuos").join(&node).join(&name)));
            folders.dedup();
        }
        Ok(folders)
    }

    /// Has the kernel count the processes of a group of version 2, where it can for this part of the hierarchy: without it there is no such bound.
    fn have_counted(&self, folder: &Path) {
        let above = folder
            .ancestors()
            .skip(1)
            .take_while(|at| at.starts_with(&self.base.folder) && *at != self.base.folder);
        let above: Vec<&Path> = above.collect();
        for at in above.into_iter().rev() {
            let _ = fs::write(at.join("cgroup.subtree_control"), "+pids");
        }
    }

    fn is_vacant(&self, folders: &[PathBuf]) -> bool {
        match self.base.version {
            Version::Two => is_empty(&folders[0]) || !folders[0].is_dir(),
            Version::One => {
                let vacant = |folder: &PathBuf| !folder.is_dir() || has_none(folder, 0);
                folders.iter().all(vacant)
            }
        }
    }

    /// Kills all that are in it now: in one call where the kernel has it (Linux 5.14), else while it has them stopped, so that none of them
    /// starts another meanwhile.
    fn kill_all(&self, folders: &[PathBuf]) {
        if self.base.version == Version::Two
            && fs::write(folders[0].join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        let stopped = folders.iter().any(|folder| stop(folder));
        for folder in folders {
            let list = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            for pid in list.lines().filter_map(|line| line.trim().parse().ok()) {
                kill(pid, folder);
            }
        }
        if stopped {
            folders.iter().for_each(|folder| go_on(folder));
        }
    }
}

fn files(folders: &[PathBuf]) -> Vec<PathBuf> {
    let files = folders.iter().map(|folder| folder.join("cgroup.procs"));
    files.collect()
}

/// Stops all processes of a group; whether the kernel can.
fn stop(folder: &Path) -> bool {
    let (file, order, done) = match folder.join("freezer.state") {
        old if old.is_file() => (old, "FROZEN", "FROZEN"),
        _ => (folder.join("cgroup.freeze"), "1", "1"),
    };
    if !file.is_file() || fs::write(&file, order).is_err() {
        return false;
    }
    let deadline = Instant::now() + STOPS;
    let stopped = || fs::read_to_string(&file).is_ok_and(|text| text.trim() == done);
    while !stopped() && Instant::now() < deadline {
        thread::sleep(PAUSE);
    }
    true
}

/// Lets them go on: what was killed ends then.
fn go_on(folder: &Path) {
    for (name, order) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
        let file = folder.join(name);
        if file.is_file() {
            let _ = fs::write(file, order);
        }
    }
}

/// Kills a process of a group, and no other that has its number by now: it is held before the group is asked again.
fn kill(pid: i32, folder: &Path) {
    let Some(number) = Pid::from_raw(pid) else {
        return;
    };
    let Ok(held) = pidfd_open(number, PidfdFlags::empty()) else {
        return;
    };
    let list = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    if list.lines().any(|line| line.trim().parse() == Ok(pid)) {
        let _ = pidfd_send_signal(held, Signal::KILL);
    }
}

/// Has this process enter a group, by the files of [`OwnGroups::make_service`].
///
/// # Errors
/// The kernel refuses.
pub fn enter<'a>(files: impl IntoIterator<Item = &'a Path>) -> io::Result<()> {
    files.into_iter().try_for_each(|file| {
        let written = fs::write(file, "0");
        written.map_err(|e| match e.kind() {
            ErrorKind::NotFound => io::Error::new(e.kind(), "the control group is gone"),
            _ => e,
        })
    })
}
