//! The memory of a job as its control group has it: its limit, what it uses, and how much time it loses waiting for some.

use std::fs;
use std::path::{Path, PathBuf};

use gpuos_core::job::JobId;

use super::device_groups::{Cgroups, v2};
use crate::hardware::host_memory::stalled;

/// One look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JobMemory {
    /// The limit in bytes; `None`: there is none.
    pub limit: Option<u64>,
    /// Bytes that it uses, without those of files that the kernel can drop.
    pub used: u64,
    /// Of these, those of the kernel for the job; of version 1 0.
    pub kernel: u64,
    /// Time in which all of it waited for memory, of 1000; `None`: the kernel does not say it.
    pub stalled: Option<u32>,
    /// How often the kernel ended a process of it for want of memory.
    pub killed: u64,
}

/// A limit above this is none: version 1 has one that is nearly all numbers.
const NO_LIMIT: u64 = 1 << 60;

impl Cgroups {
    /// The folder of a job's memory; `None`: Slurm keeps no control group for it here.
    pub fn memory_of(&self, job: &JobId, uid: u32) -> Option<PathBuf> {
        let root = self.root();
        let name = format!("job_{}", job.number()?);
        if let Some(scope) = v2::scope(root, self.node()) {
            let named = std::iter::once(name).chain(self.names().of(job));
            let mut folders = named.map(|name| scope.join(name));
            return folders.find(|folder| folder.is_dir());
        }
        let slurm = [format!("slurm_{}", self.node()), "slurm".into()];
        let folders = slurm
            .iter()
            .map(|slurm| root.join("memory").join(slurm).join(format!("uid_{uid}")));
        folders
            .map(|of_user| of_user.join(&name))
            .find(|folder| folder.is_dir())
    }
}

impl JobMemory {
    /// Reads it in a job's folder, of either version. `None`: the job is over, or the kernel does not count its memory.
    pub fn read(folder: &Path) -> Option<JobMemory> {
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        let (used, limits, of_files) = match number("memory.current") {
            Some(used) => (
                used,
                [number("memory.max"), number("memory.high")],
                ["active_file", "inactive_file"],
            ),
            None => (
                number("memory.usage_in_bytes")?,
                [number("memory.limit_in_bytes"), None],
                ["total_active_file", "total_inactive_file"],
            ),
        };
        let stat = text("memory.stat").unwrap_or_default();
        let files: u64 = of_files.iter().filter_map(|key| value(&stat, key)).sum();
        let limits = limits.into_iter().flatten();
        let events = text("memory.events").unwrap_or_default();
        Some(JobMemory {
            limit: limits.filter(|limit| *limit < NO_LIMIT).min(),
            used: used.saturating_sub(files),
            kernel: value(&stat, "kernel").unwrap_or(0),
            stalled: text("memory.pressure").as_deref().and_then(stalled),
            killed: value(&events, "oom_kill").unwrap_or(0),
        })
    }
}

/// The number behind a word, in lines of both.
fn value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (word, number) = line.split_once(' ')?;
        number.trim().parse().ok().filter(|_| word == key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn both_versions_of_control_groups_are_read() {
        let root = tempfile::tempdir().unwrap();
        let groups = Cgroups::at(root.path(), root.path(), "n1");
        assert_eq!(groups.memory_of(&7.into(), 1000), None);
        let old = root.path().join("memory/slurm_n1/uid_1000/job_7");
        put(
            &old,
            &[
                ("memory.usage_in_bytes", "500\n"),
                ("memory.limit_in_bytes", "800\n"),
                (
                    "memory.stat",
                    "cache 9\ntotal_active_file 30\ntotal_inactive_file 70\n",
                ),
            ],
        );
        assert_eq!(groups.memory_of(&7.into(), 1000), Some(old.clone()));
        assert_eq!(groups.memory_of(&7.into(), 1001), None, "another's");
        let told = JobMemory::read(&old).unwrap();
        assert_eq!(
            (told.limit, told.used, told.stalled),
            (Some(800), 400, None)
        );
        let new = root.path().join("system.slice/n1_slurmstepd.scope/job_7");
        put(
            &new,
            &[
                ("memory.current", "500\n"),
                ("memory.max", "max\n"),
                ("memory.high", "900\n"),
                (
                    "memory.stat",
                    "active_file 100\nkernel 40\ninactive_file 100\n",
                ),
                ("memory.events", "low 0\nhigh 3\nmax 2\noom 1\noom_kill 1\n"),
                ("memory.pressure", "full avg10=20.00 avg60=0.00\n"),
            ],
        );
        assert_eq!(groups.memory_of(&7.into(), 1000), Some(new.clone()));
        let wanted = JobMemory {
            limit: Some(900),
            used: 300,
            kernel: 40,
            stalled: Some(200),
            killed: 1,
        };
        assert_eq!(JobMemory::read(&new), Some(wanted));
        // Slurm has named another one by its own id, which slurmctld tells.
        let by_id = new.with_file_name("s521M7XBGAHZ00");
        put(&by_id, &[("memory.current", "7\n")]);
        let names = std::sync::Arc::new(crate::slurm::group_names::GroupNames::default());
        let groups = groups.with_group_names(&names);
        assert_eq!(groups.memory_of(&8.into(), 1000), None);
        names.learn("s521M7XBGAHZ00", &8.into());
        assert_eq!(groups.memory_of(&8.into(), 1000), Some(by_id));
        assert_eq!(groups.memory_of(&7.into(), 1000), Some(new.clone()));
        put(
            &new,
            &[
                ("memory.max", "18446744073709551615\n"),
                ("memory.high", "max\n"),
            ],
        );
        assert_eq!(JobMemory::read(&new).unwrap().limit, None);
        assert_eq!(JobMemory::read(root.path()), None);
    }
}
