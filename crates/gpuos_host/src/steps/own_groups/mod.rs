//! Control groups of gpuos's own, version 2, for jobs of a workload manager that keeps none: a group for each job below `gpuos/NODE`, with
//! a program of the kernel ([`mod@program`]) that refuses the GPUs which are not the job's.
//!
//! The kernel keeps groups and programs, and needs nobody for it: a daemon that ends leaves its jobs confined, and the next one finds their
//! groups by name. The name is the only thing that is remembered. Groups are root's: no user can make one here, or leave his.

pub mod program;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gpuos_core::job::JobId;
use gpuos_model::hostlist::is_name;

use super::started::started;
use crate::hardware::device_programs::{attach, load};
use program::{Kept, MINORS, program};

/// NVIDIA's major number of `/dev/nvidiaN`, and the first minor number there that is none of a GPU: `nvidia-modeset` and `nvidiactl`.
const MAJOR: u32 = 195;
const CONTROL: u32 = 254;
/// How the kernel's list calls the device files of MIG instances.
const CAPS: &str = "nvidia-caps";
/// How the folder of a job's group begins.
const JOB: &str = "job_";
/// What the kernel appends to the path of a group that was removed.
const DELETED: &str = " (deleted)";
/// Groups below a job's that are removed with it: a container of root's may leave some.
const DEEP: usize = 8;

/// A process, by its number and when it was started, in the kernel's ticks since boot.
pub type Started = (u32, u64);

/// The groups of a node.
#[derive(Debug)]
pub struct OwnGroups {
    /// Where version 2 is mounted, or a part of it, and its path for the kernel.
    base: (PathBuf, String),
    /// The folder of the jobs' groups.
    root: PathBuf,
    /// Its path, as `/proc/PID/cgroup` has it.
    path: String,
    proc: PathBuf,
    /// A group is not removed while a process is brought into it.
    changes: Mutex<()>,
}

impl OwnGroups {
    /// Below where control groups are mounted, `/sys/fs/cgroup` as a rule, of the node with this name. Nothing is made yet. `proc` is where
    /// processes are looked up.
    ///
    /// # Errors
    /// There are no groups of version 2 here: a clause.
    pub fn at(cgroup: &Path, node: &str, proc: &Path) -> Result<OwnGroups, String> {
        if !is_name(node) || node.starts_with('.') {
            return Err("the name of this node is none that a folder can have".into());
        }
        let places = [cgroup.to_path_buf(), cgroup.join("unified")];
        let mut places = places
            .iter()
            .filter(|place| place.join("cgroup.controllers").is_file());
        let base = places.next().ok_or_else(|| {
            format!(
                "no control groups of version 2 are mounted at {} or in its folder unified (--cgroup)",
                cgroup.display()
            )
        })?;
        let base = fs::canonicalize(base).map_err(|e| format!("{}: {e}", base.display()))?;
        let file = proc.join("self/mountinfo");
        let mounts = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let above = path_of(&mounts, &base)
            .ok_or_else(|| format!("{} is in no mount of {}", base.display(), file.display()))?;
        Ok(OwnGroups {
            root: base.join("gpuos").join(node),
            path: format!("{above}/gpuos/{node}"),
            base: (base, above),
            proc: proc.to_path_buf(),
            changes: Mutex::default(),
        })
    }

    /// The path of the folder above the jobs' groups, as `/proc/PID/cgroup` has it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The same folder, as a file.
    pub fn folder(&self) -> &Path {
        &self.root
    }

    /// Brings a process into the group of its job, which may open these of NVIDIA's device files `nvidiaN` and no others from now on, nor
    /// device files of MIG instances. What it starts later is in there, too. What it has open it keeps.
    ///
    /// # Errors
    /// It is not that process any more, or the kernel refuses: a clause. Nothing was changed then for other jobs, and the process is where it was.
    pub fn confine(
        &self,
        job: &JobId,
        process: Started,
        own: &BTreeSet<u32>,
    ) -> Result<(), String> {
        let _held = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.group_of(process)?;
        let folder = self.root.join(format!("{JOB}{job}"));
        let failed = |what: &str, error: io::Error| format!("{what} {}: {error}", folder.display());
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&folder);
        made.map_err(|e| failed("cannot make the control group", e))?;
        let group = File::open(&folder).map_err(|e| failed("cannot open the control group", e))?;
        let program = load(&program(&self.kept(own)))
            .map_err(|e| format!("the kernel takes no program that refuses device files: {e}"))?;
        attach(&program, &group).map_err(|e| failed("cannot attach such a program to", e))?;
        let enter = |folder: &Path| {
            let file = folder.join("cgroup.procs");
            fs::write(file, process.0.to_string())
        };
        enter(&folder).map_err(|e| failed("the kernel does not let the process into", e))?;
        if let Err(why) = self.group_of(process) {
            // The number had become another's since the look before: that one goes back to where it most likely was.
            let rest = before.strip_prefix(&self.base.1).unwrap_or_default();
            let _ = enter(&self.base.0.join(rest.trim_start_matches('/')));
            return Err(why);
        }
        Ok(())
    }

    /// The path of the group in which a process is.
    fn group_of(&self, (pid, since): Started) -> Result<String, String> {
        let gone = || format!("process {pid} is not the one that was to be confined, or has ended");
        // 1 is nobody's program: a hook whose parent has ended sees it.
        if pid <= 1 {
            return Err(gone());
        }
        let folder = self.proc.join(pid.to_string());
        let read = |name: &str| fs::read(folder.join(name)).map_err(|_| gone());
        let stat = read("stat")?;
        // Its name there can be any bytes.
        if started(&String::from_utf8_lossy(&stat)) != Some(since) {
            return Err(gone());
        }
        let text = read("cgroup")?;
        let path = version_2(&String::from_utf8_lossy(&text)).map(str::to_owned);
        path.ok_or_else(gone)
    }

    fn kept(&self, own: &BTreeSet<u32>) -> Vec<Kept> {
        let gpus = Kept {
            major: MAJOR,
            shared_from: CONTROL,
            own: own.clone(),
        };
        let majors = fs::read_to_string(self.proc.join("devices")).unwrap_or_default();
        let caps = major_of(&majors, CAPS).map(|major| Kept {
            major,
            shared_from: MINORS,
            own: BTreeSet::new(),
        });
        std::iter::once(gpus).chain(caps).collect()
    }

    /// Removes the groups in which no process is any more; how many are left. What cannot be removed is left for the next time.
    pub fn sweep(&self) -> usize {
        let _held = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let jobs = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| job_of(name).is_some())
        });
        let left = jobs.filter(|entry| {
            let folder = entry.path();
            !is_empty(&folder) || !remove(&folder, DEEP)
        });
        left.count()
    }
}

/// Whether the kernel says that no process is in a group and those below.
fn is_empty(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 0")
}

/// Removes a group with those below; whether it is gone.
fn remove(group: &Path, deep: usize) -> bool {
    if deep > 0 {
        let below = fs::read_dir(group).into_iter().flatten().flatten();
        for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            remove(&entry.path(), deep - 1);
        }
    }
    match fs::remove_dir(group) {
        Ok(()) => true,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// The job in whose group a process is, by the text of its `/proc/PID/cgroup` and [`OwnGroups::path`]. Total: no text makes it fail.
pub fn job_in(text: &str, path: &str) -> Option<JobId> {
    let group = version_2(text)?;
    let rest = group.strip_prefix(path)?.strip_prefix('/')?;
    job_of(rest.split('/').next()?)
}

/// The job of a group's name; only what is written as [`OwnGroups::confine`] does.
fn job_of(name: &str) -> Option<JobId> {
    let id = name.strip_prefix(JOB)?;
    let job: JobId = id.parse().ok()?;
    (job.to_string() == id).then_some(job)
}

/// The path of the group of version 2. Kernels before 5.13 let a newline into names of version 1: where there are two such lines, none is the
/// kernel's for sure.
fn version_2(text: &str) -> Option<&str> {
    let mut found = text.lines().filter_map(|line| line.strip_prefix("0::"));
    let path = found.next()?;
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    found.next().is_none().then_some(path)
}

/// The major number of a kind of character devices in `/proc/devices`.
fn major_of(devices: &str, kind: &str) -> Option<u32> {
    let characters = devices
        .lines()
        .take_while(|line| !line.starts_with("Block"));
    let mut named = characters.filter_map(|line| line.trim().split_once(' '));
    let (major, _) = named.find(|(_, name)| *name == kind)?;
    major.parse().ok()
}

/// How the kernel calls a folder of version 2, by `/proc/self/mountinfo`: the innermost mount that it is in counts, and of two at one place the
/// later one. Empty: the root.
fn path_of(mountinfo: &str, folder: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        let rest = folder.strip_prefix(at).ok()?.to_str()?;
        let path = match rest {
            "" => root.trim_end_matches('/').to_owned(),
            rest => format!("{}/{rest}", root.trim_end_matches('/')),
        };
        let is_version_2 = after.split(' ').next()? == "cgroup2";
        Some((at.len(), is_version_2.then_some(path)))
    };
    let all = mountinfo.lines().filter_map(mount);
    // The last of those that are equal.
    all.max_by_key(|(long, _)| *long)?.1
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
