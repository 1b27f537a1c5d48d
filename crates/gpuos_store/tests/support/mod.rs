//! A store in a temporary folder or in memory, and programs' folders.

use std::cell::Cell;
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
use gpuos_store::coding::{Coding, Compress};
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
    // An extent of one page cannot take less room.
    let pages = if form().compress == Compress::No {
        1
    } else {
        4
    };
    Limits {
        extent: EXTENT as u32 * pages,
        ..Limits::default()
    }
}

thread_local! {
    static FORM: Cell<Coding> = const { Cell::new(PLAIN) };
}

pub const PLAIN: Coding = Coding {
    compress: Compress::No,
    encrypt: false,
};

/// As it is, compressed, encrypted, and both.
pub const FORMS: [Coding; 4] = [
    PLAIN,
    Coding {
        compress: Compress::Always,
        encrypt: false,
    },
    Coding {
        compress: Compress::No,
        encrypt: true,
    },
    Coding {
        compress: Compress::Always,
        encrypt: true,
    },
];

/// In which form stores keep extents that this test opens.
pub fn form() -> Coding {
    FORM.get()
}

pub fn set_form(form: Coding) {
    FORM.set(form);
}

/// Runs a test in each of the forms, which it is told in sentences by the caller.
pub fn in_forms(forms: &[Coding], mut test: impl FnMut(Coding)) {
    for form in forms {
        set_form(*form);
        test(*form);
    }
    set_form(PLAIN);
}

/// Opens a store in the form of this test.
pub fn opened<D: Disk>(disk: D, root: D::Folder) -> Result<(Store<D>, Found)> {
    let (store, found) = Store::open(disk, root, key())?;
    Ok((store.coded(form()), found))
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
        opened(LinuxDisk, self.folder("store")).unwrap()
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

/// Bytes that no other seed has. Where this test's stores compress, every second run of a kilobyte is the one before again.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = random(seed, length);
    if form().compress != Compress::No {
        for at in (1024..length).filter(|at| at / 1024 % 2 == 1) {
            bytes[at] = bytes[at - 1024];
        }
    }
    bytes
}

/// Bytes that no other seed has, and that cannot be compressed.
pub fn random(seed: u64, length: usize) -> Vec<u8> {
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
