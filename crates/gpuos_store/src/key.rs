//! The site's key, and the keys that are derived of it for each job.
//!
//! One secret that all nodes have already (munge's key, if nothing else is given) becomes a key of the store by BLAKE3's
//! `derive_key` mode, so that no use of one says anything about the other. Each purpose of each job of each user has its own
//! key: what was signed for another of them never verifies, wherever it is copied to.
//!
//! Keys to encrypt with are made of the site's key and, where there is one, a file that only stands for them: who gets hold of one of both
//! reads nothing. There may be several, so that one takes the place of another while what the other one encrypted stays readable. The same holds of
//! the site's key: the first one signs, and what any of them has signed holds.
//! Source: "BLAKE3: one function, fast everywhere", section 2.3 (modes) and 6.2 (key derivation).

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;

use blake3::{Hash, Hasher};
use gpuos_checkpoint::ids::{CheckpointId, Digest};
use gpuos_checkpoint::manifest::{Encryption, KeyId};
use gpuos_core::job::JobId;
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::process::geteuid;

use crate::cipher::{self, Cipher};
use crate::error::{Error, Result, Tried};

/// Where munge has its key.
pub const MUNGE_KEY: &str = "/etc/munge/munge.key";

/// Fixed for ever: another text makes other keys, and all checkpoints unreadable.
const CONTEXT: &str = "gpuos 2026-11-24 checkpoint store site key v1";

/// A key file has at least these bytes (munge refuses a shorter one, too) ...
const MIN_BYTES: usize = 32;
/// ... and at most these: more is another file.
const MAX_BYTES: usize = 64 << 10;

/// 32 secret bytes, overwritten when dropped.
///
/// Safe code cannot rule out that the compiler or a move has left a copy; it does what it can.
struct Secret([u8; 32]);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Otherwise a write that nobody reads may be left out.
        black_box(&mut self.0);
    }
}

/// The keys of all checkpoints of a site.
pub struct SiteKey {
    site: Secret,
    /// What these have signed holds, too.
    others: Vec<Secret>,
    /// Those to encrypt with. The first is used, all are known; after those of files one is made of each site's key alone.
    encryption: Vec<(KeyId, Secret)>,
}

/// Names of keys, which say nothing about them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyIds {
    /// Those with which this node makes checkpoints.
    pub makes: Vec<KeyId>,
    /// Those that it knows, these included.
    pub knows: Vec<KeyId>,
}

/// The keys of one job of one user.
pub struct JobKeys {
    manifest: Secret,
    extent: Secret,
    shard: Secret,
    state: Secret,
    refusal: Secret,
    encryption: Vec<(KeyId, Secret)>,
    /// Of the site's other keys, by which nothing is signed.
    others: Vec<JobKeys>,
}

impl SiteKey {
    /// The same keys, for a store in another place.
    pub(crate) fn again(&self) -> SiteKey {
        let again = |(id, secret): &(KeyId, Secret)| (*id, Secret(secret.0));
        SiteKey {
            site: Secret(self.site.0),
            others: self.others.iter().map(|site| Secret(site.0)).collect(),
            encryption: self.encryption.iter().map(again).collect(),
        }
    }

    /// From a key file. It is a regular file of root, of the running user, or of `also` (munge's key is of munge's user), and
    /// nobody else has access.
    ///
    /// # Errors
    /// It cannot be read, or others could have read or changed it.
    pub fn read(path: &Path, also: Option<u32>) -> Result<SiteKey> {
        of_file("read the site's key", path, also, SiteKey::derive)
    }

    /// From the bytes of a secret, which the caller wipes.
    pub fn derive(secret: &[u8]) -> SiteKey {
        let site = Secret(blake3::derive_key(CONTEXT, secret));
        let own = encryption_key(&site, &[]);
        SiteKey {
            encryption: vec![own],
            others: Vec::new(),
            site,
        }
    }

    /// Has what these keys have signed hold as well. Nothing is signed with them.
    ///
    /// # Errors
    /// Two of them are the same.
    pub fn with_others(mut self, others: Vec<SiteKey>) -> Result<SiteKey> {
        for other in others {
            let is_same = |known: &Secret| known.0 == other.site.0;
            if is_same(&self.site) || self.others.iter().any(is_same) {
                let tried = "take other keys of the site".to_string();
                let next = "name each key once in --key and other-keys";
                return Err(Error::refused(tried, "two files have the same one", next));
            }
            self.encryption.extend(other.encryption);
            self.others.push(other.site);
        }
        Ok(self)
    }

    /// Whether there are other keys than the one that signs.
    pub(crate) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// The names of all keys; `encrypts`: checkpoints are encrypted.
    pub fn ids(&self, encrypts: bool) -> KeyIds {
        let own = key_name(&self.site);
        let first = self.encrypts_with().filter(|_| encrypts);
        let others = self.others.iter().map(key_name);
        let encryption = self.encryption.iter().map(|(id, _)| *id);
        KeyIds {
            makes: [own].into_iter().chain(first).collect(),
            knows: [own].into_iter().chain(others).chain(encryption).collect(),
        }
    }

    /// Has what is encrypted from now on encrypted with the first of these files, which have the form of the site's key; what was
    /// encrypted with another one of them, or without any, can be read.
    ///
    /// # Errors
    /// As of [`SiteKey::read`], or two files have the same key.
    pub fn with_files(self, paths: &[impl AsRef<Path>]) -> Result<SiteKey> {
        let (mut encryption, mut of_others) = (Vec::new(), Vec::new());
        for path in paths {
            let path = path.as_ref();
            let reading = "read a key to encrypt checkpoints with";
            let (key, others) = of_file(reading, path, None, |bytes| {
                let of = |site| encryption_key(site, &[bytes]);
                let others: Vec<_> = self.others.iter().map(of).collect();
                (of(&self.site), others)
            })?;
            if encryption.iter().any(|(id, _)| *id == key.0) {
                let tried = format!("{reading} from {}", path.display());
                let why = "another file has the same one";
                let next = "name each key once in encrypt-keys";
                return Err(Error::refused(tried, why, next));
            }
            encryption.push(key);
            of_others.extend(others);
        }
        encryption.extend(self.encryption);
        encryption.extend(of_others);
        Ok(SiteKey {
            site: self.site,
            others: self.others,
            encryption,
        })
    }

    /// Which key encrypts.
    pub fn encrypts_with(&self) -> Option<KeyId> {
        self.encryption.first().map(|(id, _)| *id)
    }

    /// The keys of a job of a user.
    pub fn of_job(&self, job: &JobId, uid: u32) -> JobKeys {
        let others = self.others.iter();
        let others = others.map(|site| job_keys(site, &[], job, uid));
        JobKeys {
            others: others.collect(),
            ..job_keys(&self.site, &self.encryption, job, uid)
        }
    }

    /// Code of the note that says whose job it is; the job's own keys need to know that first.
    pub(crate) fn owner_code(&self, job: &JobId, uid: u32) -> [u8; 32] {
        owner_code(&self.site, job, uid)
    }

    /// Whether that code is one of the site's, by any of its keys.
    pub(crate) fn owner_holds(&self, job: &JobId, uid: u32, code: &[u8; 32]) -> bool {
        let mut sites = [&self.site].into_iter().chain(&self.others);
        sites.any(|site| same(owner_code(site, job, uid), code))
    }
}

fn owner_code(site: &Secret, job: &JobId, uid: u32) -> [u8; 32] {
    let key = derive(site, "owner", &[job.to_string().as_bytes()]);
    keyed(&key, &[&uid.to_le_bytes()]).into()
}

/// The keys of a job that are made of one key of the site.
fn job_keys(site: &Secret, encryption: &[(KeyId, Secret)], job: &JobId, uid: u32) -> JobKeys {
    let text = job.to_string();
    let parts: [&[u8]; 2] = [&uid.to_le_bytes(), text.as_bytes()];
    let of = |purpose: &str| derive(site, purpose, &parts);
    let encrypts = |(id, key): &(KeyId, Secret)| (*id, derive(key, "encryption of a job", &parts));
    JobKeys {
        manifest: of("manifest"),
        extent: of("extent"),
        shard: of("shard"),
        state: of("state"),
        refusal: of("refusal"),
        encryption: encryption.iter().map(encrypts).collect(),
        others: Vec::new(),
    }
}

/// What is made of the bytes of a key file, which are wiped then.
fn of_file<T>(
    reading: &str,
    path: &Path,
    also: Option<u32>,
    make: impl FnOnce(&[u8]) -> T,
) -> Result<T> {
    let tried = || format!("{reading} from {}", path.display());
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(rustix::fs::CWD, path, flags, Mode::empty());
    let file = file
        .map_err(std::io::Error::from)
        .map_err(|error| Error::refused(tried(), error.to_string(), FIX))?;
    let stat = fstat(&file).map_err(std::io::Error::from).tried(tried)?;
    let refuse = |why: String| Err(Error::refused(tried(), why, FIX));
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refuse("it is no regular file".into());
    }
    let trusted = [Some(0), Some(geteuid().as_raw()), also];
    if !trusted.contains(&Some(stat.st_uid)) {
        return refuse(format!("it is owned by user {}", stat.st_uid));
    }
    if stat.st_mode & 0o077 != 0 {
        return refuse(format!(
            "group or others have access to it (mode {:04o})",
            stat.st_mode & 0o7777
        ));
    }
    // One allocation, so that no copy is left where a vector has grown.
    let mut bytes = vec![0; MAX_BYTES + 1];
    let mut length = 0;
    let mut file = File::from(file);
    loop {
        match file.read(&mut bytes[length..]).tried(tried)? {
            0 => break,
            more => length += more,
        }
    }
    let key = (MIN_BYTES..=MAX_BYTES)
        .contains(&length)
        .then(|| make(&bytes[..length]));
    bytes.fill(0);
    black_box(&mut bytes);
    key.map_or_else(
        || {
            refuse(format!(
                "it has {length} bytes, a key has {MIN_BYTES} to {MAX_BYTES}"
            ))
        },
        Ok,
    )
}

/// A key to encrypt with, of the site's key and at most one file.
fn encryption_key(site: &Secret, file: &[&[u8]]) -> (KeyId, Secret) {
    let secret = derive(site, "encryption", file);
    (key_name(&secret), secret)
}

/// The name of a key.
fn key_name(secret: &Secret) -> KeyId {
    let [a, b, c, d, e, f, g, h, ..] = derive(secret, "name", &[]).0;
    KeyId([a, b, c, d, e, f, g, h])
}

const FIX: &str =
    "have it owned by root with mode 0400 and 32 bytes or more, the same on all nodes";

impl JobKeys {
    /// Code of a manifest.
    pub fn manifest_code(&self, signed: &[u8]) -> [u8; 32] {
        keyed(&self.manifest, &[signed]).into()
    }

    /// Whether the code of a manifest holds; in constant time.
    pub fn manifest_holds(&self, signed: &[u8], code: &[u8; 32]) -> bool {
        self.any(|keys| keyed(&keys.manifest, &[signed]) == *code)
    }

    /// Whether something holds by any of the site's keys, the one that signs first.
    fn any(&self, holds: impl Fn(&JobKeys) -> bool) -> bool {
        holds(self) || self.others.iter().any(holds)
    }

    /// Digest of the bytes of an extent.
    pub fn extent(&self, bytes: &[u8]) -> Digest {
        Digest(keyed(&self.extent, &[bytes]).into())
    }

    /// Whether bytes are those of an extent; in constant time.
    pub fn extent_holds(&self, bytes: &[u8], digest: &Digest) -> bool {
        self.any(|keys| keyed(&keys.extent, &[bytes]) == digest.0)
    }

    /// Code of what the store notes about the job.
    pub(crate) fn state_code(&self, signed: &[u8]) -> [u8; 32] {
        keyed(&self.state, &[signed]).into()
    }

    /// Whether that code holds.
    pub(crate) fn state_holds(&self, signed: &[u8], code: &[u8; 32]) -> bool {
        self.any(|keys| same(keys.state_code(signed), code))
    }

    /// Code of a mark that a program could not load a checkpoint. `id` goes in front: no mark is one of another checkpoint.
    pub(crate) fn refusal_code(&self, id: &[u8], marked: &[u8]) -> [u8; 32] {
        keyed(
            &self.refusal,
            &[&(id.len() as u64).to_le_bytes(), id, marked],
        )
        .into()
    }

    /// Whether that code holds.
    pub(crate) fn refusal_holds(&self, id: &[u8], marked: &[u8], code: &[u8; 32]) -> bool {
        self.any(|keys| same(keys.refusal_code(id, marked), code))
    }

    /// A way to encrypt something that nothing was encrypted in yet.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub(crate) fn encryption(&self) -> std::io::Result<Encryption> {
        let first = self.encryption.first();
        let (key, _) = first.ok_or_else(|| std::io::Error::other("there is no key"))?;
        Ok(Encryption {
            cipher: Encryption::AES_256_CTR,
            key: *key,
            salt: cipher::salt()?,
        })
    }

    /// The key of a segment. `None`: what it is made of is not here.
    pub(crate) fn segment_cipher(&self, id: CheckpointId, with: &Encryption) -> Option<Cipher> {
        self.cipher(with, "segment", id.to_string().as_bytes())
    }

    /// The key of a manifest. `None`: as there.
    pub(crate) fn manifest_cipher(&self, with: &Encryption) -> Option<Cipher> {
        self.cipher(with, "manifest", b"")
    }

    fn cipher(&self, with: &Encryption, purpose: &str, of: &[u8]) -> Option<Cipher> {
        let (_, key) = self.encryption.iter().find(|(id, _)| *id == with.key)?;
        Some(Cipher::new(derive(key, purpose, &[of, &with.salt]).0))
    }

    /// The key of one shard: none of its bytes verify as those of another.
    pub(crate) fn shard(&self, which: &[u8]) -> ShardKey {
        ShardKey(derive(&self.shard, "one shard", &[which]))
    }

    /// Those keys of one shard by which it may have been made, the one that is used now first.
    pub(crate) fn shards(&self, which: &[u8]) -> Vec<ShardKey> {
        let others = self.others.iter().map(|keys| keys.shard(which));
        [self.shard(which)].into_iter().chain(others).collect()
    }
}

/// The key of one shard.
pub(crate) struct ShardKey(Secret);

impl ShardKey {
    /// Digest of a piece.
    pub(crate) fn piece(&self, index: u64, bytes: &[u8]) -> [u8; 32] {
        keyed(&self.0, &[b"piece", &index.to_le_bytes(), bytes]).into()
    }

    /// Code over the digests of all pieces.
    pub(crate) fn trailer(&self, digests: &[u8]) -> [u8; 32] {
        keyed(&self.0, &[b"trailer", digests]).into()
    }
}

/// Compares codes in constant time.
pub(crate) fn same(code: [u8; 32], other: &[u8; 32]) -> bool {
    Hash::from(code) == *other
}

/// Every part goes in with its length, so that no two lists of parts are the same bytes.
fn derive(key: &Secret, purpose: &str, parts: &[&[u8]]) -> Secret {
    let mut hasher = Hasher::new_keyed(&key.0);
    for part in [&[purpose.as_bytes()], parts].concat() {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    Secret(hasher.finalize().into())
}

/// Only the last of the parts has a variable length.
fn keyed(key: &Secret, parts: &[&[u8]]) -> Hash {
    let mut hasher = Hasher::new_keyed(&key.0);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}
