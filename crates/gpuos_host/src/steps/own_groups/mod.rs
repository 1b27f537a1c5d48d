//! Control groups of gpuos's own, for jobs of a workload manager that keeps none: a group for each job below `gpuos/NODE`, which refuses the
//! GPUs that are not the job's, and the MIG instances. In version 2 a program of the kernel does ([`mod@program`]), in version 1 the list of the
//! controller `devices`.
//!
//! The kernel keeps groups and rules, and needs nobody for it: a daemon that ends leaves its jobs confined, and the next one finds their
//! groups by name. The name is the only thing that is remembered. Groups are root's: no user can make one here, or leave his.
//!
//! [`mod@service`] has groups for daemons that gpuosd runs as users, in the same place.

mod hierarchy;
pub mod program;
pub mod service;
mod version_1;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gpuos_core::job::JobId;
use gpuos_model::hostlist::is_name;

use super::started::started;
use crate::hardware::device_programs::{attach, load};
pub use hierarchy::{GroupsPath, Version};
use hierarchy::{Hierarchy, JOB, group, job_of, of_pbs_cgroups};
use program::{Kept, MINORS, program};

/// NVIDIA's major number of `/dev/nvidiaN`, and the first minor number there that is none of a GPU: `nvidia-modeset` and `nvidiactl`.
const MAJOR: u32 = 195;
const CONTROL: u32 = 254;
/// How the kernel's list calls the device files of MIG instances.
const CAPS: &str = "nvidia-caps";
/// Groups below a job's that are removed with it: a container of root's may leave some.
const DEEP: usize = 8;
/// More device files of MIG instances than any driver has: a list that names a higher number is none.
const MOST_CAPS: u32 = 1 << 16;

/// A process, by its number and when it was started, in the kernel's ticks since boot.
pub type Started = (u32, u64);

/// What a job may open of NVIDIA's device files, by their minor numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Own {
    /// `/dev/nvidiaN`: of its GPUs, and of those on which it has MIG instances.
    pub gpus: BTreeSet<u32>,
    /// `/dev/nvidia-caps/nvidia-capN`: of its MIG instances.
    pub instances: BTreeSet<u32>,
}

/// The groups of a node.
#[derive(Debug)]
pub struct OwnGroups {
    base: Hierarchy,
    /// The folder of the jobs' groups.
    root: PathBuf,
    /// Its path.
    path: GroupsPath,
    proc: PathBuf,
    /// Where the device files of MIG instances are, and the driver's list of them.
    caps: (PathBuf, PathBuf),
    /// Where controllers of version 1 are mounted.
    cgroup: PathBuf,
    /// A group is not removed while a process is brought into it.
    changes: Mutex<()>,
}

impl OwnGroups {
    /// Below where control groups are mounted, `/sys/fs/cgroup` as a rule, of the node with this name. Nothing is made yet. `proc` is where
    /// processes are looked up, `caps` are the folder with the device files of MIG instances and the driver's list of them.
    ///
    /// # Errors
    /// There are no groups here that can refuse device files: a clause.
    pub fn at(
        cgroup: &Path,
        node: &str,
        proc: &Path,
        caps: (&Path, &Path),
    ) -> Result<OwnGroups, String> {
        if !is_name(node) || node.starts_with('.') {
            return Err("no folder can have the name of this node".into());
        }
        let base = Hierarchy::below(cgroup, proc)?;
        let path = format!("{}/gpuos/{node}", base.path);
        Ok(OwnGroups {
            root: base.folder.join("gpuos").join(node),
            path: GroupsPath::new(base.version, path),
            base,
            proc: proc.to_path_buf(),
            caps: (caps.0.to_path_buf(), caps.1.to_path_buf()),
            cgroup: cgroup.to_path_buf(),
            changes: Mutex::default(),
        })
    }

    /// The path of the folder above the jobs' groups.
    pub fn path(&self) -> &GroupsPath {
        &self.path
    }

    /// The same folder, as a file.
    pub fn folder(&self) -> &Path {
        &self.root
    }

    /// Brings a process into the group of its job, which may open these of NVIDIA's device files and no others from now on. What it starts later is
    /// in there, too. What it has open it keeps. One that pbs_cgroups has in a group that decides about devices is left there.
    ///
    /// # Errors
    /// It is not that process any more, or the kernel refuses: a clause. Nothing was changed then for other jobs, and the process is where it was.
    pub fn confine(&self, job: &JobId, process: Started, own: &Own) -> Result<(), String> {
        let _held = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = self.groups_of(process)?;
        if let Some(path) = of_pbs_cgroups(&groups) {
            // It does not know which GPUs gpuos has given, and as it comes it allows every device that it does not know.
            return Err(format!(
                "the program is in a group of pbs_cgroups already, {path}: exclude this host from pbs_cgroups, or write \"advise\": true of it in gpus.json"
            ));
        }
        let before = group(&groups, self.base.version)
            .ok_or("/proc does not say in which groups the process is")?;
        let folder = self.root.join(format!("{JOB}{job}"));
        let failed = |what: &str, error: io::Error| format!("{what} {}: {error}", folder.display());
        self.make(&folder, own)?;
        let enter = |folder: &Path| {
            let file = folder.join("cgroup.procs");
            fs::write(file, process.0.to_string())
        };
        enter(&folder).map_err(|e| failed("the kernel does not let the process into", e))?;
        if let Err(why) = self.groups_of(process) {
            // The number had become another's since the look before: that one goes back to where it most likely was.
            let rest = before.strip_prefix(&self.base.path).unwrap_or_default();
            let _ = enter(&self.base.folder.join(rest.trim_start_matches('/')));
            return Err(why);
        }
        Ok(())
    }

    /// Makes a group, or finds it, whose processes may open these of NVIDIA's device files and no others from now on.
    fn make(&self, folder: &Path, own: &Own) -> Result<(), String> {
        let kept = self.kept(own)?;
        let failed = |what: &str, error: io::Error| format!("{what} {}: {error}", folder.display());
        let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(|e| failed("cannot make the control group", e))?;
        match self.base.version {
            Version::One => {
                let numbers = self.numbers(own)?;
                version_1::set(folder, &version_1::rules(&kept, &numbers))
                    .map_err(|e| failed("cannot have device files refused by", e))
            }
            Version::Two => {
                let group =
                    File::open(folder).map_err(|e| failed("cannot open the control group", e))?;
                let program = load(&program(&kept)).map_err(|e| {
                    format!("the kernel takes no program that refuses device files: {e}")
                })?;
                attach(&program, &group).map_err(|e| failed("cannot attach such a program to", e))
            }
        }
    }

    /// The groups in which a process is, as the kernel lists them.
    fn groups_of(&self, (pid, since): Started) -> Result<String, String> {
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
        Ok(String::from_utf8_lossy(&read("cgroup")?).into_owned())
    }

    fn kept(&self, own: &Own) -> Result<Vec<Kept>, String> {
        let gpus = Kept {
            major: MAJOR,
            shared_from: CONTROL,
            own: own.gpus.clone(),
        };
        let majors = fs::read_to_string(self.proc.join("devices")).unwrap_or_default();
        let major = major_of(&majors, CAPS).or_else(|| major_of_files(&self.caps.0));
        if major.is_none() && !own.instances.is_empty() {
            return Err(format!(
                "neither the kernel nor {} says which major number device files of MIG instances have",
                self.caps.0.display()
            ));
        }
        let caps = major.map(|major| Kept {
            major,
            shared_from: MINORS,
            own: own.instances.clone(),
        });
        Ok(std::iter::once(gpus).chain(caps).collect())
    }

    /// The minor numbers of device files of MIG instances, made or not, of which some are to be refused: a list of version 1 names each.
    fn numbers(&self, own: &Own) -> Result<BTreeSet<u32>, String> {
        if own.instances.is_empty() {
            return Ok(BTreeSet::new());
        }
        let file = &self.caps.1;
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let words = text.lines().filter_map(|line| line.split(' ').nth(1));
        let numbers = words.filter_map(|word| word.trim().parse::<u32>().ok());
        match numbers.max() {
            Some(last) if last < MOST_CAPS => Ok((0..=last).collect()),
            _ => Err(format!(
                "{} is no list of device files of MIG instances",
                file.display()
            )),
        }
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
            let empty = match self.base.version {
                Version::One => has_none(&folder, DEEP),
                Version::Two => is_empty(&folder),
            };
            !empty || !remove(&folder, DEEP)
        });
        left.count()
    }
}

/// Whether the kernel says that no process is in a group of version 2 and those below.
fn is_empty(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 0")
}

/// The same of version 1, which says it of each group for itself.
fn has_none(group: &Path, deep: usize) -> bool {
    let own = fs::read(group.join("cgroup.procs")).is_ok_and(|processes| processes.is_empty());
    own && (deep == 0 || below(group).all(|inner| has_none(&inner, deep - 1)))
}

fn below(group: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path())
}

/// Removes a group with those below; whether it is gone.
fn remove(group: &Path, deep: usize) -> bool {
    if deep > 0 {
        for inner in below(group) {
            remove(&inner, deep - 1);
        }
    }
    match fs::remove_dir(group) {
        Ok(()) => true,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
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

/// The major number of the device files in a folder.
fn major_of_files(folder: &Path) -> Option<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut devices = entries
        .filter_map(|entry| entry.metadata().ok())
        .filter(|of| of.file_type().is_char_device());
    Some(rustix::fs::major(devices.next()?.rdev()))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
