// What the movers of checkpoints read, one function for each: it must not panic, and what it accepts must hold. The stable test
// `read_fuzz` of gpuos_moverd includes this file too.

use std::sync::Arc;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_checkpoint::manifest::{Authentic, MAX_DEPTH, MAX_PATH, Unsealed, ranks};
use gpuos_config::options::parse_checkpoint;
use gpuos_core::job::JobId;
use gpuos_link::session::{
    Credentials, Handshake, MAX_HANDSHAKE, NONCE, Opened, Place, Places, Refusal, Settings,
};
use gpuos_mover::message::Message;
use gpuos_mover::program::Word;
use gpuos_moverd::carried::Carried;
use gpuos_moverd::folder::read_join;

/// What another node's mover sends, of a job of some nodes.
pub fn carried(bytes: &[u8]) {
    for nodes in [1, 4, u16::MAX] {
        if let Some(carried) = Carried::decode(bytes, nodes) {
            let again = carried.encode().expect("what was read is written");
            assert_eq!(Carried::decode(&again, nodes), Some(carried));
        }
    }
}

/// What the conductor and its nodes say to each other.
pub fn word(bytes: &[u8]) {
    if let Ok(word) = Word::decode(bytes) {
        let again = Word::decode(&word.encode());
        assert_eq!(again.ok(), Some(word));
    }
}

/// What the loops of nodes say to each other.
pub fn message(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        let written = message.encode().expect("what was read is written");
        assert_eq!(Message::decode(&written).ok(), Some(message));
    }
}

/// A manifest whose code holds, as by a fault of ours: damage is found by the code, and behind a right one anything may stand.
pub fn manifest(bytes: &[u8]) {
    let Ok(manifest) = Authentic::verify(bytes, |_, _| true).and_then(Authentic::parse) else {
        return;
    };
    let folders = manifest.folders.iter().map(|folder| &folder.path);
    for path in folders.chain(manifest.files.iter().map(|file| &file.path)) {
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        assert!(path.len() <= MAX_PATH && parts.len() <= MAX_DEPTH);
        let outside = |part: &&[u8]| matches!(*part, b"" | b"." | b"..") || part.contains(&0);
        assert!(!parts.iter().any(outside), "{}", path.escape_ascii());
    }
    assert!(manifest.files.iter().all(|file| file.mode <= 0o777));
    assert!(ranks(&manifest).iter().all(|(rank, size)| rank < size));
    let unsealed = Unsealed::new(&manifest).expect("what was read is written");
    let written = unsealed.seal(|_| [0; 32]);
    let again = Authentic::verify(&written, |_, _| true).and_then(Authentic::parse);
    assert_eq!(again.ok(), Some(manifest));
}

/// A name in the folder in which ranks join.
pub fn job_folder(bytes: &[u8]) {
    if let Some(join) = read_join(bytes) {
        assert!(join.rank < join.size);
        let written = format!("{}.{}.{}", join.rank, join.size, join.nonce);
        assert_eq!(written.as_bytes(), bytes);
    }
}

/// The value of `--gpuos-checkpoint`, a user's text; also behind what job_submit_gpuos has checked, in the folder of a job.
pub fn option(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match parse_checkpoint(text) {
        Ok(value) => {
            let written = value.to_string();
            assert_eq!(parse_checkpoint(&written).ok(), Some(value), "{written}");
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// Credentials that are what they claim.
pub struct Plain;

impl Credentials for Plain {
    fn seal(&self, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        Ok(payload.to_vec())
    }

    fn open(&self, credential: &[u8]) -> Result<Opened, Refusal> {
        let payload = credential.to_vec();
        Ok(Opened { uid: 0, payload })
    }
}

/// This node is the second of four, of every job.
struct Everywhere;

impl Places for Everywhere {
    fn of(&self, job: &JobId, list: u32) -> Option<Place> {
        Some(Place {
            job: job.clone(),
            list,
            own: NodeIndex(1),
            nodes: 4,
        })
    }
}

/// What comes to the port of a mover, in pieces as the first byte says: of somebody whose credentials open, and who has no key.
pub fn link(bytes: &[u8]) {
    let Some((piece, mut rest)) = bytes.split_first() else {
        return;
    };
    let settings = Settings {
        limit: 1 << 16,
        ..Settings::default()
    };
    let mut side = Handshake::respond(Arc::new(Everywhere), [7; NONCE], settings);
    while !rest.is_empty() {
        let input = &rest[..rest.len().min(1 + usize::from(*piece))];
        let Ok(taken) = side.feed(input, &Plain) else {
            // It stays over.
            assert!(side.feed(rest, &Plain).is_err());
            return;
        };
        assert!(taken.used <= input.len() && taken.send.len() <= MAX_HANDSHAKE);
        assert!(side.held() <= 2 * bytes.len() + 64);
        assert!(taken.session.is_none(), "without the key");
        // A step that takes nothing and says nothing would be repeated for ever.
        assert!(taken.used > 0 || !taken.send.is_empty());
        rest = &rest[taken.used..];
    }
}
