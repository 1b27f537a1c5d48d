//! The store of this node, for one process at a time.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, bail};
use gpuos_config::gpuos_toml::{CheckpointConfig, Compression};
use gpuos_link::bucket::Bucket;
use gpuos_link::tcp::Pace;
use gpuos_store::coding::{Coding, Compress};
use gpuos_store::disk::LinuxDisk;
use gpuos_store::key::SiteKey;
use gpuos_store::store::Store;
use gpuos_store::stream::is_direct;
use rustix::fs::{FlockOperation, flock};

/// What goes at once after a pause, where the disk has a rate: as much as is on its way to it at once.
const BURST: u64 = 8 << 20;

/// What one core compresses, in MiB/s, on a machine that is not idle (docs/decisions/0028). What has a lower rate is slower than that.
const CODEC_MIB: u32 = 300;

/// Faults of a store that are told at most.
const MOST_FAULTS: usize = 8;

/// A store that is open.
pub struct Opened {
    /// It lives as long as the process.
    pub store: &'static Store<LinuxDisk>,
    /// What of it cannot be used: sentences, not all where they are many.
    pub faults: Vec<String>,
}

/// Makes the folders of store and jobs where they are missing, and opens the store, which lives as long as the process.
///
/// # Errors
/// Another process has the store, which is left as it is; a folder cannot be made; a key is not fit.
pub fn store(store: &Path, jobs: &Path, key: &Path, config: &CheckpointConfig) -> Result<Opened> {
    let folder = store;
    for (folder, mode) in [(store, 0o700), (jobs, 0o755)] {
        if folder.is_file() {
            bail!("{} is a file: name a folder", folder.display());
        }
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
    let others: Result<Vec<SiteKey>> = config.other_keys.iter().map(|key| read(key)).collect();
    let key = read(key)?.with_others(others?)?;
    let key = key.with_files(&config.encrypt_keys)?;
    let coding = coding(config);
    tell(coding, &key);
    let (store, found) = Store::open(LinuxDisk, root, key)?;
    let store = store.coded(coding);
    for removed in &found.removed {
        tracing::info!("removed from the store, where a crash had left it: {removed}");
    }
    for fault in &found.faults {
        tracing::error!("{fault}");
    }
    let mut faults: Vec<String> = found.faults.iter().map(ToString::to_string).collect();
    faults.truncate(MOST_FAULTS);
    match is_direct(folder) {
        true => tracing::info!("checkpoints are written past the page cache (O_DIRECT)"),
        false => tracing::info!(
            "checkpoints are written through the page cache, which is slower: the file system of {} does not take O_DIRECT",
            folder.display()
        ),
    }
    let disk_rate = u64::from(config.disk_rate_mib) << 20;
    if disk_rate == 0 {
        return Ok(Opened {
            store: Box::leak(Box::new(store)),
            faults,
        });
    }
    let pace = Pace::new(Bucket::new(disk_rate, BURST));
    let wait = move |bytes: u64| {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        thread::sleep(pace.take(bytes));
    };
    Ok(Opened {
        store: Box::leak(Box::new(store.at_pace(Box::new(wait)))),
        faults,
    })
}

/// A key of the site. munge's is of munge's own user, who is trusted with it already.
fn read(path: &Path) -> Result<SiteKey> {
    let of = std::fs::symlink_metadata(path);
    Ok(SiteKey::read(path, of.ok().map(|key| key.uid()))?)
}

/// In which form extents are kept.
fn coding(config: &CheckpointConfig) -> Coding {
    let shared = config.shared.as_ref().map_or(0, |_| config.shared_rate_mib);
    let rates = [config.disk_rate_mib, config.rate_mib, shared];
    let slow = rates.into_iter().any(|rate| (1..CODEC_MIB).contains(&rate));
    let compress = match config.compress {
        Compression::No => Compress::No,
        // What has a rate by the configuration is known to be slower; else it shows while extents are written.
        Compression::Auto if !slow => Compress::Behind,
        Compression::Auto | Compression::Always => Compress::Always,
    };
    Coding {
        compress,
        encrypt: config.encrypt,
    }
}

fn tell(coding: Coding, key: &SiteKey) {
    match coding.compress {
        Compress::No => {}
        Compress::Behind => {
            tracing::info!("what waits for the disk is compressed (zstd)");
        }
        Compress::Always => tracing::info!("checkpoints are compressed (zstd)"),
    }
    if let Some(id) = key.encrypts_with().filter(|_| coding.encrypt) {
        tracing::info!("checkpoints are encrypted with the key {id} (AES-256-CTR)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_goes_by_the_rates_that_are_set_and_else_by_what_waits() {
        let with = |compress, disk_rate_mib, rate_mib, shared_rate_mib, shared: Option<&str>| {
            coding(&CheckpointConfig {
                compress,
                disk_rate_mib,
                rate_mib,
                shared_rate_mib,
                shared: shared.map(Into::into),
                ..CheckpointConfig::default()
            })
            .compress
        };
        let auto = Compression::Auto;
        assert_eq!(with(Compression::No, 1, 1, 1, Some("/s")), Compress::No);
        assert_eq!(with(Compression::Always, 0, 0, 0, None), Compress::Always);
        assert_eq!(with(auto, 0, 0, 0, Some("/s")), Compress::Behind);
        assert_eq!(with(auto, 5000, 3000, 5000, Some("/s")), Compress::Behind);
        for (disk, net, shared, folder) in [
            (200, 0, 0, None),
            (0, 100, 0, None),
            (0, 0, 250, Some("/s")),
        ] {
            assert_eq!(with(auto, disk, net, shared, folder), Compress::Always);
        }
        // Nothing is drained, however slowly.
        assert_eq!(with(auto, 0, 0, 250, None), Compress::Behind);
    }
}
