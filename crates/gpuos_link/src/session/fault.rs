//! Why a handshake or a session ended.

use std::fmt;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_core::job::JobId;

use super::VERSION;
use super::credentials::Refusal;
use super::key_names::OtherKeys;

/// What ended a handshake or a session. Each one is final: a new connection begins with a new handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No credential of this node was made.
    Seal(Refusal),
    /// The other side's credential was not read.
    Open(Refusal),
    /// The other side's credential was made by this user, who is not root.
    User(u32),
    /// The other side speaks this version.
    Version(u16),
    /// A credential that is for something else, or whose payload breaks off.
    Payload,
    /// A hello where an answer is due, or the other way round: a reflected credential.
    Role,
    /// The other side is of this job, which this node has no part in, or not in this connection.
    Job(JobId),
    /// The credential is for other ends than those of this connection.
    Ends {
        /// Who made it, by its own word.
        from: NodeIndex,
        /// Whom it is for.
        to: NodeIndex,
    },
    /// The two nodes have different keys of checkpoints.
    Keys(OtherKeys),
    /// The answer is one to another handshake: a replayed credential.
    Nonce,
    /// A length that is over the limit, or no length at all.
    Length {
        /// What was announced, in bytes.
        length: u64,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The authentication code of a frame does not hold: it was changed, repeated, swapped, or one before it is missing.
    Mac,
    /// A frame of a kind that is not due or not known.
    Kind(u8),
    /// More frames than the counter counts.
    Counter,
    /// The session has ended before, by a fault or in order.
    Over,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Seal(why) => write!(f, "cannot make a credential for the handshake: {why}"),
            Fault::Open(why) => write!(
                f,
                "cannot read the credential of the other node: {why}; compare munge's key and the clocks of both nodes"
            ),
            Fault::User(uid) => write!(
                f,
                "the other side is user {uid}, and only root is trusted: run gpuos_mover as root on all nodes"
            ),
            Fault::Version(version) => write!(
                f,
                "the other node speaks version {version} of the protocol, this one {VERSION}: \
                 install one release of gpuos on all nodes of the job"
            ),
            Fault::Payload => f.write_str(
                "the credential of the other side is not one of this protocol: see who listens at that address and port",
            ),
            Fault::Role => f.write_str(
                "a credential came back to the side that it is not for: somebody reflects messages between the nodes, \
                 or the node called itself",
            ),
            Fault::Job(job) => write!(
                f,
                "the other side is of job {job}, which this connection is not for: see whether the job has ended on one of the nodes, or runs there on others of its nodes"
            ),
            Fault::Ends { from, to } => write!(
                f,
                "the credential is from node {from} to node {to} of the job, which are not the ends of this connection: \
                 compare the lists of nodes on both"
            ),
            Fault::Keys(keys) => write!(f, "{keys}"),
            Fault::Nonce => f.write_str(
                "the answer is not to this handshake: somebody replays credentials between the nodes",
            ),
            Fault::Length { length, limit } => write!(
                f,
                "a message of {length} bytes is too short or too long, as at most {limit} are allowed here: \
                 see that the other side is a gpuos of the same release"
            ),
            Fault::Mac => f.write_str(
                "the authentication code of a frame does not hold: it was changed or put elsewhere on its way; connect again",
            ),
            Fault::Kind(kind) => write!(
                f,
                "a frame of kind {kind} is not due here: install one release of gpuos on all nodes of the job"
            ),
            Fault::Counter => f.write_str("the counter of frames is used up: connect again"),
            Fault::Over => f.write_str("the session has ended before: connect again"),
        }
    }
}

impl std::error::Error for Fault {}
