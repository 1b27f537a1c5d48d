//! What happens to a node of a job, and what follows from it.
use super::leader::Leader;
use super::member::Member;
use super::message::{Body, Digests, Effect, Message};
use super::outbox::Outbox;
use super::settings::Settings;
use crate::ids::{CheckpointId, Digest, LEADER, NodeIndex};

/// A part that is on this node's disk when it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// Of which attempt.
    pub id: CheckpointId,
    /// The digest of its manifest, which holds.
    pub digest: Digest,
    /// The record of the commit, if there is one.
    pub committed: Option<Digests>,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// This node has started, in the first or a later run of the job, or after a crash within a run. Comes first; what comes before
    /// is not listened to.
    Restarted {
        /// The parts on its disk.
        held: Vec<Held>,
        /// Attempts of which this node has begun its part and has no manifest that holds. It is to remember them until
        /// [`Effect::DropPart`], over further crashes too.
        begun: Vec<CheckpointId>,
        /// Leader: the checkpoint that the job restarts from, with the manifests of all nodes in this run's order. It becomes a
        /// committed one. Given at every start of the leader in that run; the program loads it after `CommitDurable`.
        adopt: Option<(CheckpointId, Digests)>,
    },
    /// Leader: make a checkpoint. The attempt was drawn at random; the number is above that of all checkpoints which the job has.
    Begin {
        /// The attempt.
        id: CheckpointId,
    },
    /// A message came.
    Received(Message),
    /// The answer to [`Effect::MakePart`]: data, shards, manifest and its copies are durable.
    StoreReady {
        /// The attempt.
        id: CheckpointId,
        /// The digest of this node's manifest.
        digest: Digest,
    },
    /// The answer to [`Effect::MakePart`]: it could not be made. What is there of it stays for [`Effect::DropPart`], so that it still
    /// shows that the part was begun; the segment's bytes may go.
    StoreFailed {
        /// The attempt.
        id: CheckpointId,
        /// A sentence.
        why: String,
    },
    /// The answer to [`Effect::MakeCommitDurable`].
    CommitDurable {
        /// The attempt.
        id: CheckpointId,
    },
    /// The answer to [`Effect::MakeCommitDurable`]: the record may be there or not.
    CommitFailed {
        /// The attempt.
        id: CheckpointId,
        /// A sentence.
        why: String,
    },
    /// A checkpoint was removed from this node because it is no longer kept.
    Removed {
        /// The checkpoint.
        id: CheckpointId,
    },
    /// A node of the job is gone.
    Lost {
        /// The node.
        node: NodeIndex,
    },
    /// A node that counted as gone is heard again.
    Returned {
        /// The node.
        node: NodeIndex,
    },
    /// Time went by; several times a second.
    Tick {
        /// Milliseconds of a clock that does not jump back.
        now: u64,
    },
}

/// What a node knows of the checkpoints of a job in one run of it.
#[derive(Clone, Debug)]
pub struct Commit {
    own: NodeIndex,
    run: u32,
    now: u64,
    started: bool,
    member: Member,
    /// On node 0.
    leader: Option<Leader>,
}

impl Commit {
    /// A node of a job of so many in its run of that number. A restart of the node or of the job makes a new one.
    pub fn new(own: NodeIndex, nodes: u16, run: u32, settings: Settings, now: u64) -> Commit {
        Commit {
            own,
            run,
            now,
            started: false,
            member: Member::new(nodes, settings),
            leader: (own == LEADER).then(|| Leader::new(nodes, settings)),
        }
    }
}

/// Takes an input.
pub fn step(state: &mut Commit, input: Input) -> Vec<Effect> {
    let mut out = Outbox {
        own: state.own,
        run: state.run,
        effects: Vec::new(),
        inner: Default::default(),
    };
    apply(state, input, &mut out);
    // Each is answered by at most one, and none is repeated without time going by.
    while let Some(message) = out.inner.pop_front() {
        received(state, message, &mut out);
    }
    out.effects
}

fn apply(state: &mut Commit, input: Input, out: &mut Outbox) {
    match input {
        Input::Tick { now } => {
            state.now = state.now.max(now);
            if state.started {
                state.member.tick(state.now, out);
                if let Some(leader) = &mut state.leader {
                    leader.tick(state.now, out);
                }
            }
        }
        Input::Restarted { held, begun, adopt } => restarted(state, held, begun, adopt, out),
        Input::Begin { id } => {
            if let Err(why) = begin(state, id, out) {
                out.to(Effect::RefuseBegin { id, why });
            }
        }
        Input::Received(message) => received(state, message, out),
        Input::StoreReady { id, digest } => state.member.ready(id, digest, state.now, out),
        Input::StoreFailed { id, why } => state.member.failed(id, &why, out),
        Input::CommitDurable { id } => state.member.commit_durable(id, out),
        Input::CommitFailed { id, why } => {
            state.member.commit_failed(id);
            let leader = state.leader.as_mut();
            if let Some(why) = leader.and_then(|leader| leader.commit_failed(id, &why)) {
                state.member.give_up(id, &why, out);
            }
        }
        Input::Removed { id } => state.member.removed(id),
        Input::Returned { node } => returned(state, node),
        Input::Lost { node } if node == state.own || !state.member.has(node) => {}
        Input::Lost { node } => {
            if node == LEADER {
                state.member.leader_lost(out);
            }
            if let Some(leader) = &mut state.leader {
                leader.lost(node, out);
            }
        }
    }
}

fn returned(state: &mut Commit, node: NodeIndex) {
    if node == LEADER {
        state.member.leader_returned();
    }
    if let Some(leader) = &mut state.leader {
        leader.returned(node);
    }
}

fn restarted(
    state: &mut Commit,
    held: Vec<Held>,
    begun: Vec<CheckpointId>,
    adopt: Option<(CheckpointId, Digests)>,
    out: &mut Outbox,
) {
    if std::mem::replace(&mut state.started, true) {
        return;
    }
    for part in held {
        let committed = part.committed.is_some();
        state
            .member
            .found(part.id, part.digest, committed, state.now);
        if let (Some(leader), Some(digests)) = (&mut state.leader, part.committed) {
            leader.found(part.id, digests);
        }
    }
    for id in begun {
        state.member.begun(id, state.now);
    }
    if let Some(leader) = &mut state.leader {
        let newest = leader.newest_id().and_then(|id| state.member.digest(id));
        leader.resume(adopt, newest, state.now, out);
    }
}

fn begin(state: &mut Commit, id: CheckpointId, out: &mut Outbox) -> Result<(), String> {
    let Some(leader) = &mut state.leader else {
        return Err("this node does not lead; ask node 0 of the job".into());
    };
    if !state.started {
        return Err("this node does not know yet what it has; try again in a moment".into());
    }
    if state.member.knows(id) {
        return Err(format!("attempt {id} was made before; draw a new one"));
    }
    let highest = state.member.highest();
    if id.number < highest {
        return Err(format!(
            "there is a part of checkpoint {highest} here; take a higher number"
        ));
    }
    leader.begin(id, state.now, out)
}

fn received(state: &mut Commit, message: Message, out: &mut Outbox) {
    let Message {
        from,
        to,
        run,
        id,
        body,
    } = message;
    if !state.started || run != state.run || to != state.own || !state.member.has(from) {
        return;
    }
    match body {
        Body::Prepare | Body::Commit { .. } | Body::Abort { .. } => {
            if from == LEADER {
                state.member.message(id, body, state.now, out);
            }
        }
        Body::Prepared { .. } | Body::Refused { .. } | Body::Committed | Body::Status => {
            if let Some(leader) = &mut state.leader {
                leader.message(from, id, body, state.now, out);
            }
        }
    }
}
