//! Credentials in memory, and both sides of a handshake on one thread.

use std::sync::Arc;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_link::session::{
    Credentials, Fault, Handshake, Opened, Place, Refusal, Session, Settings,
};

/// A cluster's credentials, made by a user. Unlike munge it reads a credential any number of times, so that the protocol is
/// tested and not munge's memory. `slack`: bytes at the end that it does not look at.
#[derive(Clone)]
pub struct Fake {
    pub cluster: u8,
    pub uid: u32,
    pub slack: usize,
}

pub const ROOT: Fake = Fake {
    cluster: 1,
    uid: 0,
    slack: 0,
};

impl Credentials for Fake {
    fn seal(&self, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let mut bytes = self.uid.to_le_bytes().to_vec();
        bytes.extend(payload);
        let mac = blake3::keyed_hash(&[self.cluster; 32], &bytes);
        bytes.extend(mac.as_bytes());
        bytes.resize(bytes.len() + self.slack, b'=');
        Ok(bytes)
    }

    fn open(&self, credential: &[u8]) -> Result<Opened, Refusal> {
        let refused = || Refusal::Refused("Invalid credential".into());
        let length = credential.len().checked_sub(self.slack);
        let looked_at = &credential[..length.ok_or_else(refused)?];
        let (bytes, mac) = looked_at.split_last_chunk::<32>().ok_or_else(refused)?;
        if blake3::keyed_hash(&[self.cluster; 32], bytes) != *mac {
            return Err(refused());
        }
        let (uid, payload) = bytes.split_first_chunk().ok_or_else(refused)?;
        Ok(Opened {
            uid: u32::from_le_bytes(*uid),
            payload: payload.to_vec(),
        })
    }
}

/// Node `own` of job 7, which has four.
pub fn place(own: u16) -> Place {
    Place {
        job: 7.into(),
        list: 0,
        own: NodeIndex(own),
        nodes: 4,
    }
}

/// One side of a handshake, and what became of it.
pub struct Side {
    pub handshake: Handshake,
    pub credentials: Fake,
    pub session: Option<Session>,
    pub fault: Option<Fault>,
}

impl Side {
    /// Node 0 calls node 1.
    pub fn initiator(nonce: u8, settings: Settings) -> (Side, Vec<u8>) {
        let started = Handshake::initiate(place(0), NodeIndex(1), [nonce; 32], settings, &ROOT);
        let (handshake, hello) = started.unwrap();
        (Side::new(handshake, ROOT), hello)
    }

    /// A node that was called.
    pub fn responder(place: Place, nonce: u8, settings: Settings) -> Side {
        Side::new(
            Handshake::respond(Arc::new(place), [nonce; 32], settings),
            ROOT,
        )
    }

    pub fn new(handshake: Handshake, credentials: Fake) -> Side {
        Side {
            handshake,
            credentials,
            session: None,
            fault: None,
        }
    }

    /// Hears bytes, and says what it answers.
    pub fn hear(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut answers = Vec::new();
        while !bytes.is_empty() && self.fault.is_none() {
            if let Some(session) = &mut self.session {
                match session.opener.feed(bytes) {
                    Ok((used, _)) => bytes = &bytes[used..],
                    Err(fault) => self.fault = Some(fault),
                }
                continue;
            }
            match self.handshake.feed(bytes, &self.credentials) {
                Ok(taken) => {
                    answers.extend(taken.send);
                    self.session = taken.session;
                    bytes = &bytes[taken.used..];
                }
                Err(fault) => self.fault = Some(fault),
            }
        }
        answers
    }

    pub fn is_done(&self) -> bool {
        self.session.is_some() && self.fault.is_none()
    }
}

/// A handshake of nodes 0 and 1, in which `meddle` gets each message by its number and puts another in its place. Returns both
/// sides and the messages as they were sent.
pub fn shake(
    nonces: [u8; 2],
    mut meddle: impl FnMut(usize, Vec<u8>) -> Vec<u8>,
) -> (Side, Side, Vec<Vec<u8>>) {
    let settings = Settings::default();
    let (mut caller, hello) = Side::initiator(nonces[0], settings);
    let mut called = Side::responder(place(1), nonces[1], settings);
    let mut sent = vec![hello];
    for number in 0..4 {
        let heard = meddle(number, sent[number].clone());
        let hears = if number % 2 == 0 {
            &mut called
        } else {
            &mut caller
        };
        let answer = hears.hear(&heard);
        sent.push(answer);
    }
    assert!(sent.pop().is_some_and(|last| last.is_empty()));
    (caller, called, sent)
}

/// Two sessions that belong together.
pub fn sessions() -> (Session, Session) {
    let (caller, called, _) = shake([1, 2], |_, bytes| bytes);
    (caller.session.unwrap(), called.session.unwrap())
}
