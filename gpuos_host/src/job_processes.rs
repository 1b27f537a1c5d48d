//! Which job a process belongs to, and which devices a job may touch, by its control group.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// A step of a job, as Slurm names its control group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct JobStep {
    /// The job's number.
    pub job: u32,
    /// `0`, `1`, … `batch`, `extern` or `interactive`; empty for the job itself.
    pub step: String,
}

impl JobStep {
    /// From the text of `/proc/PID/cgroup`: Slurm's hierarchies of version 1 (`/slurm/uid_1000/job_17/step_0/task_0`)
    /// and version 2 (`/system.slice/slurmstepd.scope/job_17/step_0/user/task_0`). `None` for a process of no
    /// job. Total: no text makes it fail.
    pub fn parse(text: &str) -> Option<JobStep> {
        let steps = text
            .lines()
            .filter_map(|line| JobStep::of_path(line.splitn(3, ':').nth(2)?));
        // Controllers that Slurm does not use stay outside of the job.
        steps.max_by_key(|found| !found.step.is_empty())
    }

    fn of_path(path: &str) -> Option<JobStep> {
        let mut parts = path.split('/');
        // Anybody may name a group job_1: Slurm's lie below its own, which has the node's name in it where
        // several slurmd run on one machine.
        let own = |part: &str| {
            part == "slurm" || part.starts_with("slurm_") || part.ends_with("slurmstepd.scope")
        };
        parts.find(|part| own(part))?;
        let job = parts.find_map(|part| part.strip_prefix("job_")?.parse().ok())?;
        let step = parts.next().and_then(|part| part.strip_prefix("step_"));
        Some(JobStep {
            job,
            step: step.unwrap_or_default().to_owned(),
        })
    }
}

/// What a job's control group lets it open of NVIDIA's GPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Allowed {
    /// Every device: Slurm does not confine devices (`ConstrainDevices=no`).
    All,
    /// `/dev/nvidiaN` of these minor numbers.
    Minors(BTreeSet<u32>),
    /// It cannot be read: control groups of version 2 keep it in a program of the kernel.
    Unknown,
}

impl Allowed {
    /// From `devices.list` of a group of version 1.
    pub fn parse(list: &str) -> Allowed {
        let mut minors = BTreeSet::new();
        for line in list.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(kind), Some(number)) = (words.next(), words.next()) else {
                continue;
            };
            let all = kind == "a" || number == "*:*" || number == "195:*";
            match (all, number.strip_prefix("195:").map(str::parse)) {
                (true, _) => return Allowed::All,
                // 255 is /dev/nvidiactl, 254 nvidia-modeset.
                (_, Some(Ok(minor @ 0..254))) => {
                    minors.insert(minor);
                }
                _ => {}
            }
        }
        Allowed::Minors(minors)
    }
}

/// Where processes are looked up.
pub trait Processes: Send + Sync {
    /// The job step of a process; `None` when it belongs to none, or is gone.
    fn step_of(&self, pid: u32) -> io::Result<Option<JobStep>>;
    /// What a process may open.
    fn allowed(&self, pid: u32) -> io::Result<Allowed>;
}

/// The kernel's `/proc` and control groups, or recorded ones.
#[derive(Clone, Debug)]
pub struct Proc {
    proc: PathBuf,
    cgroup: PathBuf,
}

impl Proc {
    /// This machine's.
    pub fn real() -> Proc {
        Proc::at("/proc", "/sys/fs/cgroup")
    }

    /// Recorded folders in place of `/proc` and `/sys/fs/cgroup`.
    pub fn at(proc: impl Into<PathBuf>, cgroup: impl Into<PathBuf>) -> Proc {
        Proc {
            proc: proc.into(),
            cgroup: cgroup.into(),
        }
    }

    fn groups(&self, pid: u32) -> io::Result<Option<String>> {
        text(&self.proc.join(pid.to_string()).join("cgroup"))
    }
}

/// A file's text; `None` when it, or the process in it, is gone.
fn text(path: &Path) -> io::Result<Option<String>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        // Reading of a process that just ended.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            Ok(None)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Processes for Proc {
    fn step_of(&self, pid: u32) -> io::Result<Option<JobStep>> {
        Ok(self.groups(pid)?.as_deref().and_then(JobStep::parse))
    }

    fn allowed(&self, pid: u32) -> io::Result<Allowed> {
        let groups = self.groups(pid)?.unwrap_or_default();
        let devices = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            let mounted = controllers.split(',').any(|name| name == "devices");
            parts.next().filter(|_| mounted)
        });
        let Some(path) = devices else {
            return Ok(Allowed::Unknown);
        };
        let folder = self
            .cgroup
            .join("devices")
            .join(path.trim_start_matches('/'));
        let list = text(&folder.join("devices.list"))?;
        Ok(list.map_or(Allowed::Unknown, |list| Allowed::parse(&list)))
    }
}

/// The twin.
#[derive(Clone, Debug, Default)]
pub struct RecordedProcesses {
    /// Processes by number, with their steps and what they may open.
    pub list: std::collections::BTreeMap<u32, (Option<JobStep>, Option<Allowed>)>,
}

impl Processes for RecordedProcesses {
    fn step_of(&self, pid: u32) -> io::Result<Option<JobStep>> {
        Ok(self.list.get(&pid).and_then(|(step, _)| step.clone()))
    }

    fn allowed(&self, pid: u32) -> io::Result<Allowed> {
        let known = self.list.get(&pid).and_then(|(_, allowed)| allowed.clone());
        Ok(known.unwrap_or(Allowed::Unknown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(job: u32, step: &str) -> Option<JobStep> {
        Some(JobStep {
            job,
            step: step.into(),
        })
    }

    #[test]
    fn groups_of_both_versions() {
        for (text, found) in [
            (
                "11:devices:/slurm/uid_1000/job_17/step_0/task_3\n4:cpu,cpuacct:/user.slice\n0::/init.scope\n",
                step(17, "0"),
            ),
            (
                "5:freezer:/slurm_n1/uid_0/job_4/step_batch\n",
                step(4, "batch"),
            ),
            (
                "3:devices:/slurm/uid_5/job_8\n2:freezer:/slurm/uid_5/job_8/step_extern\n",
                step(8, "extern"),
            ),
            (
                "0::/system.slice/slurmstepd.scope/job_21/step_interactive/user/task_0\n",
                step(21, "interactive"),
            ),
            (
                "0::/system.slice/n2_slurmstepd.scope/job_21/step_1/slurm\n",
                step(21, "1"),
            ),
            ("0::/system.slice/slurmstepd.scope/system\n", None),
            ("0::/user.slice/job_9/step_0\n", None),
            (
                "0::/system.slice/slurmstepd.scope/job_99999999999/step_0\n",
                None,
            ),
            ("", None),
        ] {
            assert_eq!(JobStep::parse(text), found, "{text}");
        }
    }

    #[test]
    fn devices_of_a_job() {
        let minors = |list: &str| Allowed::parse(list);
        let some = |all: &[u32]| Allowed::Minors(all.iter().copied().collect());
        assert_eq!(minors("a *:* rwm\n"), Allowed::All);
        assert_eq!(
            minors("c 1:3 rwm\nc 195:2 rw\nc 195:255 rw\nc 195:5 rwm\nb 8:0 r\n"),
            some(&[2, 5])
        );
        assert_eq!(minors("c 195:* rwm\n"), Allowed::All);
        assert_eq!(minors("nonsense\nc\n"), some(&[]));
    }

    #[test]
    fn recorded_folders_are_read_like_the_kernels() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/41/cgroup", "7:devices:/slurm/uid_1/job_3/step_0\n");
        put(
            "cgroup/devices/slurm/uid_1/job_3/step_0/devices.list",
            "c 195:1 rwm\n",
        );
        put(
            "proc/42/cgroup",
            "0::/system.slice/slurmstepd.scope/job_4/step_0/user\n",
        );
        let machine = Proc::at(folder.path().join("proc"), folder.path().join("cgroup"));
        assert_eq!(machine.step_of(41).unwrap(), step(3, "0"));
        assert_eq!(machine.allowed(41).unwrap(), Allowed::Minors([1].into()));
        assert_eq!(machine.step_of(42).unwrap(), step(4, "0"));
        assert_eq!(machine.allowed(42).unwrap(), Allowed::Unknown);
        assert_eq!(
            (machine.step_of(43).unwrap(), machine.allowed(43).unwrap()),
            (None, Allowed::Unknown)
        );
        // This process belongs to no job of Slurm's here, and can be looked up.
        assert!(Proc::real().step_of(std::process::id()).is_ok());
        let mut twin = RecordedProcesses::default();
        twin.list
            .insert(41, (step(3, "0"), Some(Allowed::Minors([1].into()))));
        assert_eq!(twin.step_of(41).unwrap(), machine.step_of(41).unwrap());
        assert_eq!(twin.allowed(41).unwrap(), machine.allowed(41).unwrap());
        assert_eq!(twin.allowed(42).unwrap(), Allowed::Unknown);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text: String, path in "(/slurm|/job_[0-9]{0,12}|/step_[a-z0-9]{0,5}|:){0,8}") {
            JobStep::parse(&text);
            JobStep::parse(&format!("1:devices:{path}"));
            Allowed::parse(&text);
        }
    }
}
