//! The store of this node, for one process at a time.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};
use gpuos_link::bucket::Bucket;
use gpuos_link::tcp::Pace;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::key::SiteKey;
use gpuos_store::store::Store;
use gpuos_store::stream::is_direct;
use rustix::fs::{FlockOperation, flock};

/// What goes at once after a pause, where the disk has a rate: as much as is on its way to it at once.
const BURST: u64 = 8 << 20;

/// Makes the folders of store and jobs where they are missing, and opens the store, which lives as long as the process.
/// `disk_rate` is what is read from and written to its disk, in bytes per second; 0: as fast as it goes.
///
/// # Errors
/// Another process has the store, which is left as it is; a folder cannot be made; the key is not fit.
pub fn store(
    store: &Path,
    jobs: &Path,
    key: &Path,
    disk_rate: u64,
) -> Result<&'static Store<LinuxDisk>> {
    let folder = store;
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
    match is_direct(folder) {
        true => tracing::info!("checkpoints are written past the page cache (O_DIRECT)"),
        false => tracing::info!(
            "checkpoints are written through the page cache, which is slower: the file system of {} does not take O_DIRECT",
            folder.display()
        ),
    }
    if disk_rate == 0 {
        return Ok(Box::leak(Box::new(store)));
    }
    let pace = Pace::new(Bucket::new(disk_rate, BURST));
    let wait = move |bytes: u64| {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        thread::sleep(pace.take(bytes));
    };
    Ok(Box::leak(Box::new(store.at_pace(Box::new(wait)))))
}
