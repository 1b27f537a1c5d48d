//! What a credential of the handshake says: its payload, written and read.

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_core::job::JobId;

use super::fault::Fault;
use super::key_names::{BYTES, KeyNames};
use super::{NONCE, VERSION};

/// Sets these payloads apart from all others that root has munge seal, such as those of the heartbeat.
const CONTEXT: &[u8] = b"gpuos link\0";

/// A node's place in a job: what it says of itself, and holds others against.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The job.
    pub job: JobId,
    /// Which list of its nodes is meant: 0 is that of all of them, and others have numbers on which all nodes agree.
    pub list: u32,
    /// This node in the list of the job's nodes.
    pub own: NodeIndex,
    /// How many nodes that list has.
    pub nodes: u16,
}

/// The other end of a connection.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer {
    /// The job of both.
    pub job: JobId,
    /// That node in the list of the job's nodes.
    pub node: NodeIndex,
}

/// The jobs that this node takes connections for.
pub trait Places: Send + Sync {
    /// This node's place in a list of a job's nodes; `None`: it has no part in it, and refuses the connection.
    fn of(&self, job: &JobId, list: u32) -> Option<Place>;
}

/// One job only.
impl Places for Place {
    fn of(&self, job: &JobId, list: u32) -> Option<Place> {
        (self.job == *job && self.list == list).then(|| self.clone())
    }
}

/// Who speaks. An answer holds the nonce that it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Initiator,
    Responder { answers: [u8; NONCE] },
}

/// What one side claims in its credential.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Claim {
    pub role: Role,
    pub nonce: [u8; NONCE],
    pub job: JobId,
    pub list: u32,
    pub from: NodeIndex,
    pub to: NodeIndex,
    /// The keys of who speaks.
    pub keys: KeyNames,
}

impl Claim {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = CONTEXT.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        match self.role {
            Role::Initiator => bytes.push(0),
            Role::Responder { answers } => {
                bytes.push(1);
                bytes.extend(answers);
            }
        }
        bytes.extend(self.nonce);
        bytes.extend(self.list.to_le_bytes());
        bytes.extend(self.from.0.to_le_bytes());
        bytes.extend(self.to.0.to_le_bytes());
        bytes.extend(self.keys.encode());
        // The id is the rest: the credential has a length of its own.
        bytes.extend(self.job.to_string().into_bytes());
        bytes
    }

    /// Reads a payload. The version stands first: what follows may be of any form in another.
    pub fn decode(bytes: &[u8]) -> Result<Claim, Fault> {
        let mut rest = bytes.strip_prefix(CONTEXT).ok_or(Fault::Payload)?;
        let version = u16::from_le_bytes(array(&mut rest)?);
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        let role = match array(&mut rest)? {
            [0] => Role::Initiator,
            [1] => Role::Responder {
                answers: array(&mut rest)?,
            },
            _ => return Err(Fault::Payload),
        };
        let nonce = array(&mut rest)?;
        let list = u32::from_le_bytes(array(&mut rest)?);
        let from = NodeIndex(u16::from_le_bytes(array(&mut rest)?));
        let to = NodeIndex(u16::from_le_bytes(array(&mut rest)?));
        let keys = KeyNames::decode(&array::<BYTES>(&mut rest)?);
        let text = std::str::from_utf8(rest).map_err(|_| Fault::Payload)?;
        let job = text.parse().map_err(|_| Fault::Payload)?;
        Ok(Claim {
            role,
            nonce,
            job,
            list,
            from,
            to,
            keys,
        })
    }

    /// Whether `from` and `to` can be the two ends of a connection with the node at `place`, which hears it.
    pub fn is_for(&self, place: &Place) -> Result<(), Fault> {
        if (&self.job, self.list) != (&place.job, place.list) {
            return Err(Fault::Job(self.job.clone()));
        }
        let fits = self.to == place.own && self.from != place.own && self.from.0 < place.nodes;
        match fits {
            true => Ok(()),
            false => Err(Fault::Ends {
                from: self.from,
                to: self.to,
            }),
        }
    }
}

/// Cuts the first bytes off.
fn array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Fault> {
    let (first, after) = rest.split_first_chunk::<N>().ok_or(Fault::Payload)?;
    *rest = after;
    Ok(*first)
}
