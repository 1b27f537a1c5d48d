//! gpuos.toml and Slurm's topology file, read when slurmctld starts and when it reconfigures; the
//! only files this plugin opens.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;

use gpuos_config::gpuos_toml::Config;
use gpuos_config::slurm_topology::Topologies;
use gpuos_model::fnv::fnv;
use slurm_ffi::handles::Job;
use slurm_ffi::layout::{Fields, Layout};
use slurm_ffi::release::Release;
use slurm_ffi::{conf, log};

use crate::messages;

/// What the configuration files say.
pub struct Settings {
    /// gpuos.toml, or all defaults.
    pub config: Config,
    /// Those that Slurm goes by; `None`: they are not known, for their file could not be read or understood.
    pub topologies: Option<Topologies>,
    /// The topology that a partition names, by the partition's name.
    pub partitions: HashMap<String, String>,
    /// Whether gpuos.toml is there and could not be read or understood.
    pub broken: bool,
    /// Whether there is no gpuos.toml.
    pub absent: bool,
}

impl Settings {
    /// Whether gpuos.toml was read, of this or an earlier time: else nobody knows which GPUs are divided, and which
    /// are MIG-switchable.
    pub fn knows_pools(&self) -> bool {
        !(self.broken || self.absent) || !self.config.mig.pools.is_empty()
    }

    /// How many topologies are told apart, as [`Config::views`].
    pub fn views(&self) -> usize {
        let found = self.topologies.as_ref();
        found.map_or(1, |found| self.config.views(found))
    }

    /// Which topology the partition of a job has, by its number; `None`: that is not known.
    pub fn view_of(&self, job: Job<'_>) -> Option<usize> {
        if self.config.describes_network() {
            return Some(0);
        }
        let found = self.topologies.as_ref()?;
        let named = match job.partition_topology() {
            _ if found.all().len() <= 1 => return Some(0),
            Some(told) => {
                let number = found.number(told.name)?;
                return (i32::try_from(number) == Ok(told.number)).then_some(number);
            }
            None => self.partitions.get(job.partition()),
        };
        found.number(named.map_or("", String::as_str))
    }

    /// The line that says whether jobs are steered; `gpuos doctor` looks for it.
    pub fn announce(&self, release: Release, layout: &Layout) {
        if self.config.slurm.steer {
            log::info(&messages::steering(release));
            if layout.node_extra.is_none() {
                log::error(&messages::no_extra(release));
            }
        } else {
            log::info(&messages::steering_is_off(release));
        }
    }
}

/// Reads the files. A broken one is reported and counts as absent; a broken gpuos.toml also stops the
/// steering, because the administrator's wishes are then unknown.
pub fn load(fields: &Fields) -> Settings {
    let path = conf::gpuos_toml(Some(fields));
    let (mut broken, mut absent) = (false, false);
    let mut stopped = || {
        broken = true;
        stopped()
    };
    let mut config = match std::fs::read_to_string(&path) {
        Ok(text) => {
            has_read(&path, &text);
            Config::parse(&text, &path.to_string_lossy()).unwrap_or_else(|why| {
                log::error(&messages::mistake_in_gpuos_toml(why));
                log::error(&messages::gpuos_toml_is_broken());
                stopped()
            })
        }
        Err(why) if why.kind() == ErrorKind::NotFound => {
            absent = true;
            log::info(&messages::no_gpuos_toml(path.display()));
            Config::default()
        }
        Err(why) => {
            log::error(&messages::cannot_read(path.display(), why));
            stopped()
        }
    };
    let found = conf::topology(fields);
    let (topologies, partitions) = match found {
        Ok(found) => {
            for file in &found.files {
                has_read(&file.path, &file.text);
            }
            (Some(found.topologies), found.partitions)
        }
        Err(why) => {
            log::error(&messages::no_fabric(why));
            (None, HashMap::new())
        }
    };
    let none = topologies
        .as_ref()
        .is_some_and(|found| found.all().is_empty());
    if none && config.slurm.steer {
        log::debug("Slurm has no topology of switches or blocks; the fabric is that of gpuos.toml");
    }
    config.slurm.attempts = config.slurm.attempts.max(1);
    Settings {
        config,
        topologies,
        partitions,
        broken,
        absent,
    }
}

/// Says which text holds from now on: `gpuos doctor` compares it with the file, which may have been edited since.
fn has_read(path: &Path, text: &str) {
    let sum = fnv(text.bytes());
    let sum = format_args!("{sum:016x}");
    log::info(&messages::file_is_read(path.display(), sum));
}

fn stopped() -> Config {
    let mut config = Config::default();
    config.slurm.steer = false;
    config
}
