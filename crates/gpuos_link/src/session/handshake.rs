//! The handshake: bytes of the other side in, bytes to send and at last a session out.

use std::fmt;
use std::sync::Arc;

use gpuos_checkpoint::ids::NodeIndex;

use super::claim::{Claim, Peer, Place, Places, Role};
use super::credentials::Credentials;
use super::fault::Fault;
use super::frame::{Kind, Opener, Sealer};
use super::gather::Gather;
use super::key_names::KeyNames;
use super::keys::Keys;
use super::{MAX_BODY, MAX_HANDSHAKE, NONCE};

/// Bytes of a length before a credential.
const LENGTH: usize = 4;

/// What holds for every handshake of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The longest body of a frame, in bytes. Both ends have the same.
    pub limit: usize,
    /// A user who is trusted as root is: that of this process in a lab. `None`: root only.
    pub own_uid: Option<u32>,
    /// This node's keys of checkpoints.
    pub keys: KeyNames,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            limit: MAX_BODY,
            own_uid: None,
            keys: KeyNames::default(),
        }
    }
}

/// A connection whose both ends know each other.
#[derive(Debug)]
pub struct Session {
    /// The other end.
    pub peer: Peer,
    /// For what is sent.
    pub sealer: Sealer,
    /// For what comes in.
    pub opener: Opener,
}

/// What followed from bytes of the other side.
#[derive(Debug)]
pub struct Taken {
    /// So many bytes were taken; the others are to be fed again, to the session if there is one.
    pub used: usize,
    /// To be sent before anything else; may be empty.
    pub send: Vec<u8>,
    /// The handshake is done.
    pub session: Option<Session>,
    /// It has ended by this, once what is to be sent has been.
    pub refused: Option<Fault>,
}

/// One side of a handshake.
pub struct Handshake {
    settings: Settings,
    nonce: [u8; NONCE],
    transcript: blake3::Hasher,
    length: Gather,
    credential: Gather,
    stage: Stage,
}

enum Stage {
    /// The responder waits for the hello.
    Hello(Arc<dyn Places>),
    /// The initiator waits for the answer of that node.
    Answer(Place, NodeIndex),
    /// Either waits for the confirmation of the other. `replies`: the responder has yet to send its own.
    Confirm { session: Session, replies: bool },
    /// It is done, or was ended by a fault.
    Over,
}

impl fmt::Debug for Handshake {
    /// Without the nonce, which the keys are made of.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.stage {
            Stage::Hello(_) => "Handshake, waits for the hello",
            Stage::Answer(..) => "Handshake, waits for the answer",
            Stage::Confirm { .. } => "Handshake, waits for the confirmation",
            Stage::Over => "Handshake, over",
        })
    }
}

impl Handshake {
    /// The side that connects, from the node at `place` to `peer`, and what it sends first. `nonce` is drawn anew for each handshake.
    ///
    /// # Errors
    /// The job has no such other node, or no credential is made.
    pub fn initiate(
        place: Place,
        peer: NodeIndex,
        nonce: [u8; NONCE],
        settings: Settings,
        credentials: &dyn Credentials,
    ) -> Result<(Handshake, Vec<u8>), Fault> {
        if peer == place.own || peer.0 >= place.nodes || place.own.0 >= place.nodes {
            return Err(Fault::Ends {
                from: place.own,
                to: peer,
            });
        }
        let claim = Claim {
            role: Role::Initiator,
            nonce,
            job: place.job.clone(),
            list: place.list,
            from: place.own,
            to: peer,
            keys: settings.keys,
        };
        let mut handshake = Handshake::new(nonce, settings, Stage::Answer(place, peer));
        let hello = handshake.seal(&claim, credentials)?;
        Ok((handshake, hello))
    }

    /// The side that was connected to. `nonce` is drawn anew for each handshake.
    pub fn respond(places: Arc<dyn Places>, nonce: [u8; NONCE], settings: Settings) -> Handshake {
        Handshake::new(nonce, settings, Stage::Hello(places))
    }

    fn new(nonce: [u8; NONCE], settings: Settings, stage: Stage) -> Handshake {
        Handshake {
            settings,
            nonce,
            transcript: blake3::Hasher::new(),
            length: Gather::default(),
            credential: Gather::default(),
            stage,
        }
    }

    /// Takes bytes as they came in, up to the end of a message.
    ///
    /// # Errors
    /// What came in is not what is due. Nothing is taken after that.
    pub fn feed(&mut self, input: &[u8], credentials: &dyn Credentials) -> Result<Taken, Fault> {
        // A fault leaves it over.
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Over => Err(Fault::Over),
            Stage::Confirm { session, replies } => self.confirm(session, replies, input),
            stage => {
                let (used, credential) = self.collect(input)?;
                let Some(credential) = credential else {
                    self.stage = stage;
                    return Ok(Taken {
                        used,
                        send: Vec::new(),
                        session: None,
                        refused: None,
                    });
                };
                let claim = self.open(&credential, credentials)?;
                // Who answers says which keys it has before it ends this: both sides are to know why.
                let answers = matches!(stage, Stage::Hello(_));
                let mut send = match stage {
                    Stage::Hello(places) => self.answer(&claim, &*places, credentials)?,
                    Stage::Answer(place, peer) => self.accept(&claim, &place, peer)?,
                    Stage::Confirm { .. } | Stage::Over => return Err(Fault::Over),
                };
                let keys = self.settings.keys.go_with(&claim.keys);
                let refused = keys.err().map(Fault::Keys);
                if refused.is_some() {
                    self.stage = Stage::Over;
                    send.truncate(if answers { send.len() } else { 0 });
                }
                Ok(Taken {
                    used,
                    send,
                    session: None,
                    refused,
                })
            }
        }
    }

    /// Whether root of a node of the cluster has spoken here: a stranger never brings a handshake so far.
    pub fn is_known(&self) -> bool {
        matches!(self.stage, Stage::Confirm { .. })
    }

    /// Memory that is held for the message that comes in, in bytes: at most twice what of it has arrived.
    pub fn held(&self) -> usize {
        self.length.held() + self.credential.held()
    }

    fn collect(&mut self, input: &[u8]) -> Result<(usize, Option<Vec<u8>>), Fault> {
        let mut used = self.length.take(input, LENGTH);
        let Ok(length) = <[u8; LENGTH]>::try_from(self.length.bytes()) else {
            return Ok((used, None));
        };
        let announced = u32::from_le_bytes(length);
        let wanted = usize::try_from(announced).ok();
        let wanted = wanted.filter(|wanted| (1..=MAX_HANDSHAKE).contains(wanted));
        let wanted = wanted.ok_or(Fault::Length {
            length: announced.into(),
            limit: MAX_HANDSHAKE,
        })?;
        used += self.credential.take(&input[used..], wanted);
        if self.credential.len() < wanted {
            return Ok((used, None));
        }
        self.length = Gather::default();
        Ok((used, Some(self.credential.finish())))
    }

    fn seal(&mut self, claim: &Claim, credentials: &dyn Credentials) -> Result<Vec<u8>, Fault> {
        let credential = credentials.seal(&claim.encode()).map_err(Fault::Seal)?;
        let length = u32::try_from(credential.len()).ok();
        let length = length.filter(|_| (1..=MAX_HANDSHAKE).contains(&credential.len()));
        let length = length.ok_or(Fault::Length {
            length: credential.len() as u64,
            limit: MAX_HANDSHAKE,
        })?;
        let message = [&length.to_le_bytes()[..], &credential].concat();
        self.transcript.update(&message);
        Ok(message)
    }

    fn open(&mut self, credential: &[u8], credentials: &dyn Credentials) -> Result<Claim, Fault> {
        // The length was checked against a limit far below u32::MAX.
        self.transcript
            .update(&(credential.len() as u32).to_le_bytes());
        self.transcript.update(credential);
        let opened = credentials.open(credential).map_err(Fault::Open)?;
        if opened.uid != 0 && Some(opened.uid) != self.settings.own_uid {
            return Err(Fault::User(opened.uid));
        }
        Claim::decode(&opened.payload)
    }

    /// The responder has the hello.
    fn answer(
        &mut self,
        hello: &Claim,
        places: &dyn Places,
        credentials: &dyn Credentials,
    ) -> Result<Vec<u8>, Fault> {
        if hello.role != Role::Initiator {
            return Err(Fault::Role);
        }
        let place = places.of(&hello.job, hello.list);
        let place = place.ok_or_else(|| Fault::Job(hello.job.clone()))?;
        hello.is_for(&place)?;
        let claim = Claim {
            role: Role::Responder {
                answers: hello.nonce,
            },
            nonce: self.nonce,
            job: place.job,
            list: place.list,
            from: place.own,
            to: hello.from,
            keys: self.settings.keys,
        };
        let answer = self.seal(&claim, credentials)?;
        let keys = Keys::derive(&hello.nonce, &self.nonce, self.digest());
        self.stage = Stage::Confirm {
            session: self.session(hello, keys.to_initiator, keys.to_responder),
            replies: true,
        };
        Ok(answer)
    }

    /// The initiator has the answer.
    fn accept(&mut self, answer: &Claim, place: &Place, peer: NodeIndex) -> Result<Vec<u8>, Fault> {
        let Role::Responder { answers } = answer.role else {
            return Err(Fault::Role);
        };
        // The nonces are secret until here, and a guess has one try: time tells nothing.
        if answers != self.nonce {
            return Err(Fault::Nonce);
        }
        answer.is_for(place)?;
        if answer.from != peer {
            return Err(Fault::Ends {
                from: answer.from,
                to: answer.to,
            });
        }
        let keys = Keys::derive(&self.nonce, &answer.nonce, self.digest());
        let mut session = self.session(answer, keys.to_responder, keys.to_initiator);
        let confirm = session.sealer.seal(Kind::Confirm, &[])?.with(&[]);
        self.stage = Stage::Confirm {
            session,
            replies: false,
        };
        Ok(confirm)
    }

    fn confirm(
        &mut self,
        mut session: Session,
        replies: bool,
        input: &[u8],
    ) -> Result<Taken, Fault> {
        let (used, done) = session.opener.feed_confirm(input)?;
        let mut send = Vec::new();
        if done && replies {
            send = session.sealer.seal(Kind::Confirm, &[])?.with(&[]);
        }
        let mut ended = Some(session);
        if !done && let Some(session) = ended.take() {
            self.stage = Stage::Confirm { session, replies };
        }
        Ok(Taken {
            used,
            send,
            session: ended,
            refused: None,
        })
    }

    fn digest(&self) -> [u8; 32] {
        *self.transcript.finalize().as_bytes()
    }

    fn session(&self, other: &Claim, sends: [u8; 32], hears: [u8; 32]) -> Session {
        Session {
            peer: Peer {
                job: other.job.clone(),
                node: other.from,
            },
            sealer: Sealer::new(sends, self.settings.limit),
            opener: Opener::new(hears, self.settings.limit),
        }
    }
}
