//! What Slurm's control groups let steps open of NVIDIA's GPUs.
//!
//! Nothing can be read back: cgroup/v1 of Slurm denies single devices in a group that allows all others, and the
//! kernel's `devices.list` shows such a group as `a *:* rwm`; version 2 keeps it in a program. So the kernel is
//! asked: somebody enters the group for a moment and makes the device file of each GPU, which the same
//! rules forbid or allow. Nothing is opened, the driver hears nothing of it. With version 1 that is a thread, with
//! version 2 a process ([`mod@ask`]); with its end it leaves the group.

pub mod ask;
pub(in crate::steps) mod v2;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode};

use crate::ThisMachine;
use crate::slurm::group_names::GroupNames;
use crate::slurm::{conf_folder, text};
use crate::steps::job_processes::JobStep;

/// NVIDIA's major number of `/dev/nvidiaN`.
const MAJOR: u32 = 195;
/// No node has more steps with processes; what is beyond is passed over.
const MOST: usize = 1024;

/// A step's control group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepGroup {
    /// Whose.
    pub step: JobStep,
    /// Its folder.
    pub folder: PathBuf,
}

/// The groups of steps that there are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StepGroups {
    /// Those in which processes run.
    pub list: Vec<StepGroup>,
    /// Why of some it is not known whose they are: a clause.
    pub unclear: Option<String>,
}

/// Control groups of steps.
pub trait DeviceGroups: Send {
    /// The groups in which processes run.
    ///
    /// # Errors
    /// Why what steps may open cannot be known here: a clause.
    fn steps(&self) -> Result<StepGroups, String>;
    /// Which of these minor numbers a group lets its processes use.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: the step has ended. [`io::ErrorKind::Interrupted`]: this step cannot be asked now.
    /// Else the kernel cannot be asked at all.
    fn allowed(&self, group: &StepGroup, minors: &[u32]) -> io::Result<BTreeSet<u32>>;
}

/// The kernel's groups.
#[derive(Clone, Debug)]
pub struct Cgroups {
    root: PathBuf,
    scratch: PathBuf,
    node: String,
    program: PathBuf,
    conf: Option<PathBuf>,
    names: Arc<GroupNames>,
}

impl Cgroups {
    /// Where they are mounted.
    pub(in crate::steps) fn root(&self) -> &Path {
        &self.root
    }

    /// Slurm's name of the node.
    pub(in crate::steps) fn node(&self) -> &str {
        &self.node
    }

    /// Below the folder where the controllers are mounted, `/sys/fs/cgroup` as a rule or `CgroupMountpoint` of
    /// cgroup.conf. Device files are made in `scratch` for a moment. Where several slurmd run on one machine, Slurm
    /// keeps the groups of each apart by the name of its node.
    pub fn at(root: impl Into<PathBuf>, scratch: impl Into<PathBuf>, node: &str) -> Cgroups {
        Cgroups {
            root: root.into(),
            scratch: scratch.into(),
            node: node.to_owned(),
            // Also the one that is running where an update has put another in its place.
            program: "/proc/self/exe".into(),
            conf: None,
            names: Arc::default(),
        }
    }

    /// With the jobs of groups that Slurm has named by an id of its own, as slurmctld tells them.
    #[must_use]
    pub fn with_group_names(mut self, names: &Arc<GroupNames>) -> Cgroups {
        self.names = Arc::clone(names);
        self
    }

    /// The jobs of groups that have no number.
    pub(in crate::steps) fn names(&self) -> &GroupNames {
        &self.names
    }

    /// With another program that enters groups of version 2, started with [`ask::FLAG`], instead of the one that runs,
    /// and with Slurm's files in another folder.
    #[must_use]
    pub fn with(mut self, program: impl Into<PathBuf>, conf: impl Into<PathBuf>) -> Cgroups {
        self.program = program.into();
        self.conf = Some(conf.into());
        self
    }

    /// Whether Slurm confines devices: where it does not, its groups of version 2 look the same.
    fn confined(&self) -> Result<(), String> {
        let folder = self.conf.clone().or_else(|| conf_folder(&ThisMachine));
        let file = folder
            .ok_or("Slurm's cgroup.conf is not found")?
            .join("cgroup.conf");
        let text = text(&ThisMachine, &file)?.unwrap_or_default();
        match constrains_devices(&text) {
            true => Ok(()),
            false => Err(format!("{} has no ConstrainDevices=yes", file.display())),
        }
    }

    fn version_1(&self) -> Option<PathBuf> {
        Some(self.root.join("devices")).filter(|devices| devices.is_dir())
    }
}

/// Whether cgroup.conf asks for it. Keys and values ignore case.
fn constrains_devices(text: &str) -> bool {
    let lines = text.lines().filter_map(|line| line.split('#').next());
    let mut values = lines.filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        let own = key.trim().eq_ignore_ascii_case("ConstrainDevices");
        own.then(|| value.trim().trim_matches('"').to_ascii_lowercase())
    });
    values
        .next_back()
        .is_some_and(|value| ["yes", "true", "up", "1"].contains(&&value[..]))
}

fn may_not() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "gpuosd may not make device files (CAP_MKNOD, or a control group of its own)",
    )
}

/// Folders in a folder, by the start of their names.
fn folders(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with(start))
    });
    let is_folder = |path: &PathBuf| path.is_dir();
    named.map(|entry| entry.path()).filter(is_folder).collect()
}

/// Whether processes run in a group or the tasks' groups below it. Slurm leaves empty ones behind.
fn runs(group: &Path) -> bool {
    let own = |folder: &Path| {
        fs::read(folder.join("cgroup.procs")).is_ok_and(|processes| !processes.is_empty())
    };
    own(group) || folders(group, "task_").iter().any(|task| own(task))
}

impl DeviceGroups for Cgroups {
    fn steps(&self) -> Result<StepGroups, String> {
        let Some(devices) = self.version_1() else {
            if !v2::mounted(&self.root) {
                return Err(format!(
                    "no control groups with devices are mounted at {} (--cgroup)",
                    self.root.display()
                ));
            }
            self.confined()?;
            return v2::steps(&self.root, &self.node, &self.names);
        };
        let names = [format!("slurm_{}", self.node), "slurm".into()];
        let slurm = names.iter().map(|name| devices.join(name));
        let slurm: Vec<PathBuf> = slurm.filter(|folder| folder.is_dir()).take(1).collect();
        if slurm.is_empty() {
            return Err("Slurm confines no devices here, or no job has run yet".into());
        }
        let below = |from: Vec<PathBuf>, start: &str| -> Vec<PathBuf> {
            from.iter()
                .flat_map(|folder| folders(folder, start))
                .collect()
        };
        let steps = below(below(below(slurm, "uid_"), "job_"), "step_");
        // Slurm kills and freezes whatever it finds in a step's freezer.
        if steps.iter().any(|step| step.join("freezer.state").exists()) {
            return Err(
                "the devices and freezer controllers are mounted as one: entering a step's group \
                        would make gpuosd a part of the step"
                    .into(),
            );
        }
        let group = |folder: PathBuf| {
            let path = folder.strip_prefix(&devices).ok()?;
            let step = JobStep::of_path(path.to_str()?, &self.names)?;
            runs(&folder).then_some(StepGroup { step, folder })
        };
        Ok(StepGroups {
            list: steps.into_iter().filter_map(group).take(MOST).collect(),
            unclear: None,
        })
    }

    fn allowed(&self, group: &StepGroup, minors: &[u32]) -> io::Result<BTreeSet<u32>> {
        if self.version_1().is_none() {
            return v2::allowed(&self.program, &self.scratch, &group.folder, minors);
        }
        let file = self
            .scratch
            .join(format!(".gpuosd-asks-{}", std::process::id()));
        let inside = || {
            // Whoever may not make device files at all would take every refusal for the group's.
            if let Some(minor) = minors.first()
                && !make(&file, *minor)?
            {
                return Err(may_not());
            }
            let own = rustix::thread::gettid().as_raw_nonzero().to_string();
            fs::write(group.folder.join("tasks"), own)?;
            let mut allowed = BTreeSet::new();
            for minor in minors {
                if make(&file, *minor)? {
                    allowed.insert(*minor);
                }
            }
            Ok(allowed)
        };
        std::thread::scope(|scope| {
            let asked = scope.spawn(inside).join();
            asked.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        })
    }
}

/// Makes a device file and takes it away; whether the kernel let it be made.
fn make(path: &Path, minor: u32) -> io::Result<bool> {
    let _ = fs::remove_file(path);
    let device = rustix::fs::makedev(MAJOR, minor);
    match rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::RUSR, device) {
        Ok(()) => fs::remove_file(path).map(|()| true),
        Err(rustix::io::Errno::PERM) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The twin: groups with what they allow.
#[derive(Clone, Debug, Default)]
pub struct RecordedGroups {
    /// Steps, and minor numbers that each allows.
    pub list: Vec<(JobStep, BTreeSet<u32>)>,
}

impl DeviceGroups for RecordedGroups {
    fn steps(&self) -> Result<StepGroups, String> {
        let group = |(at, (step, _)): (usize, &(JobStep, _))| StepGroup {
            step: step.clone(),
            folder: at.to_string().into(),
        };
        Ok(StepGroups {
            list: self.list.iter().enumerate().map(group).collect(),
            unclear: None,
        })
    }

    fn allowed(&self, group: &StepGroup, minors: &[u32]) -> io::Result<BTreeSet<u32>> {
        let known = self.list.iter().find(|(step, _)| *step == group.step);
        let (_, allowed) = known.ok_or(io::ErrorKind::NotFound)?;
        Ok(minors
            .iter()
            .copied()
            .filter(|minor| allowed.contains(minor))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_the_kernel_is_asked_and_left_again() {
        let devices = Path::new("/sys/fs/cgroup/devices");
        let mount = devices.join(format!("gpuos-test-{}", std::process::id()));
        let step = mount.join("slurm_n1/uid_0/job_7/step_0");
        if let Err(error) = fs::create_dir_all(&step) {
            eprintln!("skipped: {}: {error}", step.display());
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("cgroup");
        fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink(&mount, root.join("devices")).unwrap();
        let groups = Cgroups::at(&root, scratch.path(), "n1");
        let mut sleep = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let look = || {
            fs::write(step.join("devices.deny"), "c 195:3 rwm").map_err(|e| e.to_string())?;
            assert_eq!(
                groups.steps(),
                Ok(StepGroups::default()),
                "nobody runs in it"
            );
            fs::write(step.join("cgroup.procs"), sleep.id().to_string())
                .map_err(|e| e.to_string())?;
            let steps = groups.steps()?.list;
            let allowed = groups
                .allowed(&steps[0], &[2, 3, 4])
                .map_err(|e| e.to_string())?;
            Ok::<_, String>((steps, allowed))
        };
        let found = look();
        let _ = sleep.kill();
        let _ = sleep.wait();
        // A thread that was joined is in its group for a moment more: the kernel tells of its end first.
        let left = (0..6000).find_map(|_| {
            let left = fs::read_to_string(step.join("tasks"));
            let empty = left.is_ok_and(|left| left.is_empty());
            std::thread::sleep(std::time::Duration::from_millis(10));
            empty.then_some(())
        });
        for folder in step.ancestors().take(5) {
            for _ in 0..100 {
                if fs::remove_dir(folder).is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        match found {
            Ok((steps, allowed)) => {
                assert_eq!(
                    (steps[0].step.job.number(), &steps[0].step.step[..]),
                    (Some(7), "0")
                );
                assert_eq!(allowed, [2, 4].into());
                assert!(left.is_some(), "nobody is left in it");
            }
            Err(error) => eprintln!("skipped: {error}"),
        }
    }

    #[test]
    fn where_groups_cannot_be_entered_it_is_said_that_nothing_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let groups = Cgroups::at(folder.path(), folder.path(), "n1");
        assert!(groups.steps().unwrap_err().contains("no control groups"));
        fs::create_dir_all(folder.path().join("devices/system.slice")).unwrap();
        assert!(groups.steps().unwrap_err().contains("confines no devices"));
        let step = folder.path().join("devices/slurm/uid_1/job_3/step_0");
        fs::create_dir_all(&step).unwrap();
        fs::write(step.join("cgroup.procs"), "41\n").unwrap();
        assert_eq!(groups.steps().unwrap().list.len(), 1);
        fs::write(step.join("freezer.state"), "THAWED\n").unwrap();
        assert!(groups.steps().unwrap_err().contains("freezer"));
        let twin = RecordedGroups {
            list: vec![(
                JobStep {
                    job: 3.into(),
                    step: "0".into(),
                },
                [1].into(),
            )],
        };
        let group = &twin.steps().unwrap().list[0];
        assert_eq!(twin.allowed(group, &[0, 1]).unwrap(), [1].into());
    }

    #[test]
    fn groups_of_version_2_are_asked_only_where_slurm_confines_devices() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu\n").unwrap();
        let groups = Cgroups::at(root.path(), root.path(), "n1").with("/x", root.path());
        let conf = root.path().join("cgroup.conf");
        for (text, confined) in [
            ("ConstrainDevices=no\n", false),
            ("# ConstrainDevices=yes\n", false),
            ("constraindevices = Yes # all\n", true),
        ] {
            fs::write(&conf, text).unwrap();
            let said = groups.steps().unwrap_err();
            assert_eq!(said.contains("no job has run"), confined, "{text}: {said}");
        }
    }
}
