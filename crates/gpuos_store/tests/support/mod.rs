//! A store in a temporary folder or in memory, and programs' folders.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::{Manifest, NodeSet};
use gpuos_core::job::JobId;
use gpuos_store::disk::{Disk, LinuxDisk};
use gpuos_store::error::Result;
use gpuos_store::ingest::Limits;
use gpuos_store::inventory::Found;
use gpuos_store::job::{JobStore, New};
use gpuos_store::key::SiteKey;
use gpuos_store::store::Store;
use tempfile::TempDir;

pub const EXTENT: usize = 4096;

pub fn limits() -> Limits {
    Limits {
        extent: EXTENT as u32,
        ..Limits::default()
    }
}

pub fn key() -> SiteKey {
    SiteKey::derive(b"a key of tests that is long enough")
}

pub fn job(number: u32) -> JobId {
    JobId::from(number)
}

pub fn id(number: u32, attempt: u64) -> CheckpointId {
    CheckpointId { number, attempt }
}

/// Who runs the tests; files that they make are his.
pub fn me() -> u32 {
    LinuxDisk.user()
}

pub fn alone() -> NodeSet {
    NodeSet {
        members: vec![NodeIndex(0)],
        parity: 0,
        chunk: 0,
    }
}

pub fn new(id: CheckpointId) -> New {
    New {
        id,
        node: NodeIndex(0),
        nodes: 1,
        time: 1_700_000_000,
    }
}

/// Ingests and prepares.
pub fn write<D: Disk, S: Disk>(
    job: &JobStore<'_, D>,
    id: CheckpointId,
    source: &S,
    folder: &S::Folder,
    previous: Option<&Manifest>,
) -> Result<Manifest> {
    let draft = job.ingest(&new(id), source, folder, &limits(), previous)?;
    Ok(job.prepare(draft, alone())?.0)
}

/// Folders on a real disk: one for the store, one for programs.
pub struct Place(pub TempDir);

impl Place {
    pub fn new() -> Place {
        let place = Place(TempDir::new().unwrap());
        for name in ["store", "program", "restored"] {
            fs::create_dir(place.path(name)).unwrap();
            let private = fs::Permissions::from_mode(0o700);
            fs::set_permissions(place.path(name), private).unwrap();
        }
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn folder(&self, name: &str) -> OwnedFd {
        LinuxDisk::folder(&self.path(name)).unwrap()
    }

    pub fn open(&self) -> (Store<LinuxDisk>, Found) {
        Store::open(LinuxDisk, self.folder("store"), key()).unwrap()
    }

    pub fn put(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let path = self.path("program").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// What a folder has: of each path its mode, and bytes and mtime of a file.
pub type Seen = BTreeMap<Vec<u8>, (u32, Option<(Vec<u8>, i64, i64)>)>;

pub fn seen(folder: &Path) -> Seen {
    fn add(seen: &mut Seen, folder: &Path, path: &[u8]) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let path = match path {
                b"" => entry.file_name().as_bytes().to_vec(),
                path => [path, b"/", entry.file_name().as_bytes()].concat(),
            };
            let facts = entry.metadata().unwrap();
            let mode = facts.mode() & 0o7777;
            if facts.is_dir() {
                seen.insert(path.clone(), (mode, None));
                add(seen, &entry.path(), &path);
            } else {
                let bytes = fs::read(entry.path()).unwrap();
                let time = (facts.mtime(), facts.mtime_nsec());
                seen.insert(path, (mode, Some((bytes, time.0, time.1))));
            }
        }
    }
    let mut all = Seen::new();
    add(&mut all, folder, b"");
    all
}

pub fn name(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Bytes that no other seed has.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

pub fn long() -> bool {
    std::env::var_os("GPUOS_LONG").is_some()
}

/// How many damages are tried, a few of them without `GPUOS_CKPT_FLIPS` and `GPUOS_LONG`, and the seed of their choice.
pub fn flips(few: usize) -> (usize, u64) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let rounds = match number("GPUOS_CKPT_FLIPS") {
        Some(rounds) => rounds as usize,
        None if long() => 10_000,
        None => few,
    };
    (rounds, number("GPUOS_CKPT_FLIPS_SEED").unwrap_or(0) | 1)
}
