//! What goes over a link between the movers of two nodes of a job.
//!
//! A link knows nodes by their seats, which are their places in the workload manager's list of the job's nodes; what is inside of
//! [`Body::Store`] and [`Body::Word`] goes by their indices in checkpoints, which the roster gives.

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_core::job::JobId;
use gpuos_link::session::Place;
use gpuos_mover::donors::Taking;
use gpuos_mover::hosts::Hosts;
use gpuos_mover::message::{Bytes, MAX_MESSAGE};
use gpuos_mover::output::Ready;
use gpuos_mover::roster::{Claim, Roster};
use serde::{Deserialize, Serialize};

/// The longest message, in bytes: what the loop of a node says, with room for what is around it.
pub const MAX_CARRIED: usize = MAX_MESSAGE + (4 << 10);

/// Bytes of a segment that are asked for at a time, and at most.
pub const PIECE: u32 = 1 << 20;

/// Numbers of nodes by which a node has parts, and parts that it hosts, at most; own choice.
const MAX_CLAIMS: usize = 4096;

/// The longest text of an option; own choice, far above what its reader takes.
const MAX_ASKED: usize = 512;

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Carried {
    /// Which gathering of the job's movers it belongs to: drawn by the mover of seat 0, 0 before there is one.
    pub session: u32,
    /// What.
    pub body: Body,
}

/// What is said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    /// To seat 0, when a link is there: this mover is there. One that was started anew draws another number.
    Hello {
        /// Drawn when the mover began with this run of the job.
        incarnation: u64,
    },
    /// Of seat 0: what do you have of the job?
    ClaimAsk {
        /// Of this one, if it is not the job itself.
        of: Option<Other>,
    },
    /// This.
    Claim {
        /// By its manifests, for each number of nodes that the job had when they were made.
        own: Vec<Claim>,
        /// By those of nodes that it hosts.
        hosted: Vec<Claim>,
        /// A run, and the checkpoint that the job's user has chosen for it.
        chosen: Option<(u32, u32)>,
    },
    /// Note that the next run begins from this checkpoint; 0: that nothing is chosen.
    Choose(u32),
    /// It is noted.
    ChoiceNoted(u32),
    /// Of seat 0: so the job goes on.
    Roster(Box<JobRoster>),
    /// It is taken.
    RosterTaken,
    /// Of no use: there are no checkpoints in this run, for a reason that the job's user is told.
    NoRoster {
        /// The reason.
        why: String,
        /// Movers that were missed may come, and then there are.
        late: bool,
    },
    /// To seat 0: this node cannot go on, for this reason, and no checkpoint can be made without it.
    NoPart(String),
    /// To seat 0: that node could not give what the roster had it give.
    NotGiven(String),
    /// For a node that this one hosts, of one that the sender hosts.
    Hosted {
        /// Who says it.
        from: NodeIndex,
        /// To whom.
        to: NodeIndex,
        /// What.
        bytes: Bytes,
    },
    /// To seat 0, of the host of node 0: this can be restored of what other numbers of nodes have made, and is whole.
    Whole(Box<Ready>),
    /// For the conductor.
    Word(Bytes),
    /// For the loop of the node.
    Store(Bytes),
    /// Of the node that leads: drain your part of a checkpoint. Said again until it is answered.
    Drain {
        /// Which.
        id: CheckpointId,
        /// Counts what the node that leads has begun.
        round: u32,
    },
    /// It is drained.
    Drained {
        /// As it was asked.
        id: CheckpointId,
        /// As it was asked.
        round: u32,
        /// A sentence, if it could not be.
        failed: Option<String>,
    },
    /// Give me a manifest, for the files of a rank.
    ManifestAsk {
        /// For whom the answer is.
        ticket: u64,
        /// Of this checkpoint.
        id: CheckpointId,
        /// The one in which the files of this rank are.
        rank: u16,
    },
    /// Give me bytes of a segment, for the files of a rank.
    SegmentAsk {
        /// For whom the answer is.
        ticket: u64,
        /// Of this checkpoint.
        id: CheckpointId,
        /// The node whose part it is, as its manifest says.
        part: u16,
        /// The first byte.
        offset: u64,
        /// How many, [`PIECE`] at most.
        length: u32,
    },
    /// They are these; `None`: they cannot be had here.
    Given {
        /// As it was asked.
        ticket: u64,
        /// The bytes.
        bytes: Option<Bytes>,
    },
}

impl Body {
    /// How many bytes of others' making it has within: its form is longer than that.
    pub fn carries(&self) -> usize {
        match self {
            Body::Word(bytes) | Body::Store(bytes) | Body::Hosted { bytes, .. } => bytes.0.len(),
            Body::Given { bytes, .. } => bytes.as_ref().map_or(0, |bytes| bytes.0.len()),
            _ => 0,
        }
    }
}

/// The roster, with what the job asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobRoster {
    /// The group of the job's processes.
    pub gid: u32,
    /// The value of the option.
    pub asked: String,
    /// Who has which index, and the sets.
    pub roster: Roster,
    /// The run goes on from the checkpoint of this number and no other.
    pub only: Option<u32>,
    /// What is on the parallel file system.
    pub drained: FromShared,
    /// What nodes hold that the job does not have any more.
    pub donors: FromDonors,
    /// The checkpoint of another job is made whole on the nodes; another roster follows then.
    pub of: Option<Other>,
    /// It is whole, and the job begins from it if it has none itself.
    pub base: Option<Base>,
    /// What another number of nodes has made is made whole, and these host its parts; another roster follows then.
    pub hosts: Option<Hosts>,
    /// What other numbers of nodes have made, and was not looked at, is as new as this.
    pub other_nodes: Option<CheckpointId>,
    /// The highest number of all that is known; 0: there is none.
    pub beyond: u32,
    /// Why what other numbers of nodes have made cannot be restored.
    pub unhosted: Vec<String>,
}

/// Another job of the same user, from whose checkpoint a job is to begin.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Other {
    /// The job.
    #[serde(with = "job_text")]
    pub job: JobId,
    /// The number of the checkpoint; `None`: the newest.
    pub number: Option<u32>,
    /// It is a drill, in which so many parts of each set count as gone.
    pub lose: Option<u8>,
}

impl Other {
    /// Parts of each set that count as gone.
    pub fn losses(&self) -> u8 {
        self.lose.unwrap_or(0)
    }
}

/// A checkpoint of another job, or of another number of nodes, whose parts are all on nodes of the job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Base {
    /// The job.
    #[serde(with = "job_text")]
    pub job: JobId,
    /// The checkpoint.
    pub id: CheckpointId,
}

/// What seat 0 has found on the parallel file system, and what becomes of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FromShared {
    /// Each node copies its part of this checkpoint in before it begins.
    pub fetch: Option<CheckpointId>,
    /// If the nodes can go on with an older one only, another roster follows, with this one to be copied in.
    pub better: Option<CheckpointId>,
    /// The highest number there, 0: there is none.
    pub highest: u32,
    /// Those that could not be copied in.
    pub failed: Vec<u32>,
    /// Those that a program could not load, each with a clause.
    pub refused: Vec<(u32, String)>,
    /// Why what is there is not known, although there may be something.
    pub unread: Option<String>,
}

/// Ids of jobs as text: in their own form the reader has to see whether a number or a word comes, which these messages do not say.
pub mod job_text {
    use gpuos_core::job::JobId;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    /// Writes it.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn serialize<S: Serializer>(job: &JobId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(job)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is no id.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<JobId, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// What the roster says of nodes that hold parts and that the job does not have.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FromDonors {
    /// Who takes what from which node.
    pub taking: Taking,
    /// What the job's record says was made.
    pub made: Option<Made>,
    /// Why what other nodes have is not known: clauses.
    pub silent: Vec<String>,
    /// What those answered that have nothing of it, and who else was not heard: clauses, for where nothing is found.
    pub answers: Vec<String>,
    /// No other roster follows if it is not enough.
    pub last: bool,
}

/// A checkpoint that was made, by the job's record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Made {
    /// Its number; the newest has one below twice that.
    pub number: u32,
    /// In which run, and where: a clause.
    pub sentence: String,
}

/// In the place of a job when a link is made over which parts are given: no workload manager has a job of this id.
pub fn service() -> JobId {
    "gpuos.parts".parse().unwrap_or_default()
}

/// The ends of such a link: 0 holds parts, 1 wants them.
pub fn place(own: u16) -> Place {
    Place {
        job: service(),
        list: 0,
        own: NodeIndex(own),
        nodes: 2,
    }
}

/// The bytes of a message. `None`: it is too long for who is to read it.
pub(crate) fn encode<T: Serialize>(value: &T) -> Option<Vec<u8>> {
    let bytes = postcard::to_extend(value, Vec::new()).ok()?;
    (bytes.len() <= MAX_CARRIED).then_some(bytes)
}

/// Reads a message. `None`: it is none, or too long.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    if bytes.len() > MAX_CARRIED {
        return None;
    }
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}

impl Carried {
    /// The bytes of a message. `None`: it is too long for who is to read it.
    pub fn encode(&self) -> Option<Vec<u8>> {
        encode(self)
    }

    /// Reads a message of a job of so many nodes. `None`: it is none, or outside its limits.
    pub fn decode(bytes: &[u8], nodes: u16) -> Option<Carried> {
        let carried: Carried = decode(bytes)?;
        let fits = match &carried.body {
            Body::Roster(told) => {
                let seats = told.roster.index_of_seat.len();
                let hosts = told.hosts.iter().flat_map(|hosts| &hosts.seat_of_index);
                seats == usize::from(nodes)
                    && told.asked.len() <= MAX_ASKED
                    && hosts.copied().all(|seat| seat < nodes)
            }
            Body::Claim { own, hosted, .. } => {
                let mut all = own.iter().chain(hosted);
                own.len() + hosted.len() <= MAX_CLAIMS
                    && all.all(|claim| claim.set.len() <= usize::from(u8::MAX))
            }
            Body::SegmentAsk { offset, length, .. } => {
                *length <= PIECE && offset.checked_add((*length).into()).is_some()
            }
            _ => true,
        };
        fits.then_some(carried)
    }
}
