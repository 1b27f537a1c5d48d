//! cgroup.conf, and which of Slurm's plugins use control groups.

use std::path::{Path, PathBuf};

use gpuos_config::slurm_conf::ConfLine;
use gpuos_host::slurm::files::{Setting, SlurmFile};
use gpuos_host::slurm::releases;

use super::super::{Context, plugins};

/// Where control groups are, for Slurm's cgroup/autodetect always and for its plugins unless cgroup.conf says otherwise.
pub const MOUNTED: &str = "/sys/fs/cgroup";

/// cgroup.conf as slurmd would read it here.
pub struct Conf {
    path: PathBuf,
    file: Option<SlurmFile>,
}

impl Conf {
    /// The file beside slurmctld's slurm.conf, else beside the one that this host has.
    pub fn read(look: &Context) -> Conf {
        let own = look.conf.and_then(|conf| conf.path.parent());
        let folders = [Some(look.settings.directory()), own.map(Path::to_path_buf)];
        let mut all = folders.into_iter().flatten().map(|folder| {
            let path = folder.join("cgroup.conf");
            let file = SlurmFile::read(look.machine, &path).unwrap_or_default();
            Conf { path, file }
        });
        let first = all.next();
        let found = first.as_ref().is_some_and(|conf| conf.file.is_some());
        match all.find(|conf| !found && conf.file.is_some()) {
            Some(other) => other,
            None => first.unwrap_or(Conf {
                path: PathBuf::from("cgroup.conf"),
                file: None,
            }),
        }
    }

    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.file.is_some()
    }

    /// Its lines.
    pub fn lines(&self) -> impl Iterator<Item = &ConfLine> {
        self.file.iter().flat_map(|file| &file.lines)
    }

    /// A setting. The key is in lower case.
    pub fn get(&self, key: &str) -> Option<Setting> {
        self.file.as_ref()?.get(key)
    }

    /// Whether a setting is yes, in one of Slurm's words.
    pub fn is(&self, key: &str) -> bool {
        let yes = ["yes", "true", "up", "1"];
        self.get(key)
            .is_some_and(|one| yes.contains(&one.value.to_ascii_lowercase().as_str()))
    }

    /// `cgroup.conf:3` for a setting, else the file.
    pub fn place(&self, key: &str) -> String {
        self.get(key)
            .map_or_else(|| self.path.display().to_string(), |one| one.place)
    }

    /// `CgroupPlugin`, in lower case.
    pub fn plugin(&self) -> String {
        self.get("cgroupplugin")
            .map_or_else(|| "autodetect".into(), |one| one.value.to_ascii_lowercase())
    }

    /// Whether control groups are where systemd puts them.
    pub fn usual_place(&self) -> bool {
        self.get("cgroupmountpoint")
            .is_none_or(|one| one.value.trim_end_matches('/') == MOUNTED)
    }
}

/// Which of Slurm's plugins use control groups.
pub struct Uses {
    /// task/cgroup: what a step may use.
    pub task: bool,
    /// proctrack/cgroup: which processes are a step's.
    pub track: bool,
    /// jobacct_gather/cgroup: what a step has used.
    pub account: bool,
}

impl Uses {
    /// By slurm.conf.
    pub fn of(look: &Context) -> Uses {
        let task = look.settings.list("TaskPlugin");
        let track = look.settings.get("ProctrackType");
        Uses {
            task: task
                .iter()
                .any(|one| one.trim_start_matches("task/") == "cgroup"),
            track: track.is_none_or(|one| one == "proctrack/cgroup"),
            account: look.settings.get("JobAcctGatherType") == Some("jobacct_gather/cgroup"),
        }
    }

    /// Whether one does.
    pub fn any(&self) -> bool {
        self.task || self.track || self.account
    }

    /// `task/cgroup and proctrack/cgroup`.
    pub fn words(&self) -> String {
        let all = [
            (self.task, "task/cgroup"),
            (self.track, "proctrack/cgroup"),
            (self.account, "jobacct_gather/cgroup"),
        ];
        let used: Vec<&str> = all
            .iter()
            .filter(|(used, _)| *used)
            .map(|(_, word)| *word)
            .collect();
        used.join(" and ")
    }
}

/// Whether Slurm is of this release or newer; `None` where the release is not known.
pub fn since(look: &Context, release: [u32; 3]) -> Option<bool> {
    let told = releases::numbers(look.settings.release());
    let is = told.or_else(|| releases::numbers(&plugins::installed(look.machine)?))?;
    Some(is >= release)
}
