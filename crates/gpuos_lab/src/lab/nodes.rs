//! What is done to nodes of a lab while it is up: GPUs break, gpuosd ends and starts, a node is booted, Slurm is upgraded.

use std::fs;
use std::path::PathBuf;

use super::{Lab, steps, wants_cgroup};
use crate::error::{Context, LabError};
use crate::install::Install;
use crate::spec::Suite;
use crate::{conf, gpus, mig, movers, suite};

impl Lab {
    /// The folder of a node's simulated GPUs: the file `state` and the library.
    pub fn gpus_dir(&self, node: &str) -> PathBuf {
        gpus::gpus_dir(&self.record, node)
    }

    /// Where the gpuosd of a node keeps its state and audit log.
    pub fn gpuosd_state_dir(&self, node: &str) -> PathBuf {
        gpus::state_dir(&self.record, node)
    }

    /// The folder with the socket of a node's gpuosd.
    pub fn gpuosd_runtime_dir(&self, node: &str) -> PathBuf {
        gpus::runtime_dir(&self.record, node)
    }

    /// Folder with the slice files of a node: `gpu4s0`, ….
    pub fn slices_dir(&self, node: &str) -> PathBuf {
        mig::slices_dir(&self.record, node)
    }

    /// Folder with the capability devices of a node, `nvidia-cap3`, …, as `/dev/nvidia-caps`.
    pub fn caps_dir(&self, node: &str) -> PathBuf {
        mig::caps_dir(&self.record, node)
    }

    /// Makes the GPUs of every node and starts a gpuosd there.
    pub(super) fn start_gpuosds(&self) -> Result<(), LabError> {
        gpus::make(&self.record, gpus::simulated(&self.record)?)?;
        for node in self.record.spec.node_names() {
            self.new_boot(&node)?;
            self.start_gpuosd(&node)?;
        }
        Ok(())
    }

    /// Starts the gpuosd of a node and waits until its socket is there. It ends with the lab.
    pub fn start_gpuosd(&self, node: &str) -> Result<(), LabError> {
        gpus::simulated(&self.record)?;
        let child = self.daemons().start_gpuosd(node)?;
        self.adopt(child);
        Ok(())
    }

    /// Pid of the gpuosd of a node while it runs.
    pub fn gpuosd_pid(&self, node: &str) -> Option<u32> {
        self.daemons().pid(&gpus::daemon(node)).map(|(pid, _)| pid)
    }

    /// Sends the gpuosd of a node a signal that ends it, and waits. False when it was not running.
    pub fn kill_gpuosd(&self, node: &str, signal: i32) -> Result<bool, LabError> {
        self.daemons().stop(&gpus::daemon(node), signal)
    }

    /// What gpuosd of a node has written to standard error.
    pub fn gpuosd_log(&self, node: &str) -> String {
        let path = self.record.path(&format!("log/{}.out", gpus::daemon(node)));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Starts a mover on every node.
    pub(super) fn start_movers(&self) -> Result<(), LabError> {
        let from = self.record.spec.movers.clone().unwrap_or_default();
        movers::make(&self.record, &from)?;
        let nodes = self.record.spec.node_names();
        nodes.iter().try_for_each(|node| self.start_mover(node))
    }

    /// Starts the mover of a node and waits until its socket is there. It ends with the lab.
    pub fn start_mover(&self, node: &str) -> Result<(), LabError> {
        let child = movers::start(&self.daemons(), node)?;
        self.adopt(child);
        Ok(())
    }

    /// Pid of the mover of a node while it runs.
    pub fn mover_pid(&self, node: &str) -> Option<u32> {
        self.daemons()
            .pid(&movers::daemon(node))
            .map(|(pid, _)| pid)
    }

    /// Sends the mover of a node a signal that ends it, and waits. False when it was not running.
    pub fn kill_mover(&self, node: &str, signal: i32) -> Result<bool, LabError> {
        self.daemons().stop(&movers::daemon(node), signal)
    }

    /// What the mover of a node has written to standard error since it was started last.
    pub fn mover_log(&self, node: &str) -> String {
        let path = self
            .record
            .path(&format!("log/{}.out", movers::daemon(node)));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Where the mover of a node keeps checkpoints.
    pub fn checkpoints_dir(&self, node: &str) -> PathBuf {
        movers::store_dir(&self.record, node)
    }

    /// Breaks or mends a GPU of a node: `gpu` is `gpu3`, `3` or `node`, `words` a fault as `gpuos-nvml` knows
    /// it, `repair`, or `reset`.
    ///
    /// # Errors
    /// The lab has no simulated GPUs, no such node, or gpuos-nvml does not know the words.
    pub fn fault(&self, node: &str, gpu: &str, words: &[&str]) -> Result<String, LabError> {
        gpus::simulated(&self.record)?;
        self.knows(node)?;
        gpus::fault(&self.record, node, gpu, words)
    }

    /// Writes a name for a new boot of the node.
    fn new_boot(&self, node: &str) -> Result<(), LabError> {
        let path = gpus::boot_file(&self.record, node);
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
        let movers = self.record.spec.movers.is_some();
        if movers {
            self.kill_mover(node, libc::SIGKILL)?;
        }
        self.stop_slurmd(node)?;
        steps::kill(&self.record, node)?;
        if gpus {
            gpus::reboot(&self.record, node)?;
        }
        self.new_boot(node)?;
        self.start_slurmds(&[node.to_string()], true)?;
        if movers {
            self.start_mover(node)?;
        }
        match gpus {
            true => self.start_gpuosd(node),
            false => Ok(()),
        }
    }

    /// An error where the lab has no node of that name.
    fn knows(&self, node: &str) -> Result<(), LabError> {
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

    /// The Slurm of another suite from now on, as at a site that upgrades: ends the daemons in order and starts those of the
    /// suite with the same files and saved state. Jobs run on.
    pub fn upgrade(
        &mut self,
        suite: &Suite,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), LabError> {
        if self.record.spec.accounting {
            return Err(LabError::Spec(
                "a lab with accounting stays with its Slurm: leave accounting out".to_string(),
            ));
        }
        let root = match suite {
            Suite::Debian(name) => Some(suite::root(name, &self.record.id, progress)?),
            _ => None,
        };
        let install = Install::find(suite, root.clone())?;
        let nodes = self.record.spec.node_names();
        self.kill_slurmctld(libc::SIGTERM)?;
        for node in &nodes {
            self.stop_slurmd(node)?;
        }
        // It holds the root of the suite; the new one makes that of the new suite.
        self.daemons().stop("munged", libc::SIGTERM)?;
        self.record.root = root;
        self.record.spec.suite = suite.clone();
        self.record.slurm.clone_from(&install.version);
        self.install = install;
        self.record.cgroup = self.record.cgroup && wants_cgroup(&self.record, &self.install)?;
        self.record.write(&self.record.dir)?;
        self.place_plugins(&self.record.spec.select)?;
        let path = conf::plugin_path(&self.record, &self.install, &self.record.spec.select);
        self.set_slurm_conf("PluginDir", Some(&path))?;
        self.write_conf(
            "cgroup.conf",
            &conf::cgroup_conf(&self.record, &self.install),
        )?;
        self.adopt(self.daemons().start_munged()?);
        self.start_slurmctld()?;
        self.start_slurmds(&nodes, false)?;
        self.wait_ready(super::READY)
    }
}
