//! The store of this node, for one process at a time.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, Result};
use gpuos_store::disk::LinuxDisk;
use gpuos_store::key::SiteKey;
use gpuos_store::store::Store;
use rustix::fs::{FlockOperation, flock};

/// Makes the folders of store and jobs where they are missing, and opens the store, which lives as long as the process.
///
/// # Errors
/// Another process has the store, which is left as it is; a folder cannot be made; the key is not fit.
pub fn store(store: &Path, jobs: &Path, key: &Path) -> Result<&'static Store<LinuxDisk>> {
    for (folder, mode) in [(store, 0o700), (jobs, 0o755)] {
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.recursive(true).mode(mode).create(folder);
        made.with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let root: OwnedFd =
        LinuxDisk::folder(store).with_context(|| format!("cannot open {}", store.display()))?;
    // Two daemons would spoil each other's work, and opening removes what was begun. The lock goes with the process.
    let lock = flock(&root, FlockOperation::NonBlockingLockExclusive);
    lock.with_context(|| {
        format!(
            "another gpuos_mover has {}: stop it, or give this one its own --store",
            store.display()
        )
    })?;
    // munge's key is of munge's own user, who is trusted with it already.
    let of = std::fs::symlink_metadata(key);
    let key = SiteKey::read(key, of.ok().map(|key| key.uid()))?;
    let (store, found) = Store::open(LinuxDisk, root, key)?;
    for removed in &found.removed {
        tracing::info!("removed from the store, where a crash had left it: {removed}");
    }
    for fault in &found.faults {
        tracing::error!("{fault}");
    }
    Ok(Box::leak(Box::new(store)))
}
