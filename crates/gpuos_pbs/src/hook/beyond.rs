//! What there is of memory beyond that of GPUs, by the word of `gpuos pbs install`.

use gpuos_config::gpuos_toml::{Config, MemoryConfig};
use gpuos_config::options::{MemoryOption, MemoryTiers};
use gpuos_model::node_types::NodeFacts;
use serde::{Deserialize, Serialize};

/// What a site allows, and what the GPUs have that are given as a whole. A job is counted before its GPUs are known, so the smallest one counts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beyond {
    /// Memory of the smallest GPU, in MiB; 0: no host has any, or nobody says how much.
    pub gpu_mib: u64,
    /// The largest size, in percent of that.
    pub most_percent: u32,
    /// What of a GPU's memory programs do not get for their own data, in MiB.
    pub reserve_mib: u32,
    /// A host of whose GPUs gpuos.toml does not say how much memory they have; empty: there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unknown: String,
}

/// How much memory a GPU of a host has, in MiB, where gpuos.toml says it. `gpus`: how many the host has.
pub(super) fn stated_mib(host: &str, gpus: usize, config: &Config) -> Option<u64> {
    let facts = NodeFacts {
        name: host.into(),
        gpus,
        ..NodeFacts::default()
    };
    let stated = config.stated_type(&facts)?.gpu_memory_mib;
    Some(stated).filter(|mib| *mib > 0)
}

impl Beyond {
    /// What there is by gpuos.toml for hosts that give whole GPUs, by their short names, with how many GPUs each has; `None`: the site has none
    /// for jobs.
    pub fn of<'h>(
        config: &Config,
        hosts: impl Iterator<Item = (&'h str, usize)>,
    ) -> Option<Beyond> {
        let site = &config.memory;
        let mut found = Beyond {
            gpu_mib: 0,
            most_percent: site.most_percent,
            reserve_mib: site.reserve_mib,
            unknown: String::new(),
        };
        for (name, gpus) in hosts {
            match stated_mib(name, gpus, config) {
                None => found.unknown = name.into(),
                Some(mib) if found.gpu_mib == 0 => found.gpu_mib = mib,
                Some(mib) => found.gpu_mib = mib.min(found.gpu_mib),
            }
        }
        site.oversubscribe.then_some(found)
    }

    fn config(&self) -> MemoryConfig {
        MemoryConfig {
            most_percent: self.most_percent,
            reserve_mib: self.reserve_mib,
            ..MemoryConfig::default()
        }
    }

    /// MiB of host memory that a job needs for each of its GPUs.
    pub(super) fn share_mib(&self, asked: &MemoryOption) -> u64 {
        match asked.tiers {
            MemoryTiers::Hbm => 0,
            MemoryTiers::HbmAndDram => self.config().host_share(asked.mib.into(), self.gpu_mib),
        }
    }

    /// The largest size in MiB.
    pub(super) fn most_mib(&self, tiers: MemoryTiers) -> u64 {
        match tiers {
            MemoryTiers::Hbm => self.gpu_mib,
            MemoryTiers::HbmAndDram => self.config().most_mib(self.gpu_mib),
        }
    }
}
