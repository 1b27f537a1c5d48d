//! The saved state: one line that says what follows (name, version, checksum, length), then JSON.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gpuos_core::health::NodeHealth;
use gpuos_core::limits::{Limits, Mps};
use gpuos_model::gpuset::MAX_GPUS;
use serde::{Deserialize, Serialize};

use crate::jobs::Table;
use crate::memory;
use crate::mig::pool::Journal;
use crate::queue::Release;

/// Name of the file in the state directory.
pub const NAME: &str = "state";
/// Version of the form: raised when an older gpuosd could not go on from it.
const VERSION: u32 = 1;
const MAGIC: &str = "gpuosd-state";
/// No state comes near this.
const MOST: u64 = 64 << 20;

/// All that outlives the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Saved {
    /// The node that it is about.
    pub node: String,
    /// The boot in which it was saved.
    pub boot: String,
    /// The GPUs.
    pub health: NodeHealth,
    /// Jobs that hold GPUs.
    pub jobs: Table,
    /// Requeued jobs that Slurm still holds back.
    pub releases: Vec<Release>,
    /// What is set on GPUs for jobs.
    #[serde(default)]
    pub limits: Limits,
    /// MPS daemons of jobs.
    #[serde(default)]
    pub mps: Mps,
    /// MIG instances of jobs.
    #[serde(default)]
    pub mig: Journal,
    /// Memory in tiers of jobs.
    #[serde(default)]
    pub memory: memory::Saved,
}

/// The bytes of a state.
pub fn encode(saved: &Saved) -> Vec<u8> {
    // Maps with keys that are no text are the only thing that JSON cannot write; there is none in here.
    sealed(&serde_json::to_vec(saved).unwrap_or_default())
}

/// The first line that belongs to `body`, and `body`.
pub fn sealed(body: &[u8]) -> Vec<u8> {
    let sum = crc32fast::hash(body);
    let mut bytes = format!("{MAGIC} {VERSION} {sum:08x} {}\n", body.len()).into_bytes();
    bytes.extend(body);
    bytes
}

/// The state in `bytes`.
///
/// # Errors
/// What is wrong with them, in a clause.
pub fn decode(bytes: &[u8]) -> Result<Saved, String> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or("it has no first line")?;
    let (head, body) = (&bytes[..end], &bytes[end + 1..]);
    let head = std::str::from_utf8(head).map_err(|_| "its first line is not text")?;
    let words: Vec<&str> = head.split(' ').collect();
    let [MAGIC, version, sum, length] = words[..] else {
        return Err("it is not a state of gpuosd".into());
    };
    if version != VERSION.to_string() {
        return Err(format!(
            "it is of version {version}, and this gpuosd reads {VERSION}"
        ));
    }
    if length != body.len().to_string() {
        return Err(format!(
            "it has {} bytes where it says {length}",
            body.len()
        ));
    }
    if sum != format!("{:08x}", crc32fast::hash(body)) {
        return Err("its checksum is wrong".into());
    }
    let saved: Saved =
        serde_json::from_slice(body).map_err(|e| format!("it cannot be read: {e}"))?;
    match saved.health.gpus.len() {
        gpus if gpus > MAX_GPUS => Err(format!(
            "it has {gpus} GPUs, and a node has {MAX_GPUS} at most"
        )),
        _ => Ok(saved),
    }
}

/// Writes the state so that after a crash at any point there is the old one or the new one.
///
/// # Errors
/// The file system's.
pub fn write(folder: &Path, bytes: &[u8]) -> io::Result<()> {
    write_as(NAME, folder, bytes)
}

/// The same of another file there.
///
/// # Errors
/// The file system's.
pub fn write_as(name: &str, folder: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let (path, new) = (folder.join(name), folder.join(format!("{name}.new")));
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600);
    let written = options.open(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(e) = written {
        // Room for the next attempt.
        let _ = fs::remove_file(&new);
        return Err(e);
    }
    fs::rename(&new, &path)?;
    File::open(folder)?.sync_all()
}

/// What was found at the start.
#[derive(Clone, PartialEq, Debug)]
pub enum Loaded {
    /// A state.
    State(Box<Saved>),
    /// None: the daemon is new here.
    Nothing,
    /// One that cannot be used; where it is kept now, and why.
    Damaged {
        /// Its new name.
        moved_to: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// Reads the state. One that is damaged is moved aside, so that it is neither used nor lost.
///
/// # Errors
/// The file is there and cannot be read, or not be moved.
pub fn load(folder: &Path) -> io::Result<Loaded> {
    use std::io::Read;
    let path = folder.join(NAME);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Loaded::Nothing),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes)?;
    match decode(&bytes) {
        Ok(saved) => Ok(Loaded::State(Box::new(saved))),
        Err(why) => {
            let free = (1..100).map(|n| folder.join(format!("{NAME}.damaged.{n}")));
            let kept = free.into_iter().find(|name| !name.exists());
            let kept = kept.unwrap_or_else(|| folder.join(format!("{NAME}.damaged")));
            fs::rename(&path, &kept)?;
            Ok(Loaded::Damaged {
                moved_to: kept,
                why,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuos_core::health::{Admin, Event, Rules, Verb, step};
    use proptest::prelude::*;

    use super::*;

    fn saved() -> Saved {
        let mut health = NodeHealth::new(8, 7);
        let drain = Event::Admin(Admin {
            verb: Verb::Drain,
            gpu: Some(5u8.try_into().unwrap()),
            reason: "loud fan".into(),
            uid: 0,
            force: false,
        });
        let _ = step(&mut health, &Rules::default(), drain, 1000);
        Saved {
            node: "n1".into(),
            boot: "b".into(),
            health,
            jobs: Table::default(),
            releases: vec![Release::of(&17.into(), true)],
            limits: Limits::default(),
            mps: Mps::default(),
            mig: Journal::default(),
            memory: memory::Saved::default(),
        }
    }

    #[test]
    fn a_state_comes_back_from_the_disk_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(load(folder.path()).unwrap(), Loaded::Nothing);
        let saved = saved();
        write(folder.path(), &encode(&saved)).unwrap();
        assert_eq!(load(folder.path()).unwrap(), Loaded::State(Box::new(saved)));
    }

    #[test]
    fn a_damaged_state_is_kept_aside() {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = encode(&saved());
        bytes.truncate(bytes.len() / 2);
        for number in 1..3 {
            fs::write(folder.path().join(NAME), &bytes).unwrap();
            match load(folder.path()).unwrap() {
                Loaded::Damaged {
                    moved_to: kept,
                    why,
                } => {
                    assert!(
                        kept.ends_with(format!("state.damaged.{number}")),
                        "{kept:?}"
                    );
                    assert!(why.contains("bytes where it says"), "{why}");
                    assert_eq!(fs::read(kept).unwrap(), bytes);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(load(folder.path()).unwrap(), Loaded::Nothing);
        }
    }

    #[test]
    fn a_state_of_another_version_is_not_read() {
        let text = encode(&saved());
        let text = String::from_utf8(text).unwrap().replacen(" 1 ", " 2 ", 1);
        assert!(decode(text.as_bytes()).unwrap_err().contains("version 2"));
    }

    #[test]
    fn a_state_with_more_gpus_than_a_node_can_have_is_not_read() {
        let mut saved = saved();
        saved.health.gpus.resize(MAX_GPUS + 1, Default::default());
        assert!(decode(&encode(&saved)).unwrap_err().contains("65 GPUs"));
    }

    #[test]
    fn damage_at_any_byte_is_seen() {
        let bytes = encode(&saved());
        assert_eq!(decode(&bytes), Ok(saved()));
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(decode(&flipped).is_err(), "flipped at {at}");
        }
    }

    proptest! {
        /// Behind a right checksum anything may stand that JSON can say.
        #[test]
        fn a_body_that_is_another_panics_nobody(at in any::<prop::sample::Index>(), piece in "[0-9a-z\\[\\]{},:\"-]{0,9}", cut in 0..9usize) {
            let bytes = encode(&saved());
            let start = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
            let mut body = bytes[start..].to_vec();
            let at = at.index(body.len());
            let end = (at + cut).min(body.len());
            body.splice(at..end, piece.bytes());
            if let Ok(read) = decode(&sealed(&body)) {
                prop_assert_eq!(decode(&encode(&read)), Ok(read));
            }
        }

        #[test]
        fn a_flipped_bit_or_a_cut_is_an_error(at in any::<prop::sample::Index>(), bit in 0..8u8, cut in any::<bool>()) {
            let mut bytes = encode(&saved());
            let at = at.index(bytes.len());
            match cut {
                true => bytes.truncate(at),
                false => bytes[at] ^= 1 << bit,
            }
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode(&bytes).is_err());
        }
    }
}
