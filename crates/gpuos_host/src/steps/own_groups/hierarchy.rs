//! Where groups of gpuos's own are: below version 2, or below the controller `devices` of version 1 where that one is mounted, and how
//! `/proc/PID/cgroup` names them.

use std::fs;
use std::path::{Path, PathBuf};

use gpuos_core::job::JobId;

/// How the folder of a job's group begins.
pub(super) const JOB: &str = "job_";
/// How the folder of a group of [`super::service`] begins.
pub(super) const SERVICE: &str = "mps_";
/// What the kernel appends to the path of a group that was removed.
const DELETED: &str = " (deleted)";
/// The folder in which pbs_cgroups has its groups, each with the name of a job: below a unit of its own, as in
/// `/pbs_jobs.service/jobid/7.head`.
const OF_PBS_CGROUPS: &str = "jobid";

/// Which hierarchy it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// The controller `devices` of version 1.
    One,
    /// Version 2.
    Two,
}

/// The folder above the groups of jobs, as `/proc/PID/cgroup` has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupsPath {
    pub(super) version: Version,
    pub(super) path: String,
}

impl GroupsPath {
    /// A path in a hierarchy.
    pub fn new(version: Version, path: impl Into<String>) -> GroupsPath {
        let path = path.into();
        GroupsPath { version, path }
    }

    /// The job in whose group a process is, by the text of its `/proc/PID/cgroup`. Total: no text makes it fail.
    pub fn job_in(&self, text: &str) -> Option<JobId> {
        let rest = group(text, self.version)?.strip_prefix(&self.path[..])?;
        job_of(rest.strip_prefix('/')?.split('/').next()?)
    }
}

/// A hierarchy that is mounted, or a part of it.
#[derive(Debug)]
pub(super) struct Hierarchy {
    pub version: Version,
    /// Where.
    pub folder: PathBuf,
    /// Its path for the kernel; empty: the root.
    pub path: String,
}

impl Hierarchy {
    /// The one in which device files are refused below where control groups are mounted. Where `devices` is a controller of version 1 it is that
    /// one: its groups need no programs, and leave processes in all other groups that they are in.
    pub(super) fn below(cgroup: &Path, proc: &Path) -> Result<Hierarchy, String> {
        let is_2 = |place: &PathBuf| place.join("cgroup.controllers").is_file();
        let is_1 = |place: &PathBuf| place.join("devices.deny").is_file();
        let own = Some(cgroup.to_path_buf()).filter(is_2);
        let devices = || Some(cgroup.join("devices")).filter(is_1);
        let beside = || Some(cgroup.join("unified")).filter(is_2);
        let found = own
            .map(|place| (Version::Two, place))
            .or_else(|| Some((Version::One, devices()?)))
            .or_else(|| Some((Version::Two, beside()?)));
        let (version, place) = found.ok_or_else(|| {
            format!(
                "no control groups of version 2 are mounted at {} or in its folder unified, and no controller devices of version 1 in its folder \
                 devices (--cgroup)",
                cgroup.display()
            )
        })?;
        let folder = fs::canonicalize(&place).map_err(|e| format!("{}: {e}", place.display()))?;
        let file = proc.join("self/mountinfo");
        let mounts = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let path = path_of(&mounts, &folder, version)
            .ok_or_else(|| format!("{} is in no mount of {}", folder.display(), file.display()))?;
        Ok(Hierarchy {
            version,
            folder,
            path,
        })
    }
}

/// The job of a group's name; only what is written as gpuosd does.
pub(super) fn job_of(name: &str) -> Option<JobId> {
    let id = name.strip_prefix(JOB)?;
    let job: JobId = id.parse().ok()?;
    (job.to_string() == id).then_some(job)
}

/// The path of a process's group in a hierarchy. Kernels before 5.13 let a newline into names of version 1: where there are two such lines, none
/// is the kernel's for sure.
pub(super) fn group(text: &str, version: Version) -> Option<&str> {
    let mut found = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let own = match version {
            Version::One => controllers.split(',').any(|one| one == "devices"),
            Version::Two => number == "0" && controllers.is_empty(),
        };
        own.then_some(path)
    });
    let path = found.next()?;
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    found.next().is_none().then_some(path)
}

/// The group of pbs_cgroups in which the device files of a process are decided about, if it is in one. Nobody but root makes groups of that
/// controller.
pub(super) fn of_pbs_cgroups(text: &str) -> Option<&str> {
    let path = group(text, Version::One)?;
    let names: Vec<&str> = path.split('/').collect();
    let is_one = |names: &[&str]| {
        names[0].ends_with(".service") && names[1] == OF_PBS_CGROUPS && !names[2].is_empty()
    };
    names.windows(3).any(is_one).then_some(path)
}

/// How the kernel calls a folder of a hierarchy, by `/proc/self/mountinfo`: the innermost mount that it is in counts, and of two at one place the
/// later one. Empty: the root.
fn path_of(mountinfo: &str, folder: &Path, version: Version) -> Option<String> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        let rest = folder.strip_prefix(at).ok()?.to_str()?;
        let path = match rest {
            "" => root.trim_end_matches('/').to_owned(),
            rest => format!("{}/{rest}", root.trim_end_matches('/')),
        };
        let mut fields = after.split(' ');
        let (kind, options) = (fields.next()?, fields.nth(1).unwrap_or_default());
        let own = match version {
            Version::One => kind == "cgroup" && options.split(',').any(|one| one == "devices"),
            Version::Two => kind == "cgroup2",
        };
        Some((at.len(), own.then_some(path)))
    };
    let all = mountinfo.lines().filter_map(mount);
    // The last of those that are equal.
    all.max_by_key(|(long, _)| *long)?.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> JobId {
        text.parse().unwrap()
    }

    #[test]
    fn only_a_whole_path_from_the_root_names_a_job() {
        let path = GroupsPath::new(Version::Two, "/part/gpuos/n1");
        for (text, job) in [
            ("0::/part/gpuos/n1/job_7.head\n", Some("7.head")),
            (
                "3:devices:/x\n0::/part/gpuos/n1/job_7[1].head/inner/job_8\n",
                Some("7[1].head"),
            ),
            ("0::/part/gpuos/n1/job_7 (deleted)\n", Some("7")),
            ("0::/part/gpuos/n1\n", None),
            ("0::/part/gpuos/n12/job_7\n", None),
            ("0::/part/gpuos/n1/job_../x\n", None),
            ("0::/part/gpuos/n1/job_\n", None),
            ("0::/user.slice/part/gpuos/n1/job_7\n", None),
            ("1:name=x:/part/gpuos/n1/job_7\n0::/\n", None),
            ("5:devices:/part/gpuos/n1/job_7\n0::/\n", None),
            // A name of version 1 with a newline in it.
            ("4:pids:/a\n0::/part/gpuos/n1/job_7\n0::/user.slice\n", None),
            ("", None),
        ] {
            assert_eq!(path.job_in(text), job.map(id), "{text}");
        }
        let path = GroupsPath::new(Version::One, "/gpuos/n1");
        for (text, job) in [
            ("5:devices:/gpuos/n1/job_7.head\n0::/\n", Some("7.head")),
            ("5:freezer,devices:/gpuos/n1/job_7.head:x\n", None),
            ("5:freezer,devices:/gpuos/n1/job_7\n", Some("7")),
            ("5:devices2:/gpuos/n1/job_7\n", None),
            ("4:pids:/gpuos/n1/job_7\n5:devices:/\n", None),
            ("0::/gpuos/n1/job_7\n", None),
            ("5:devices:/a\n6:devices:/gpuos/n1/job_7\n", None),
        ] {
            assert_eq!(path.job_in(text), job.map(id), "{text}");
        }
    }

    #[test]
    fn groups_of_pbs_cgroups_are_known_by_their_controller_and_place() {
        let of = |path: &str| of_pbs_cgroups(path).map(str::to_owned);
        for path in [
            "/pbs_jobs.service/jobid/7.head",
            "/site.slice/x.service/jobid/7[3].head/below",
        ] {
            let text = format!("4:memory:/\n5:devices:{path}\n0::/\n");
            assert_eq!(of(&text), Some(path.to_owned()));
            // What it says about memory is nothing about devices.
            assert_eq!(of(&format!("4:memory:{path}\n5:devices:/\n")), None);
        }
        for path in [
            "/",
            "/jobid/7",
            "/pbs_jobs.service/jobid/",
            "/pbs_jobs/jobid/7",
        ] {
            assert_eq!(of(&format!("5:devices:{path}\n")), None, "{path}");
        }
    }

    #[test]
    fn the_kernels_name_of_a_folder_is_found_by_its_mount() {
        let mounts = "20 1 0:5 / / rw - ext4 /dev/a rw\n\
                      30 20 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      31 30 0:28 /lab /sys/fs/cgroup/unified rw shared:3 - cgroup2 cgroup2 rw\n\
                      32 30 0:28 / /sys/fs/cgroup/all rw - cgroup2 none rw\n\
                      33 30 0:29 /lab /sys/fs/cgroup/devices rw shared:4 - cgroup cgroup rw,freezer,devices\n\
                      34 30 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let of = |version, folder: &str| path_of(mounts, Path::new(folder), version);
        let two = |folder| of(Version::Two, folder);
        assert_eq!(two("/sys/fs/cgroup/unified"), Some("/lab".into()));
        assert_eq!(two("/sys/fs/cgroup/unified/a/b"), Some("/lab/a/b".into()));
        assert_eq!(two("/sys/fs/cgroup/all"), Some(String::new()));
        assert_eq!(two("/sys/fs/cgroup/all/a"), Some("/a".into()));
        assert_eq!(two("/sys/fs/cgroup"), None);
        assert_eq!(two("/home"), None);
        assert_eq!(two("/sys/fs/cgroup/devices"), None);
        let one = |folder| of(Version::One, folder);
        assert_eq!(one("/sys/fs/cgroup/devices/a"), Some("/lab/a".into()));
        assert_eq!(one("/sys/fs/cgroup/memory"), None);
        assert_eq!(one("/sys/fs/cgroup/all"), None);
    }
}
