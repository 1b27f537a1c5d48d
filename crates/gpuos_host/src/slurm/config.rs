//! `scontrol show config`: the configuration that slurmctld runs with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What slurmctld says about itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Running {
    values: BTreeMap<String, String>,
    /// Hosts of slurmctld that answered and those that did not, as printed.
    pub controllers: Vec<String>,
}

impl Running {
    /// Parses the text that scontrol printed.
    pub fn parse(text: &str) -> Running {
        let mut running = Running::default();
        for line in text.lines() {
            if let Some((key, value)) = line.split_once(" = ").or_else(|| line.split_once(" =")) {
                let value = value.trim();
                let value = if value == "(null)" { "" } else { value };
                // Plugin sections repeat keys at the end: the main ones come first.
                running
                    .values
                    .entry(key.trim().to_ascii_lowercase())
                    .or_insert_with(|| value.into());
            } else if let Some(moment) = line.strip_prefix("Configuration data as of ") {
                running.values.insert("as of".into(), moment.trim().into());
            } else if line.starts_with("Slurmctld(") {
                running.controllers.push(line.trim().into());
            }
        }
        running
    }

    /// What slurmctld would run with by its files; of a key that comes twice the last value counts, as for Slurm.
    pub fn of_file<'a>(
        slurm_conf: &Path,
        pairs: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Running {
        let mut running = Running::default();
        for (key, value) in pairs {
            let value = if value == "(null)" { "" } else { value };
            running
                .values
                .insert(key.to_ascii_lowercase(), value.into());
        }
        let path = slurm_conf.display().to_string();
        running.values.insert("slurm_conf".into(), path);
        running
    }

    /// A value, if it is set. Keys ignore case.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values
            .get(&key.to_ascii_lowercase())
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Exact release of slurmctld, for example `24.11.5`.
    pub fn release(&self) -> &str {
        // Debian adds its own suffix to neither; other builds may.
        self.get("SLURM_VERSION")
            .unwrap_or("")
            .split(['-', ' '])
            .next()
            .unwrap_or("")
    }

    /// slurm.conf as slurmctld or this command found it.
    pub fn slurm_conf(&self) -> PathBuf {
        PathBuf::from(self.get("SLURM_CONF").unwrap_or("/etc/slurm/slurm.conf"))
    }

    /// The directory of slurm.conf, where gpuos.toml and the other files lie.
    pub fn directory(&self) -> PathBuf {
        self.slurm_conf()
            .parent()
            .unwrap_or(Path::new("/etc/slurm"))
            .to_path_buf()
    }

    /// `PluginDir`, in order.
    pub fn plugin_dirs(&self) -> Vec<PathBuf> {
        self.get("PluginDir")
            .unwrap_or("")
            .split(':')
            .filter(|d| !d.is_empty())
            .map(PathBuf::from)
            .collect()
    }

    /// A list with commas, for example `JobSubmitPlugins`.
    pub fn list(&self, key: &str) -> Vec<&str> {
        self.get(key)
            .unwrap_or("")
            .split(',')
            .map(str::trim)
            .filter(|s| !s.is_empty())
            .collect()
    }
}
