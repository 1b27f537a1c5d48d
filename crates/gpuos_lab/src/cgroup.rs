//! cgroups of a lab: one that all its processes start in, so that they can be found, and on
//! hosts with cgroup v1 the folders under which Slurm's cgroup/v1 makes those of jobs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::{Context, LabError};
use crate::process::PREFIX;

/// Controllers that Slurm's cgroup/v1 uses here: job tracking and device limits.
const SLURM_V1: [&str; 2] = ["freezer", "devices"];

/// The cgroup file systems of this host.
pub(crate) struct Host {
    /// Where cgroup v2 is mounted.
    v2: Option<PathBuf>,
    /// Where each v1 controller is mounted.
    v1: Vec<(String, PathBuf)>,
}

impl Host {
    /// Reads /proc/mounts.
    pub(crate) fn read() -> Host {
        Host::parse(&fs::read_to_string("/proc/mounts").unwrap_or_default())
    }

    fn parse(mounts: &str) -> Host {
        let mut host = Host {
            v2: None,
            v1: Vec::new(),
        };
        for line in mounts.lines() {
            let mut fields = line.split(' ');
            let (Some(_), Some(at), Some(kind), Some(options)) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            // The same file systems may be mounted in some root as well: those are not ours.
            if !Path::new(at).starts_with("/sys/fs/cgroup") {
                continue;
            }
            match kind {
                "cgroup2" if host.v2.is_none() => host.v2 = Some(PathBuf::from(at)),
                "cgroup" => {
                    for option in options.split(',') {
                        host.v1.push((option.to_string(), PathBuf::from(at)));
                    }
                }
                _ => {}
            }
        }
        host
    }

    fn v1(&self, controller: &str) -> Option<&Path> {
        self.v1
            .iter()
            .find(|(name, _)| name == controller)
            .map(|(_, at)| at.as_path())
    }

    /// The hierarchy in which the lab's processes are tracked.
    fn tracking(&self) -> Option<&Path> {
        self.v2.as_deref().or(self.v1("freezer"))
    }

    /// Why Slurm cannot confine jobs here; `None` when it can.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let missing: Vec<&str> = SLURM_V1
            .into_iter()
            .filter(|name| self.v1(name).is_none())
            .collect();
        if missing.is_empty() {
            None
        } else {
            Some(format!(
                "this machine has no cgroup v1 controller {} (labs do not use cgroup v2, where one Slurm takes over the whole tree)",
                missing.join(" and ")
            ))
        }
    }
}

/// Makes the folders under which Slurm's cgroup/v1 will make those of jobs. Fails with the
/// reason why this machine does not let it.
pub(crate) fn make_for_slurm(id: &str) -> Result<(), String> {
    let host = Host::read();
    if let Some(obstacle) = host.obstacle() {
        return Err(obstacle);
    }
    for controller in SLURM_V1 {
        let Some(at) = host.v1(controller) else {
            continue;
        };
        let own = at.join(format!("{PREFIX}{id}"));
        fs::create_dir_all(&own).map_err(|e| {
            format!(
                "this machine does not let cgroups be made ({}: {e})",
                own.display()
            )
        })?;
        // Another file system may be mounted over it: then this is just a folder.
        if !own.join("tasks").is_file() {
            let _ = fs::remove_dir(&own);
            return Err(format!("{} is no cgroup", own.display()));
        }
    }
    Ok(())
}

/// A part of the hierarchy of version 2 for the groups that daemons of a lab make; `None` where this machine lets nobody make one.
pub(crate) fn make_v2(id: &str) -> Option<PathBuf> {
    let own = Host::read().v2?.join(format!("{PREFIX}{id}"));
    let _ = fs::create_dir(&own);
    own.join("cgroup.procs").is_file().then_some(own)
}

/// The cgroups of one lab.
pub(crate) struct Cgroups {
    /// `cgroup.procs` of each cgroup that the daemons enter.
    procs: Vec<PathBuf>,
}

impl Cgroups {
    /// Makes the tracking one, where that is possible: elsewhere the processes are found by
    /// other marks. With `for_slurm` (after [`make_for_slurm`]) also the folder that Slurm
    /// takes for the mount point of all controllers.
    pub(crate) fn make(id: &str, dir: &Path, for_slurm: bool) -> Result<Cgroups, LabError> {
        let host = Host::read();
        let name = format!("{PREFIX}{id}");
        if let Some(at) = host.tracking() {
            let _ = fs::create_dir(at.join(&name));
        }
        if for_slurm {
            let mount = dir.join("cgroup");
            fs::create_dir(&mount).context(|| format!("cannot make {}", mount.display()))?;
            for controller in SLURM_V1 {
                let Some(at) = host.v1(controller) else {
                    continue;
                };
                // Slurm's cgroup/v1 looks for CONTROLLER/tasks under CgroupMountpoint.
                let link = mount.join(controller);
                std::os::unix::fs::symlink(at.join(&name), &link)
                    .context(|| format!("cannot make {}", link.display()))?;
            }
        }
        Ok(Cgroups::of(id))
    }

    /// Those of a lab that is up.
    pub(crate) fn of(id: &str) -> Cgroups {
        let host = Host::read();
        let own = host
            .tracking()
            .map(|at| at.join(format!("{PREFIX}{id}")).join("cgroup.procs"))
            .filter(|procs| procs.exists());
        Cgroups {
            procs: own.into_iter().collect(),
        }
    }

    /// Opens them for a child to enter.
    pub(crate) fn open(&self) -> Vec<File> {
        self.procs
            .iter()
            .filter_map(|path| File::options().write(true).open(path).ok())
            .collect()
    }
}

/// Removes all cgroups of a lab whose processes have ended.
pub(crate) fn remove(id: &str) {
    let host = Host::read();
    let name = format!("{PREFIX}{id}");
    let mounts = host
        .v2
        .iter()
        .chain(host.v1.iter().map(|(_, at)| at))
        .collect::<std::collections::BTreeSet<_>>();
    for at in mounts {
        remove_tree(&at.join(&name));
    }
}

/// A cgroup is a folder whose files cannot be removed: only empty folders can, inside out.
fn remove_tree(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    // The kernel lets go of a cgroup a moment after its last process ended.
    for _ in 0..50 {
        match fs::remove_dir(dir) {
            Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_host_has_both_versions() {
        let host = Host::parse(
            "cgroup2 /srv/root/sys/fs/cgroup cgroup2 rw 0 0\n\
             cgroup /sys/fs/cgroup/devices cgroup rw,relatime,devices 0 0\n\
             cgroup /sys/fs/cgroup/freezer cgroup rw,relatime,freezer 0 0\n\
             cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
        );
        assert_eq!(
            host.v2.as_deref(),
            Some(Path::new("/sys/fs/cgroup/unified"))
        );
        assert_eq!(host.obstacle(), None);
    }

    #[test]
    fn v2_host_names_what_is_missing() {
        let host = Host::parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
        let text = host.obstacle().expect("an obstacle");
        assert!(text.contains("freezer and devices"), "{text}");
    }
}
