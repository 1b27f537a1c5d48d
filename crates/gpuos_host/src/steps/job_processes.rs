//! Which process a number means, and which job it belongs to, by its control group.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuos_core::step::StepId;
use gpuos_model::screen::line;
use rustix::process::Signal;

use super::own_groups::GroupsPath;
use super::started::started;
use crate::slurm::group_names::GroupNames;

pub use crate::slurm::control_groups::{Belongs, JobStep, Roots};

/// A process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Who {
    /// When it was started, in the kernel's ticks since boot: with its number this names one process for ever.
    pub started: u64,
    /// Its user.
    pub uid: u32,
    /// Users whose process it is: those that the kernel names for it, and whoever made the user namespace in which it runs,
    /// where that one is mapped by name: a container without root runs as other users than its owner.
    pub owners: Vec<u32>,
    /// Its name, as it says itself; at most 15 bytes.
    pub program: String,
    /// The job step that it belongs to.
    pub step: Option<JobStep>,
    /// It is in a group of Slurm's, and whose is not to be told: why, in a clause.
    pub unclear: Option<String>,
    /// It has ended, and nobody has asked how.
    pub ended: bool,
    /// A signal has stopped it, or a debugger.
    pub stopped: bool,
}

/// What became of a kill.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Killed {
    /// The signal was sent.
    Sent,
    /// That process is not there any more.
    Gone,
}

/// Where processes are looked up.
pub trait Processes: Send + Sync {
    /// Who a process is; `None` when it is gone.
    ///
    /// # Errors
    /// It cannot be read.
    fn who(&self, pid: u32) -> io::Result<Option<Who>>;
    /// Sends SIGKILL to the process that was started at [`Who::started`], and to no other that has its number by now.
    ///
    /// # Errors
    /// The kernel refuses.
    fn kill(&self, pid: u32, started: u64) -> io::Result<Killed>;
}

/// The kernel's `/proc`, or a recorded one.
#[derive(Clone, Debug)]
pub struct Proc {
    root: PathBuf,
    /// Where an administrator says that Slurm's control groups begin.
    groups: String,
    /// Whose groups count.
    whose: Whose,
    /// The jobs of groups that Slurm has given no number.
    names: Arc<GroupNames>,
}

/// Whose control groups tell the job of a process.
#[derive(Clone, Debug)]
enum Whose {
    /// Slurm's.
    Slurm,
    /// gpuos's own, below this path; `None`: there are none on this machine.
    Own(Option<GroupsPath>),
}

impl Proc {
    /// This machine's `/proc`, or a recorded folder in its place.
    pub fn at(root: impl Into<PathBuf>) -> Proc {
        Proc {
            root: root.into(),
            groups: String::new(),
            whose: Whose::Slurm,
            names: Arc::default(),
        }
    }

    /// With jobs by the groups of [`super::own_groups`] below this path, and not by Slurm's; `None`: there are none, and no process is known to
    /// be of a job.
    #[must_use]
    pub fn with_own_groups(mut self, path: Option<&GroupsPath>) -> Proc {
        self.whose = Whose::Own(path.cloned());
        self
    }

    /// The step of a process by the text of its `/proc/PID/cgroup`, or why that is not to be told.
    fn step(&self, groups: &str) -> (Option<JobStep>, Option<String>) {
        match &self.whose {
            Whose::Slurm => match Belongs::parse(groups, &self.roots(), &self.names) {
                Belongs::Nobody => (None, None),
                Belongs::Step(step) => (Some(step), None),
                Belongs::Unclear(why) => (None, Some(why)),
            },
            Whose::Own(path) => {
                let job = path.as_ref().and_then(|path| path.job_in(groups));
                // All programs of a job have one group.
                let step = job.map(|job| JobStep {
                    job,
                    step: StepId::name(StepId::BATCH),
                });
                (step, None)
            }
        }
    }

    /// With the jobs of groups that Slurm has named by an id of its own, as slurmctld tells them.
    #[must_use]
    pub fn with_group_names(mut self, names: &Arc<GroupNames>) -> Proc {
        self.names = Arc::clone(names);
        self
    }

    /// With Slurm's control groups below this path of their hierarchies, beside where Slurm itself would look.
    #[must_use]
    pub fn with_groups_below(mut self, path: &str) -> Proc {
        path.clone_into(&mut self.groups);
        self
    }

    /// Where Slurm's control groups begin. Read anew each time: it is one small file, and containers come and go.
    fn roots(&self) -> Roots {
        let first = self.file(1, "cgroup").ok().flatten().unwrap_or_default();
        Roots::of_first_process(&first).with(&self.groups)
    }

    fn file(&self, pid: u32, name: &str) -> io::Result<Option<String>> {
        text(&self.root.join(pid.to_string()).join(name))
    }

    fn started(&self, pid: u32) -> io::Result<Option<u64>> {
        Ok(self.file(pid, "stat")?.as_deref().and_then(started))
    }
}

/// Users that a user namespace maps one by one, by `/proc/PID/uid_map` as seen from here. Whoever makes one without rights may
/// map himself so, and ranges that root has given him (`/etc/subuid`): those are no names.
fn mapped_alone(map: &str) -> Vec<u32> {
    let one = |line: &str| {
        let fields: Vec<u32> = line
            .split_ascii_whitespace()
            .map_while(|field| field.parse().ok())
            .collect();
        match fields[..] {
            [_, outside, 1] => Some(outside),
            _ => None,
        }
    };
    map.lines().filter_map(one).collect()
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
    fn who(&self, pid: u32) -> io::Result<Option<Who>> {
        let (Some(started), Some(status), Some(groups)) = (
            self.started(pid)?,
            self.file(pid, "status")?,
            self.file(pid, "cgroup")?,
        ) else {
            return Ok(None);
        };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // Its effective user is the second of four.
        let uids = field("Uid:").unwrap_or_default().split_ascii_whitespace();
        let uids: Vec<u32> = uids.filter_map(|uid| uid.parse().ok()).collect();
        let uid = uids.get(1).copied();
        let (step, unclear) = self.step(&groups);
        let mapped = self.file(pid, "uid_map").ok().flatten().unwrap_or_default();
        let owners = uids.iter().copied().chain(mapped_alone(&mapped)).collect();
        let state = field("State:").unwrap_or_default().trim_start();
        // The kernel calls a process whose first thread has ended a zombie, while others live on with its files and its memory.
        let threads = field("Threads:").and_then(|count| count.trim().parse::<u32>().ok());
        let ended = state.starts_with(['Z', 'X']) && threads.is_none_or(|count| count <= 1);
        let who = |uid| Who {
            started,
            uid,
            owners,
            // It goes into logs and onto screens.
            program: line(field("Name:").unwrap_or_default().trim()).into_owned(),
            step,
            unclear,
            ended,
            stopped: state.starts_with(['T', 't']),
        };
        Ok(uid.map(who))
    }

    fn kill(&self, pid: u32, started: u64) -> io::Result<Killed> {
        self.signal(pid, started, Signal::KILL)
    }
}

impl Proc {
    /// [`Processes::kill`] with SIGTERM.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn terminate(&self, pid: u32, started: u64) -> io::Result<Killed> {
        self.signal(pid, started, Signal::TERM)
    }

    /// Processes that a process has started itself, as far as they can be read.
    pub fn children(&self, pid: u32) -> Vec<u32> {
        let parent = pid.to_string();
        let entries = std::fs::read_dir(&self.root)
            .into_iter()
            .flatten()
            .flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let own = |number: &u32| {
            let status = self
                .file(*number, "status")
                .ok()
                .flatten()
                .unwrap_or_default();
            let mut lines = status.lines();
            lines
                .find_map(|line| line.strip_prefix("PPid:"))
                .map(str::trim)
                == Some(&parent[..])
        };
        numbers.filter(own).collect()
    }

    /// The real group of a process, which nobody gives himself by a program with another one's rights.
    pub fn real_group(&self, pid: u32) -> Option<u32> {
        let status = self.file(pid, "status").ok()??;
        let mut lines = status.lines();
        let groups = lines.find_map(|line| line.strip_prefix("Gid:"))?;
        groups.split_ascii_whitespace().next()?.parse().ok()
    }

    /// The unit of systemd that a process belongs to, as far as its control group says: `jupyter.service`.
    pub fn unit(&self, pid: u32) -> Option<String> {
        let groups = self.file(pid, "cgroup").ok()??;
        let parts = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        let mut parts = parts.flat_map(|path| path.rsplit('/'));
        let unit = parts.find(|part| part.ends_with(".service") || part.ends_with(".scope"));
        unit.map(str::to_owned)
    }

    fn signal(&self, pid: u32, started: u64, signal: Signal) -> io::Result<Killed> {
        use rustix::io::Errno;
        use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(io::ErrorKind::InvalidInput)?;
        let process = match pidfd_open(number, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Ok(Killed::Gone),
            Err(error) => return Err(error.into()),
        };
        // Held by its descriptor, the number cannot pass on to another process any more.
        if self.started(pid)? != Some(started) {
            return Ok(Killed::Gone);
        }
        match pidfd_send_signal(&process, signal) {
            Ok(()) => Ok(Killed::Sent),
            Err(Errno::SRCH) => Ok(Killed::Gone),
            Err(error) => Err(error.into()),
        }
    }
}

/// The twin.
#[derive(Debug, Default)]
pub struct RecordedProcesses {
    /// Processes by number; a kill takes them away.
    pub list: Mutex<BTreeMap<u32, Who>>,
}

impl RecordedProcesses {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Who>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Processes for RecordedProcesses {
    fn who(&self, pid: u32) -> io::Result<Option<Who>> {
        Ok(self.lock().get(&pid).cloned())
    }

    fn kill(&self, pid: u32, started: u64) -> io::Result<Killed> {
        let mut list = self.lock();
        match list.get(&pid).is_some_and(|who| who.started == started) {
            true => {
                list.remove(&pid);
                Ok(Killed::Sent)
            }
            false => Ok(Killed::Gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(job: u32, step: &str) -> Option<JobStep> {
        let step = step.into();
        Some(JobStep {
            job: job.into(),
            step,
        })
    }

    #[test]
    fn a_recorded_folder_is_read_like_the_kernels() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let fields: Vec<String> = (3..=52).map(|field| format!("{}", field * 100)).collect();
        put("41/stat", &format!("41 (a) b) {}\n", fields.join(" ")));
        put(
            "41/status",
            "Name:\tpython3\nUmask:\t0022\nUid:\t1\t1000\t1\t1\n",
        );
        put("41/cgroup", "7:devices:/slurm/uid_1/job_3/step_0\n");
        // It ended while it was read.
        put("42/stat", "42 (x) S");
        let proc = Proc::at(folder.path());
        let who = Who {
            started: 2200,
            uid: 1000,
            owners: vec![1, 1000, 1, 1],
            program: "python3".into(),
            step: step(3, "0"),
            unclear: None,
            ended: false,
            stopped: false,
        };
        assert_eq!(proc.who(41).unwrap(), Some(who.clone()));
        assert_eq!((proc.who(42).unwrap(), proc.who(43).unwrap()), (None, None));
        for (state, ended, stopped) in [
            ("S (sleeping)", false, false),
            ("T (stopped)", false, true),
            ("t (tracing stop)", false, true),
            ("Z (zombie)", true, false),
            ("Z (zombie)\nThreads:\t1", true, false),
            ("Z (zombie)\nThreads:\t3", false, false),
        ] {
            let status = format!("Name:\tpython3\nState:\t{state}\nUid:\t1\t1000\t1\t1\n");
            put("41/status", &status);
            let who = proc.who(41).unwrap().unwrap();
            assert_eq!((who.ended, who.stopped), (ended, stopped), "{state}");
        }
        put(
            "41/status",
            "Name:\tpython3\nUmask:\t0022\nUid:\t1\t1000\t1\t1\n",
        );
        let twin = RecordedProcesses::default();
        twin.list.lock().unwrap().insert(41, who);
        assert_eq!(twin.who(41).unwrap(), proc.who(41).unwrap());
        assert_eq!(twin.kill(41, 1).unwrap(), Killed::Gone);
        assert_eq!(twin.kill(41, 2200).unwrap(), Killed::Sent);
        assert_eq!(twin.who(41).unwrap(), None);
    }

    #[test]
    fn a_process_is_killed_and_never_another_with_its_number() {
        let proc = Proc::at("/proc");
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = child.id();
        let who = proc.who(pid).unwrap().unwrap();
        assert_eq!(who.step, None);
        assert_eq!(proc.kill(pid, who.started + 1).unwrap(), Killed::Gone);
        assert!(child.try_wait().unwrap().is_none());
        assert_eq!(proc.kill(pid, who.started).unwrap(), Killed::Sent);
        assert!(!child.wait().unwrap().success());
        assert_eq!(proc.kill(pid, who.started).unwrap(), Killed::Gone);
    }

    #[test]
    fn who_made_a_user_namespace_is_known_by_its_map() {
        assert!(mapped_alone("         0          0 4294967295\n").is_empty());
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(mapped_alone(rootless), [1000]);
        assert!(mapped_alone("nonsense\n0 x 1\n0 5\n").is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text: String) {
            started(&text);
            mapped_alone(&text);
        }
    }
}
