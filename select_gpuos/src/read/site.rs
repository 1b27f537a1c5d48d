//! What holds for every call alike: Slurm as it is here, and what the site has configured.

use slurm_ffi::api::Api;
use slurm_ffi::check;
use slurm_ffi::handles::NodeTable;
use slurm_ffi::layout::{Fields, Layout};
use slurm_ffi::needs::CR_MEMORY;
use slurm_ffi::release::Release;

use crate::abi::source::{GresIds, Source};
use crate::read::settings::Settings;

/// This slurmctld and its configuration.
pub struct Site {
    /// Slurm's functions.
    pub api: &'static Api,
    /// Offsets in Slurm's structures.
    pub layout: &'static Layout,
    /// Offsets that only the self-check needs.
    pub strings: check::Strings,
    /// The table that both come from.
    pub fields: Fields,
    /// Slurm's release.
    pub release: Release,
    /// Slurm's node table.
    pub table: NodeTable,
    /// GRES `gpu`.
    pub gpu: check::Gres,
    /// `SelectTypeParameters` as Slurm's bits.
    pub parameters: u16,
    /// gpuos.toml and the topology file, as they were read last.
    pub settings: Settings,
}

impl Site {
    /// Whether gpuos.toml has jobs steered.
    pub fn steers(&self) -> bool {
        self.settings.config.slurm.steer
    }

    /// Slurm's records, for one call or event. `shard`: the GRES of shards, where a node has any.
    ///
    /// # Safety
    /// The caller holds slurmctld's job and node write locks for `'a`.
    pub unsafe fn source<'a>(&self, shard: Option<u32>) -> Source<'a> {
        let gpu = self.gpu.id;
        let memory_counts = self.parameters & CR_MEMORY != 0;
        let (api, layout, table) = (self.api, self.layout, self.table);
        // SAFETY: by the caller.
        unsafe { Source::under_locks(api, layout, table, GresIds { gpu, shard }, memory_counts) }
    }
}
