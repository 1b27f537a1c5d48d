//! Where this daemon's configuration lives.

use std::path::PathBuf;

use crate::api;
use crate::layout::{Fields, SITE_FILE};
use crate::mem::{read, read_str};
use crate::release::Release;

/// The folder of slurm.conf: from slurmctld's own configuration where the release is known, else
/// from `$SLURM_CONF`, else `/etc/slurm`.
pub fn folder(fields: Option<&Fields>) -> PathBuf {
    let own = fields.and_then(|fields| {
        let conf = api::symbol(c"slurm_conf")? as usize;
        let offset = fields.offset("slurm_conf", "slurm_conf").ok()?;
        let path = read_str(read::<usize>(conf + offset)?, 4096)?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    own.or_else(|| std::env::var_os("SLURM_CONF").map(PathBuf::from))
        .and_then(|path| path.parent().map(PathBuf::from))
        .filter(|folder| folder.is_absolute())
        .unwrap_or_else(|| PathBuf::from("/etc/slurm"))
}

/// Path of gpuos.toml: `$GPUOS_CONF`, else beside slurm.conf.
pub fn gpuos_toml(fields: Option<&Fields>) -> PathBuf {
    std::env::var_os("GPUOS_CONF").map_or_else(|| folder(fields).join("gpuos.toml"), PathBuf::from)
}

/// The layout table for `release`, with the site's own table beside slurm.conf where there is one.
pub fn fields(release: Release) -> Result<Fields, String> {
    let site = std::fs::read_to_string(folder(None).join(SITE_FILE)).ok();
    Fields::of(release, site.as_deref())
}
