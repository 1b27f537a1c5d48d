//! gpuos.toml and Slurm's topology file, read when slurmctld starts and when it reconfigures; the
//! only files this plugin opens.

use std::io::ErrorKind;
use std::path::Path;

use gpuos_config::gpuos_toml::Config;
use gpuos_config::slurm_topology::{self, TopologyFile};
use gpuos_model::fnv::fnv;
use slurm_ffi::layout::{Fields, Layout};
use slurm_ffi::release::Release;
use slurm_ffi::{conf, log};

use crate::messages;

/// What the configuration files say.
pub struct Settings {
    /// gpuos.toml, or all defaults.
    pub config: Config,
    /// topology.conf or topology.yaml.
    pub topology: Option<TopologyFile>,
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
    let folder = conf::folder(Some(fields));
    let mut topology = None;
    type Parse = fn(&str, &str) -> Result<TopologyFile, gpuos_model::reading::ConfigError>;
    let kinds: [(&str, Parse); 2] = [
        ("topology.yaml", slurm_topology::parse_topology_yaml),
        ("topology.conf", slurm_topology::parse_topology_conf),
    ];
    for (name, parse) in kinds {
        let path = folder.join(name);
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        match parse(&text, &path.to_string_lossy()) {
            Ok(file) => {
                has_read(&path, &text);
                topology = Some(file);
                break;
            }
            Err(why) => log::error(&messages::no_fabric(why, name)),
        }
    }
    if topology.is_none() && config.slurm.steer {
        log::debug(
            "no topology.yaml or topology.conf beside slurm.conf; the fabric is that of gpuos.toml",
        );
    }
    config.slurm.attempts = config.slurm.attempts.max(1);
    Settings {
        config,
        topology,
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
