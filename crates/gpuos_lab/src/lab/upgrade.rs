//! A lab goes on with the Slurm of another suite, as a site does that upgrades.

use std::time::Duration;

use super::{Lab, wants_cgroup};
use crate::conf;
use crate::error::LabError;
use crate::install::Install;
use crate::spec::Suite;
use crate::suite;

impl Lab {
    /// Ends the daemons in order and starts those of another suite with the same files and saved
    /// state. Jobs run on.
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
        self.wait_ready(Duration::from_secs(60))
    }
}
