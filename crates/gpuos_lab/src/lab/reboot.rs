//! A node of a lab is booted: what ran on it is gone, and its GPUs are reset.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::Duration;

use super::Lab;
use crate::error::{Context, LabError};
use crate::process;

/// How long a killed process may take to be gone.
const GONE: Duration = Duration::from_secs(10);

impl Lab {
    /// What gpuosd of a node reads as the kernel's name for this boot.
    pub(crate) fn boot_file(&self, node: &str) -> PathBuf {
        self.record.path(&format!("run/boot.{node}"))
    }

    /// Writes a name for a new boot of the node.
    pub(crate) fn new_boot(&self, node: &str) -> Result<(), LabError> {
        let path = self.boot_file(node);
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid");
        let id = id.context(|| "cannot make a name for a boot".to_string())?;
        fs::write(&path, id).context(|| format!("cannot write {}", path.display()))
    }

    /// Reboots a node: its slurmd, gpuosd and jobs end, simulated GPUs are reset, also those off the bus, and the
    /// daemons start as on a machine that has just come up. [`Lab::wait_ready`] waits until slurmctld knows of it.
    ///
    /// # Errors
    /// The lab has no such node, or a daemon does not end or start.
    pub fn reboot(&self, node: &str) -> Result<(), LabError> {
        self.knows(node)?;
        let gpus = self.record.spec.simulated_gpus.is_some();
        if gpus {
            self.kill_gpuosd(node, libc::SIGTERM)?;
        }
        self.stop_slurmd(node)?;
        self.kill_steps(node)?;
        if gpus {
            self.reboot_gpus(node)?;
        }
        self.new_boot(node)?;
        self.start_slurmds(&[node.to_string()], true)?;
        match gpus {
            true => self.start_gpuosd(node),
            false => Ok(()),
        }
    }

    /// An error where the lab has no node of that name.
    pub(crate) fn knows(&self, node: &str) -> Result<(), LabError> {
        let nodes = self.record.spec.node_names();
        if nodes.iter().any(|name| name == node) {
            return Ok(());
        }
        Err(LabError::Spec(format!(
            "lab {} has no node {node}: give one of {}",
            self.name(),
            nodes.join(", ")
        )))
    }

    /// Kills the slurmstepds of a node, with all that they started. Steps of several nodes run side by side here: which
    /// slurmstepd is whose, only its socket in the spool folder of the node tells.
    fn kill_steps(&self, node: &str) -> Result<(), LabError> {
        let spool = self.record.path(&format!("spool/{node}"));
        let sockets = fs::read_to_string("/proc/net/unix");
        let sockets = sockets.context(|| "cannot read /proc/net/unix".to_string())?;
        let inodes: BTreeSet<String> = sockets
            .lines()
            .filter_map(|line| {
                let mut fields = line.split_ascii_whitespace().skip(6);
                let (inode, path) = (fields.next()?, fields.next()?);
                path.starts_with(&*spool.to_string_lossy())
                    .then(|| format!("socket:[{inode}]"))
            })
            .collect();
        let all = process::members(&self.record.id, &self.record.dir);
        let has = |pid: u32| {
            let files = fs::read_dir(format!("/proc/{pid}/fd"))
                .into_iter()
                .flatten();
            files
                .flatten()
                .filter_map(|file| fs::read_link(file.path()).ok())
                .any(|file| inodes.contains(&*file.to_string_lossy()))
        };
        let mut ends: BTreeSet<u32> = all.keys().copied().filter(|pid| has(*pid)).collect();
        loop {
            let below = |pid: &&u32| ends.contains(&all[*pid].ppid) && !ends.contains(*pid);
            let more: Vec<u32> = all.keys().filter(below).copied().collect();
            if more.is_empty() {
                break;
            }
            ends.extend(more);
        }
        for pid in &ends {
            process::signal(*pid, all[pid].start, libc::SIGKILL);
        }
        for pid in &ends {
            process::wait_gone(*pid, all[pid].start, GONE);
        }
        // What a machine that comes up does not find.
        for entry in fs::read_dir(&spool).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}
